// The winners of several stores as one. Pure, and a join: in whatever order stores come, in one step or several, once or twice, the result is the same.
//
// Of the rows of one environment, spec and bucket the first by this order is kept:
//   1. measured by this build's generator, config space and policy, before one that was not (hashes have no age: others are equal among themselves);
//   2. the smaller upper end of the 95 % interval of its median;
//   3. the smaller canonical bytes.
// An environment's memory size is recorded but not part of its identity: the largest is kept. All blocked configs are kept; of two reasons for one config
// the one of this build, then the smaller text. A block does not change which row is kept, since a block that is met only in a later step could not
// bring back what an earlier step dropped.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

// What only the caller can know.
struct MergeRule {
  std::function<bool(const Store::Row&)> is_current;                // measured as this build would measure
  std::function<bool(const std::string& reason)> block_is_current;  // blocked by this build
};

struct MergeSource {
  std::string name;  // for messages
  std::vector<Store::Row> rows;
  std::vector<Store::Block> blocks;
};

// Two rows of one environment, spec and bucket, both current or both not, with different configs and intervals that do not overlap.
struct Conflict {
  Store::Row kept, other;
  std::string kept_from, other_from;  // names of sources; of several with the row, the smallest
};

struct Merged {
  std::vector<Store::Row> rows;      // sorted by environment, spec, bucket
  std::vector<Store::Block> blocks;  // sorted by environment, spec, config
  std::vector<Conflict> conflicts;   // sorted as the rows
  int added = 0, replaced = 0;       // against what the store held that took the rows in; merged() leaves them 0
};

Merged merged(const std::vector<MergeSource>&, const MergeRule&);

}  // namespace pagetune
