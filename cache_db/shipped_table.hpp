// The winners.db that comes with pagetune: read only, without a lock or a trace, and taken as data from outside.
#pragma once
#include <string>
#include <vector>

#include "cache_db/problems.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

class ShippedTable {
 public:
  explicit ShippedTable(Problems& problems) : problems_(problems), path_(default_path()) {}

  // PAGETUNE_SYSTEM_DB if set (empty: none), else pagetune/winners.db or ../share/pagetune/winners.db beside the library or program that this code is in; empty if there is none.
  static std::string default_path();

  // Rows whose digest is right and whose config the space admits. Opened anew each time: a new release may replace the file.
  std::vector<Store::Row> rows_of(const std::string& spec_key) const;  // empty: of all specs

 private:
  Problems& problems_;
  const std::string path_;
};

}  // namespace pagetune
