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
#include "pagetune/error.hpp"

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

std::string distrust(const struct stat& info, PathKind kind) {
  if (kind == PathKind::directory && !S_ISDIR(info.st_mode)) return "it is not a directory";
  if (kind == PathKind::file && !S_ISREG(info.st_mode)) return "it is not a regular file";
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return fmt::format("it belongs to user {}, not to user {} or root", info.st_uid, geteuid());
  if (info.st_mode & 022) return fmt::format("others can write it (mode {:04o}); chmod go-w it", info.st_mode & 07777);
  return "";
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
  return lstat(path.c_str(), &info) == 0 ? distrust(info, kind) : std::strerror(errno);
}

// What is looked at is the file that was opened, whatever its name stands for a moment later. Without O_NONBLOCK the opening of a FIFO would wait for a writer.
std::string read_trusted_file(const std::string& path, size_t most) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat info {};
  const bool opened = fd >= 0 && fstat(fd, &info) == 0;
  std::string reason = opened ? distrust(info, PathKind::file) : errno == ELOOP ? "it is a link" : std::strerror(errno);
  if (opened ? !reason.empty() : errno == ELOOP) reason += " (what it holds is run as code: if you trust it, copy it to a file of your own and name that)";
  std::string bytes;
  if (reason.empty() && static_cast<uint64_t>(info.st_size) > most) reason = fmt::format("it has {} bytes; {} are allowed", info.st_size, most);
  if (reason.empty()) {
    bytes.resize(static_cast<size_t>(info.st_size));
    size_t at = 0;
    ssize_t got = 0;
    while ((got = read(fd, bytes.data() + at, bytes.size() - at)) > 0) at += static_cast<size_t>(got);
    if (got < 0) reason = std::strerror(errno);
    bytes.resize(at);
  }
  if (fd >= 0) close(fd);
  if (!reason.empty()) throw Error(ErrorCode::io, fmt::format("{} is not read: {}", path, reason));
  return bytes;
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
