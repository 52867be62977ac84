// Binaries that this process has seen: the second look at a key is a map look-up.
#pragma once
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "cache_db/fork_safe_mutex.hpp"
#include "codegen/binary.hpp"

namespace pagetune {

class MemoryBinaries {
 public:
  // limit: bytes of data kept; the least recently used go first.
  explicit MemoryBinaries(int64_t limit = int64_t{256} << 20) : limit_(limit) {}

  std::optional<Binary> find(const std::string& key);
  // Launch facts are dropped: they are read from the data by whoever uses it.
  void put(Binary);
  int64_t count() const;
  int64_t bytes() const;

 private:
  const int64_t limit_;
  mutable ForkSafeMutex mutex_{LockLevel::overlay};
  std::list<Binary> by_use_;  // most recent first
  std::unordered_map<std::string, std::list<Binary>::iterator> by_key_;
  int64_t bytes_ = 0;
};

}  // namespace pagetune
