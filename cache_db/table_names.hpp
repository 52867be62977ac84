// Winners as tables of one environment and spec each, and what their files are called.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

struct NamedTable {
  std::string name;               // without an extension
  std::vector<Store::Row> rows;  // sorted by bucket
};

// Sorted by name. The names are those that export.hpp describes.
std::vector<NamedTable> named_tables(std::vector<Store::Row> rows);

}  // namespace pagetune
