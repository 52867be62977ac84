// untuned.db: calls in buckets that no winner answers for, as kernels counted them. A hint for the tuner: what the file does not take is lost.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cache_db/database.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

inline constexpr const char* kUntunedColumns = "env_id, spec_key, batch, len, hits, last_day, environment, spec";
Schema untuned_schema();

// Nothing if the row is not one that add() wrote. Columns as in kUntunedColumns.
std::optional<Store::Untuned> read_untuned(SQLite::Statement& row);
// All of them likewise, sorted by (environment, spec, bucket).
std::vector<std::optional<Store::Untuned>> read_untuned_rows(SQLite::Database&);

class UntunedTable {
 public:
  UntunedTable(const std::string& dir, Problems& problems);

  // Adds the hits to those of before, and forgets what nobody called for kRememberedDays.
  void add(const std::vector<Store::Untuned>&);
  std::vector<Store::Untuned> all();  // sorted by (environment, spec, bucket)

  static constexpr int kRememberedDays = 90;

 private:
  Problems& problems_;
  Database db_;
};

}  // namespace pagetune
