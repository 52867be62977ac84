#include "cache_db/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cache_db/store.hpp"

namespace pagetune {
namespace {

constexpr const char* kRemedy = "set PAGETUNE_CACHE_DIR to a directory of your own; results are kept in memory only";

std::string absolute_env(const char* name) {
  const char* value = std::getenv(name);
  // The XDG specification: relative paths are invalid and to be ignored.
  return value && value[0] == '/' ? value : "";
}

// Like mkdir -p -m 0700; returns errno.
int make_directories(const std::filesystem::path& path) {
  std::filesystem::path prefix;
  for (const auto& part : path) {
    prefix /= part;
    if (mkdir(prefix.c_str(), 0700) == 0 || errno == EEXIST) continue;
    struct stat info {};
    if (stat(prefix.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;  // e.g. EROFS above a directory that exists
    return errno == ENOENT ? EROFS : errno;
  }
  return 0;
}

}  // namespace

DefaultDirectory default_directory() {
  if (const char* set = std::getenv("PAGETUNE_CACHE_DIR"); set && *set) return {set, "PAGETUNE_CACHE_DIR"};
  if (std::string base = absolute_env("XDG_CACHE_HOME"); !base.empty()) return {base + "/pagetune", "XDG_CACHE_HOME"};
  if (std::string home = absolute_env("HOME"); !home.empty()) return {home + "/.cache/pagetune", "HOME"};
  return {kMemory, "none"};
}

std::string Store::default_dir() { return default_directory().path; }

bool is_memory(const std::string& wanted) { return wanted == kMemory || wanted == "/dev/null"; }

std::string distrust(const std::string& path, PathKind kind) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return std::strerror(errno);
  if (kind == PathKind::directory && !S_ISDIR(info.st_mode)) return "it is not a directory";
  if (kind == PathKind::file && !S_ISREG(info.st_mode)) return "it is not a regular file";
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return fmt::format("it belongs to user {}, not to user {} or root", info.st_uid, geteuid());
  if (info.st_mode & 022) return fmt::format("others can write it (mode {:04o}); chmod go-w it", info.st_mode & 07777);
  return "";
}

std::string open_directory(const std::string& wanted, Problems& problems) {
  if (is_memory(wanted)) return kMemory;
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(wanted, error);
  if (error) {
    problems.say(fmt::format("cache directory {}: {}; {}", wanted, error.message(), kRemedy));
    return kMemory;
  }
  if (int code = make_directories(path); code != 0) {
    problems.say(fmt::format("cache directory {} cannot be made: {}; {}", path.string(), std::strerror(code), kRemedy));
    return kMemory;
  }
  std::filesystem::path real = std::filesystem::canonical(path, error);
  std::string reason = error ? error.message() : distrust(real.string(), PathKind::directory);
  if (!reason.empty()) {
    problems.say(fmt::format("cache directory {} is not used: {}; {}", path.string(), reason, kRemedy));
    return kMemory;
  }
  return real.string();
}

DirectoryLock::DirectoryLock(const std::string& dir, std::chrono::milliseconds limit) {
  fd_ = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) return;
  auto end = std::chrono::steady_clock::now() + limit;
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    possible_ = errno != ENOLCK;
    if ((errno != EWOULDBLOCK && errno != EINTR) || std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace pagetune
