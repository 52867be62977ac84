#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/binary_archive.hpp"
#include "cache_db/blocklist.hpp"
#include "cache_db/export.hpp"
#include "cache_db/export_header.hpp"
#include "cache_db/store.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/file.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/header_tables.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ExportArguments {
  ModelOptions model;
  std::string format = "json";
  std::string out;
  bool json = false;
};

// Rows of the model's specs, or all; without those whose config is blocked since.
std::vector<Store::Row> chosen_rows(const ExportArguments& arguments, const Store& store) {
  std::vector<Store::Row> rows = store.all_winners();
  BlockedWinners blocked_winners(store);
  if (const size_t blocked = std::erase_if(rows, [&](const Store::Row& row) { return blocked_winners.has(row.winner); }); blocked > 0)
    fmt::print(stderr, "{} left out: their kernels are blocked, wrong or crashing; pagetune tune measures those buckets again\n", blocked == 1 ? "1 winner is" : fmt::format("{} winners are", blocked));
  if (arguments.model.model.empty()) return rows;
  std::set<std::string> keys;
  for (const LayerGroup& group : load_model(arguments.model).groups) keys.insert(spec_key(group.spec));
  std::erase_if(rows, [&](const Store::Row& row) { return keys.count(row.winner.spec_key) == 0; });
  return rows;
}

std::vector<ExportedFile> exported(const std::vector<Store::Row>& rows, const std::string& format) {
  if (format == "json") return export_json(rows);
  if (format == "csv") return {{"winners.csv", export_csv(rows)}};
  if (format == "t4") return export_t4(rows);
  if (format == "header") return {{"pagetune_tables.hpp", export_header(header_tables(rows))}};
  return {{"winners.db", export_db(rows)}};
}

// A winners.db to ship is no store: it has no blocked configs, and a store's own may hold more winners.
void require_no_store_in(const std::string& out, const Store& store) {
  std::error_code ignored;
  if (fs::equivalent(out, store.dir(), ignored) || fs::exists(fs::path(out) / "kernels.db", ignored))
    throw UsageError(fmt::format("--out is '{}', the directory of a store, whose winners.db would be replaced: name another directory", out));
}

// The binaries of kernels.db: their keys are hashes that do not say which model they are for.
int export_binaries(const ExportArguments& arguments) {
  if (!arguments.model.model.empty())
    throw UsageError(fmt::format("a model is named ('{}'), but binaries do not say whose they are: --format tar writes all of the store; leave the model out, or prewarm it into a store of its own (PAGETUNE_CACHE_DIR) and export that",
                                 arguments.model.model));
  auto store = Store::open();
  std::vector<Binary> binaries = store->all_binaries();
  print_problems(*store);
  if (binaries.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("there is nothing to export: the store {} has no binary; run pagetune tune or prewarm first", store->dir()));
  std::set<std::string> compilers;
  for (const auto& device : devices_here("its compiler is not named in the archive")) compilers.insert(device->compiler().identity());
  const size_t count = binaries.size();
  write_file(arguments.out, binary_archive(std::move(binaries), compilers));
  if (arguments.json) fmt::print("{}\n", Json{{"binaries", count}, {"files", {arguments.out}}}.dump(2));
  else fmt::print("{}\n", arguments.out);
  return kDone;
}

int run_export(const ExportArguments& arguments) {
  if (arguments.format == "tar") return export_binaries(arguments);
  auto store = Store::open();
  if (arguments.format == "db") require_no_store_in(arguments.out, *store);
  std::vector<Store::Row> rows = chosen_rows(arguments, *store);
  print_problems(*store);
  if (rows.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("there is nothing to export: the store {} has no winner{}; run pagetune tune first", store->dir(),
                                                         arguments.model.model.empty() ? "" : " of this model and shape"));
  const std::vector<ExportedFile> files = exported(rows, arguments.format);

  std::error_code failure;
  fs::create_directories(arguments.out, failure);
  if (failure) throw Error(ErrorCode::io, fmt::format("the directory '{}' could not be made: {}", arguments.out, failure.message()));
  Json names = Json::array();
  for (const ExportedFile& file : files) {
    fs::path path = fs::path(arguments.out) / file.name;
    write_file(path, file.text);
    names.push_back(path.string());
    if (!arguments.json) fmt::print("{}\n", path.string());
  }
  if (arguments.json) fmt::print("{}\n", Json{{"winners", rows.size()}, {"files", names}}.dump(2));
  return kDone;
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb = app.add_subcommand("export", "Write winners as files: all, or those of a model; or the compiled binaries");
  add_model_options(*verb, arguments->model);
  verb->get_option("model")->required(false);
  verb->add_option("--format", arguments->format, "json: one table per kernel and device; csv: one file with a line per winner; header: one C++17 header for programs without pagetune; db: a winners.db to ship; t4: results as Kernel Tuner writes them, one file per kernel and device; tar: the compiled binaries, one file for pagetune import --binaries")
      ->check(CLI::IsMember({"json", "csv", "header", "db", "t4", "tar"}))
      ->capture_default_str();
  verb->add_option("--out", arguments->out, "Directory to write to; with --format tar the file")->required();
  verb->add_flag("--json", arguments->json, "Print one JSON document about what was written");
  verb->callback([=, &run] { run = [=] { return run_export(*arguments); }; });
}

}  // namespace pagetune::cli
