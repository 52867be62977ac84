#include "cache_db/memory_binaries.hpp"

#include <mutex>

namespace pagetune {

std::optional<Binary> MemoryBinaries::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  by_use_.splice(by_use_.begin(), by_use_, found->second);
  return *found->second;
}

void MemoryBinaries::put(Binary binary) {
  binary.facts = {};
  std::lock_guard lock(mutex_);
  if (auto found = by_key_.find(binary.key); found != by_key_.end()) {
    bytes_ -= static_cast<int64_t>(found->second->data.size());
    by_use_.erase(found->second);
    by_key_.erase(found);
  }
  bytes_ += static_cast<int64_t>(binary.data.size());
  by_use_.push_front(std::move(binary));
  by_key_[by_use_.front().key] = by_use_.begin();
  while (bytes_ > limit_ && by_use_.size() > 1) {
    bytes_ -= static_cast<int64_t>(by_use_.back().data.size());
    by_key_.erase(by_use_.back().key);
    by_use_.pop_back();
  }
}

int64_t MemoryBinaries::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(by_use_.size());
}

int64_t MemoryBinaries::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace pagetune
