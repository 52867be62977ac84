#include "tuner/cli/take_in.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "cache_db/blocklist.hpp"
#include "cache_db/store.hpp"
#include "cache_db/table.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/winners_view.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

MergeRule rule_of_this_build() {
  MergeRule rule;
  rule.is_current = [](const Store::Row& row) {
    Target target = target_of(row.environment);
    return is_current(row.winner, row.spec, target, MeasurePolicy::for_backend(target.backend));
  };
  rule.block_is_current = Blocklist::is_of_this_build;
  return rule;
}

std::string interval_text(const Winner& w) { return fmt::format("{:.2f} to {:.2f}", w.ci_low_us, w.ci_high_us); }

std::string config_text(const KernelConfig& config) { return fmt::format("V{}, splits {}, {}", config.variant(), config.num_splits(), shape_text(config)); }

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

}  // namespace

void print_conflicts(const std::vector<Conflict>& conflicts) {
  if (conflicts.empty()) return;
  Table table({"device", "kernel", "batch x len", "", "config", ">95 % interval us", "from"});
  for (const Conflict& conflict : conflicts) {
    table.add({conflict.kept.environment.file_name(), spec_text(conflict.kept.spec), conflict.kept.winner.bucket.text(), "kept", config_text(conflict.kept.winner.config),
               interval_text(conflict.kept.winner), conflict.kept_from});
    table.add({"", "", "", "other", config_text(conflict.other.winner.config), interval_text(conflict.other.winner), conflict.other_from});
  }
  fmt::print("{}: other configs, and times that exclude each other. Were all machines alike and idle?\n{}\n", counted(conflicts.size(), "conflict"), table.text());
}

Json taken_json(const TakenIn& taken) {
  return {{"winners", taken.merged.rows.size()},
          {"added", taken.merged.added},
          {"replaced", taken.merged.replaced},
          {"blocked", taken.merged.blocks.size()},
          {"blocked_winners", taken.blocked},
          {"conflicts", conflicts_json(taken.merged.conflicts)}};
}

TakenIn take_in(const std::string& directory, const std::vector<MergeSource>& sources) {
  auto store = Store::open(directory);
  std::optional<Merged> merged = store->merge(sources, rule_of_this_build());
  print_problems(*store);
  if (!merged) throw Error(ErrorCode::io, fmt::format("the store '{}' could not be written: nothing was merged", store->dir()));
  TakenIn taken{store->dir(), std::move(*merged), 0};
  taken.blocked = blocked_winners(taken.merged, *store);
  if (taken.blocked > 0) fmt::print(stderr, "{} of the winners name kernels that a machine found wrong or crashing and do not answer: pagetune tune on the merged store measures their buckets again\n", taken.blocked);
  return taken;
}

}  // namespace pagetune::cli
