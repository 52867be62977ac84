#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/source.hpp"
#include "cache_db/winner_lines.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/take_in.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct MergeArguments {
  std::vector<std::string> sources;
  std::string into;
  bool json = false;
};

// One entry per path of the command line, also for those that could not be read.
struct Sources {
  std::vector<MergeSource> contents;
  Json report = Json::array();
  bool complete = true;
};

Sources read_sources(const MergeArguments& arguments) {
  Sources all;
  for (const std::string& path : arguments.sources) {
    std::error_code ignored;
    // The store that takes the winners in takes part anyway.
    if ((fs::equivalent(path, arguments.into, ignored) && line_files(path).empty()) || fs::equivalent(path, fs::path(arguments.into) / "winners.db", ignored)) continue;
    try {
      Source source = read_source(path);
      for (const std::string& problem : source.problems) fmt::print(stderr, "{}\n", problem);
      all.complete = all.complete && !source.damaged;
      all.report.push_back({{"path", source.content.name}, {"winners", source.content.rows.size()}, {"blocked", source.content.blocks.size()}, {"problems", source.problems}});
      all.contents.push_back(std::move(source.content));
    } catch (const Error& unreadable) {
      fmt::print(stderr, "{}\n", unreadable.what());
      all.complete = false;
      all.report.push_back({{"path", path}, {"error", unreadable.what()}});
    }
  }
  return all;
}

int run_merge(const MergeArguments& arguments) {
  if (arguments.into.empty()) throw UsageError("--into is empty: name the directory of a store, which is made if need be");
  if (fs::is_regular_file(arguments.into)) throw UsageError(fmt::format("--into is '{}', a file: name the directory of a store, which is made if need be", arguments.into));
  Sources sources = read_sources(arguments);
  if (sources.contents.empty() && !sources.complete) throw Error(ErrorCode::io, "no store could be read: nothing was merged");
  const TakenIn taken = take_in(arguments.into, sources.contents);
  if (arguments.json) {
    Json document{{"store", taken.store}, {"sources", sources.report}};
    document.update(taken_json(taken));
    fmt::print("{}\n", document.dump(2));
  } else {
    print_conflicts(taken.merged.conflicts);
    fmt::print("{} merged into {}: {}, {} of them new and {} replaced; {}; {}\n", counted(sources.contents.size(), "store"), taken.store, counted(taken.merged.rows.size(), "winner"), taken.merged.added,
               taken.merged.replaced, counted(taken.merged.blocks.size(), "blocked config"), counted(taken.merged.conflicts.size(), "conflict"));
  }
  return sources.complete ? kDone : kPartly;
}

}  // namespace

void add_merge(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<MergeArguments>();
  CLI::App* verb = app.add_subcommand("merge", "Bring the winners of several stores together; the stores they come from are only read");
  verb->add_option("stores", arguments->sources, "Directories of stores, or their winners.db")->required();
  verb->add_option("--into", arguments->into, "Directory of the store that takes them in; its own winners take part")->required();
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_merge(*arguments); }; });
}

}  // namespace pagetune::cli
