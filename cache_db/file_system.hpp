// What lies under a directory of the cache: the kind of file system, and what is left on it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace pagetune {

struct FileSystemKind {
  std::string name;      // "ext4"; "0x1234abcd" if it is not known here
  bool network = false;  // its locks may be none, or those of this machine alone
};
// magic: f_type of statfs(2).
FileSystemKind file_system_kind(uint64_t magic);

struct FileSystem {
  FileSystemKind kind;
  int64_t free_bytes = 0;                // for this user
  std::optional<int64_t> free_inodes;    // nothing where the file system does not count them
  bool read_only = false;
};
// Nothing, and errno, if the path cannot be looked at.
std::optional<FileSystem> file_system_of(const std::string& path);

}  // namespace pagetune
