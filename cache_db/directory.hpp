// The cache directory: where it is, whether it may be trusted, and the lock under which its files are created or set aside.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "cache_db/problems.hpp"

namespace pagetune {

inline constexpr const char* kMemory = ":memory:";
// ":memory:" and "/dev/null": nothing is to be kept.
bool is_memory(const std::string& wanted);

// Which directory holds the store unless a caller names one, and which rule says so: "PAGETUNE_CACHE_DIR", "XDG_CACHE_HOME", "HOME" or "none".
struct DefaultDirectory {
  std::string path, rule;
};
DefaultDirectory default_directory();

// Absolute path of a directory that belongs to this user (or root) and that nobody else can write, made with mode 0700 if need be;
// kMemory with a sentence in `problems` otherwise. Memory by wish is no problem.
std::string open_directory(const std::string& wanted, Problems& problems);

// Why a path that exists must not be trusted: a link, a foreign owner, writable by others. Empty if it may be.
enum class PathKind { directory, file };
std::string distrust(const std::string& path, PathKind);

// All bytes of a file that is to be trusted as the store's own are. Error io, naming the path, if it must not be, has more than `most` bytes or cannot be read.
std::string read_trusted_file(const std::string& path, size_t most);

// flock() on the directory itself: needs no file of its own, works where nothing can be written and ends with its holder. Where the
// file system has no such lock, or after `limit`, work goes on without.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& dir, std::chrono::milliseconds limit = std::chrono::seconds(10));
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  bool possible() const { return possible_; }  // false: the file system gives no locks at all, as NFS without a lock daemon

 private:
  int fd_ = -1;
  bool possible_ = true;
};

}  // namespace pagetune
