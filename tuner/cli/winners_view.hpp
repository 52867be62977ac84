// Winners as people and programs read them.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache_db/store.hpp"

namespace pagetune::cli {

// The winners of one spec as a table, one line per bucket.
std::string winners_table(const AttentionSpec&, const std::vector<Winner>&);
nlohmann::ordered_json winner_json(const AttentionSpec&, const Winner&);
// "NUM_WARPS 4, TILE_KV 16": without variant and splits.
std::string shape_text(const KernelConfig&);

}  // namespace pagetune::cli
