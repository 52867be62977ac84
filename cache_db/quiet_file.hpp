// A database that must stay as it is: read without a lock, without a journal's replay and without a file made beside it. So it may be another machine's, on a medium that
// cannot be written, or damaged. What a running process writes meanwhile shows in the stamp.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace pagetune {

std::unique_ptr<SQLite::Database> open_quietly(const std::string& path);

// Bytes of the file beside a database whose name ends so ("-journal", "-wal"), in which writes stand that are not finished; 0 if there is none.
int64_t side_bytes(const std::string& path, const char* suffix);

// What of a file another process's write changes. Nothing, and errno, if it cannot be looked at.
struct FileStamp {
  ino_t inode = 0;
  int64_t bytes = 0, seconds = 0, nanoseconds = 0;  // of the last write
  bool regular = false;
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::string& path);

}  // namespace pagetune
