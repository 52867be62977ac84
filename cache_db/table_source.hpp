// An exported JSON table as what a store takes in.
#pragma once
#include <string>

#include "cache_db/merge.hpp"

namespace pagetune {

// All rows of the table, and no blocks. Error io if the file cannot be read, invalid_argument naming the file and the line or key if anything in it is not as parse_table() and
// row_refusal() want it.
MergeSource read_table(const std::string& path);

}  // namespace pagetune
