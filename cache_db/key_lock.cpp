#include "cache_db/key_lock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "cache_db/directory.hpp"
#include "codegen/sha256.hpp"

namespace pagetune {

KeyLock::KeyLock(const std::string& dir, const std::string& key, std::chrono::milliseconds limit) {
  if (dir == kMemory) return;
  fd_ = open((dir + "/compile.lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd_ < 0) return;
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(std::stoull(sha256_hex(key).substr(0, 15), nullptr, 16));  // 60 bits: always positive
  range.l_len = 1;
  auto end = std::chrono::steady_clock::now() + limit;
  auto pause = std::chrono::milliseconds(1);
  while (fcntl(fd_, F_OFD_SETLK, &range) != 0) {
    bool taken = errno == EAGAIN || errno == EACCES || errno == EINTR;
    if (!taken || std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  held_ = true;
}

KeyLock::~KeyLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace pagetune
