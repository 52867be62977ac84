#include "cache_db/problems.hpp"

#include <algorithm>

namespace pagetune {

void Problems::say(const std::string& sentence) {
  std::lock_guard lock(mutex_);
  if (std::find(sentences_.begin(), sentences_.end(), sentence) == sentences_.end()) sentences_.push_back(sentence);
}

std::vector<std::string> Problems::all() const {
  std::lock_guard lock(mutex_);
  return sentences_;
}

}  // namespace pagetune
