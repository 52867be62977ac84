#include "cache_db/quiet_file.hpp"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cctype>
#include <cstring>

namespace pagetune {
namespace {

std::string uri_of(const std::string& path) {
  std::string uri = "file:";
  for (char c : path) uri += std::isalnum(static_cast<unsigned char>(c)) || std::strchr("/._-", c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return uri + "?immutable=1";  // no locks, no journal, no files beside it
}

}  // namespace

std::unique_ptr<SQLite::Database> open_quietly(const std::string& path) {
  auto db = std::make_unique<SQLite::Database>(uri_of(path), SQLite::OPEN_READONLY | SQLite::OPEN_URI);
  sqlite3_db_config(db->getHandle(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  for (const char* setting : {"trusted_schema=0", "cell_size_check=1", "query_only=1", "temp_store=2"}) db->exec(fmt::format("PRAGMA {}", setting));
  return db;
}

int64_t side_bytes(const std::string& path, const char* suffix) {
  struct stat info {};
  return stat((path + suffix).c_str(), &info) == 0 ? info.st_size : 0;
}

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileStamp{info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec, S_ISREG(info.st_mode)};
}

}  // namespace pagetune
