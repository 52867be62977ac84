// A lock per key between processes, which the kernel releases when its holder dies.
//
// All keys share one file, compile.lock: a key locks the one byte whose offset its sha256 gives (an "open file description" lock, which
// also keeps threads of one process apart). So different keys never wait for each other, nothing has to be cleaned up after a crash, no
// file is ever unlinked under a waiter, and the file stays empty for ever. One lock file per key has none of these properties.
#pragma once
#include <chrono>
#include <string>

namespace pagetune {

class KeyLock {
 public:
  // Waits `limit` at most. Without the lock (time over, no such file system, read-only directory) held() is false and work goes on: a
  // compile done twice is cheap, a hang is not.
  KeyLock(const std::string& dir, const std::string& key, std::chrono::milliseconds limit);
  ~KeyLock();
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

  bool held() const { return held_; }

 private:
  int fd_ = -1;
  bool held_ = false;
};

}  // namespace pagetune
