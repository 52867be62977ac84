// kernels.db: compiled code by key, bounded in bytes, checked on every read.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/database.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

inline constexpr int64_t kMostBinaryBytes = int64_t{512} << 20;  // of data

Schema kernels_schema();

// Deletes binaries, the least recently used first, until those that are left have `limit` bytes of data at most; never the one with the key `kept`.
void evict(SQLite::Database&, const std::string& kept, int64_t limit);

class BinaryTable {
 public:
  // limit: bytes of data kept. The least recently used go first, by day: a finer order would cost a write per read.
  BinaryTable(const std::string& dir, Problems& problems, int64_t limit = kMostBinaryBytes);

  bool usable() { return db_.usable(); }
  std::optional<Binary> find(const std::string& key);
  void put(const Binary&);
  std::vector<Binary> all();                                    // see Store::all_binaries()
  std::optional<int> add(const std::vector<Binary>& binaries);  // see Store::add_binaries()
  uint64_t corrupt() const { return corrupt_; }
  struct Usage {
    int64_t count = 0, bytes = 0;
  };
  std::optional<Usage> usage();

 private:
  void remove_damaged(const std::string& key);

  Problems& problems_;
  Database db_;
  const int64_t limit_;
  std::atomic<uint64_t> corrupt_{0};
};

bool is_binary_kind(const std::string&);
// Error invalid_argument unless key, arch and kind are there and sha256 is that of data.
void check_binary(const Binary&);

}  // namespace pagetune
