// A mutex that fork() takes before it copies the process, so that a child never inherits one that is held by a thread it does not
// have, nor an SQLite connection in the middle of a transaction (whose file locks the child would believe to own).
#pragma once
#include <mutex>

namespace pagetune {

// Mutexes nest in this order only, and two of one level never nest: fork() takes them all in this order.
enum class LockLevel { untuned, registry, single_flight, overlay, database, problems };

class ForkSafeMutex {
 public:
  explicit ForkSafeMutex(LockLevel);
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  LockLevel level() const { return level_; }

 private:
  std::mutex mutex_;
  LockLevel level_;
};

}  // namespace pagetune
