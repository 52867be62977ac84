#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/blocklist.hpp"
#include "cache_db/source.hpp"
#include "cache_db/store.hpp"
#include "cache_db/table.hpp"
#include "codegen/generate.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/winners_view.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct MergeArguments {
  std::vector<std::string> sources;
  std::string into;
  bool json = false;
};

MergeRule rule_of_this_build() {
  MergeRule rule;
  rule.is_current = [](const Store::Row& row) {
    Target target = target_of(row.environment);
    return is_current(row.winner, row.spec, target, MeasurePolicy::for_backend(target.backend));
  };
  rule.block_is_current = Blocklist::is_of_this_build;
  return rule;
}

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
    if (fs::equivalent(path, arguments.into, ignored) || fs::equivalent(path, fs::path(arguments.into) / "winners.db", ignored)) continue;
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

std::string interval_text(const Winner& w) { return fmt::format("{:.2f} to {:.2f}", w.ci_low_us, w.ci_high_us); }

std::string config_text(const KernelConfig& config) { return fmt::format("V{}, splits {}, {}", config.variant(), config.num_splits(), shape_text(config)); }

void print_conflicts(const std::vector<Conflict>& conflicts) {
  if (conflicts.empty()) return;
  Table table({"device", "kernel", "batch x len", "", "config", ">95 % interval us", "from"});
  for (const Conflict& conflict : conflicts) {
    table.add({conflict.kept.environment.file_name(), spec_text(conflict.kept.spec), conflict.kept.winner.bucket.text(), "kept", config_text(conflict.kept.winner.config),
               interval_text(conflict.kept.winner), conflict.kept_from});
    table.add({"", "", "", "other", config_text(conflict.other.winner.config), interval_text(conflict.other.winner), conflict.other_from});
  }
  fmt::print("{}: other configs, and times that exclude each other. Were all machines alike and idle?\n{}\n", counted(std::ssize(conflicts), "conflict"), table.text());
}

Json conflicts_json(const std::vector<Conflict>& conflicts) {
  Json entries = Json::array();
  for (const Conflict& conflict : conflicts) {
    auto side = [&](const Store::Row& row, const std::string& from) {
      Json entry = winner_json(row.spec, row.winner);
      entry.erase("spec");
      entry["from"] = from;
      return entry;
    };
    entries.push_back({{"environment", Json::parse(conflict.kept.environment.canonical_json())},
                       {"spec", Json::parse(canonical_json(conflict.kept.spec))},
                       {"kept", side(conflict.kept, conflict.kept_from)},
                       {"other", side(conflict.other, conflict.other_from)}});
  }
  return entries;
}

// Winners that name a kernel which some machine found wrong.
int blocked_winners(const Merged& merged, const Store& store) {
  BlockedWinners blocked(store);
  return static_cast<int>(std::count_if(merged.rows.begin(), merged.rows.end(), [&](const Store::Row& row) { return blocked.has(row.winner); }));
}

int run_merge(const MergeArguments& arguments) {
  if (arguments.into.empty()) throw UsageError("--into is empty: name the directory of a store, which is made if need be");
  if (fs::is_regular_file(arguments.into)) throw UsageError(fmt::format("--into is '{}', a file: name the directory of a store, which is made if need be", arguments.into));
  Sources sources = read_sources(arguments);
  if (sources.contents.empty() && !sources.complete) throw Error(ErrorCode::io, "no store could be read: nothing was merged");
  auto store = Store::open(arguments.into);
  std::optional<Merged> merged = store->merge(sources.contents, rule_of_this_build());
  print_problems(*store);
  if (!merged) throw Error(ErrorCode::io, fmt::format("the store '{}' could not be written: nothing was merged", arguments.into));
  const int blocked = blocked_winners(*merged, *store);
  if (blocked > 0) fmt::print(stderr, "{} of the winners name kernels that a machine found wrong or crashing and do not answer: pagetune tune on the merged store measures their buckets again\n", blocked);
  if (arguments.json) {
    fmt::print("{}\n", Json{{"store", store->dir()},
                            {"sources", sources.report},
                            {"winners", merged->rows.size()},
                            {"added", merged->added},
                            {"replaced", merged->replaced},
                            {"blocked", merged->blocks.size()},
                            {"blocked_winners", blocked},
                            {"conflicts", conflicts_json(merged->conflicts)}}
                           .dump(2));
  } else {
    print_conflicts(merged->conflicts);
    fmt::print("{} merged into {}: {}, {} of them new and {} replaced; {}; {}\n", counted(std::ssize(sources.contents), "store"), store->dir(), counted(std::ssize(merged->rows), "winner"), merged->added,
               merged->replaced, counted(std::ssize(merged->blocks), "blocked config"), counted(std::ssize(merged->conflicts), "conflict"));
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
