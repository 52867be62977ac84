// Reading an exported JSON table: outside data, so everything in it is checked before anything is given back.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/target.hpp"

namespace pagetune {

inline constexpr size_t kLargestTable = size_t{4} << 20;  // bytes; the whole grid with long reasons stays far below it

// All rows of one table, sorted by bucket. `file` only names the input in messages.
// Error invalid_argument naming the file and the line or key: malformed text, a key that is unknown, missing or stands twice, a wrong type
// or range, a digest that does not match, a config that the space does not admit for the spec on the environment's target.
std::vector<Store::Row> parse_table(const std::string& file, const std::string& text);

// The target whose kernels an environment runs, as far as supports() asks: for tables of devices that are not here.
Target target_of(const Environment&);

}  // namespace pagetune
