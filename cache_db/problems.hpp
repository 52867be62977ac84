// What went wrong with the disk and was worked around, in sentences for people. Thread-safe.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "cache_db/fork_safe_mutex.hpp"

namespace pagetune {

class Problems {
 public:
  // The same sentence is kept once.
  void say(const std::string& sentence);
  std::vector<std::string> all() const;

 private:
  mutable ForkSafeMutex mutex_{LockLevel::problems};
  std::vector<std::string> sentences_;
};

}  // namespace pagetune
