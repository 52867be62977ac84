#include <algorithm>

#include <fmt/format.h>

#include "cache_db/directory.hpp"
#include "tuner/cli/check.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

int run_doctor(const CareOptions& options) {
  std::vector<Environment> devices;
  std::vector<Check> checks = machine_checks(devices);
  const DefaultDirectory chosen = options.store.empty() ? default_directory() : DefaultDirectory{options.store, "--store"};
  for (Check& check : store_checks(store_directory(chosen.path), chosen.rule, devices)) checks.push_back(std::move(check));
  const auto count = [&](Level level) { return std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.level == level; }); };
  const auto errors = count(Level::error), warnings = count(Level::warning);
  if (options.json) {
    Json entries = Json::array();
    for (const Check& check : checks) entries.push_back({{"level", name_of(check.level)}, {"what", check.what}, {"found", check.found}, {"remedy", check.remedy}, {"facts", check.facts}});
    fmt::print("{}\n", document_text({{"errors", errors}, {"warnings", warnings}, {"checks", entries}}));
  } else {
    for (const Check& check : checks) {
      fmt::print("{:8} {}: {}\n", name_of(check.level), check.what, check.found);
      if (!check.remedy.empty()) fmt::print("{:8} -> {}\n", "", check.remedy);
    }
    fmt::print("{}, {}\n", counted(errors, "error"), counted(warnings, "warning"));
  }
  return errors > 0 ? kFailed : kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  auto options = std::make_shared<CareOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Check driver, compilers, SQLite and the store, and say what to do; changes nothing. Exit codes: 0 no error, 1 an error; warnings do not count");
  add_care_options(*verb, *options);
  verb->callback([=, &run] { run = [=] { return run_doctor(*options); }; });
}

}  // namespace pagetune::cli
