// Who answers a call: every source that dispatch asks, in its order, with its row and why it answers or does not. Pure.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache_db/blocklist.hpp"
#include "cache_db/store.hpp"
#include "codegen/target.hpp"
#include "runtime/dispatch.hpp"
#include "tuner/policy.hpp"

namespace pagetune {

// What is stored for a spec on a device.
struct StoredRows {
  std::vector<LayeredWinner> winners;  // Store::layered_winners()
  Blocklist blocked;
  std::vector<Store::Row> rows;        // Store::rows_of(): how they were measured
  std::string env_key;                 // of the device
};

struct SourceAnswer {
  Source source = Source::analytic_default;
  bool answers = false;
  std::string why;                   // it does, or does not: one sentence
  std::optional<Winner> winner;      // the row it would answer with, whether or not it does
  std::vector<std::string> remarks;  // on that row: what has changed since it was measured; one sentence each
};

// Four: the bucket's winner, the nearest winner, the nearest of another device of the class, the analytic default. Just one answers, the one that a dispatch table of these winners selects.
std::vector<SourceAnswer> answers_of(const AttentionSpec&, const Target&, const MeasurePolicy&, const StoredRows&, const CallShape&);

}  // namespace pagetune
