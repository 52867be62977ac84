// Takes out of a store's files what is wrong in them. What is right stays, also where a whole file has to be started anew.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache_db/inspection.hpp"
#include "cache_db/problems.hpp"

namespace pagetune {

struct FileRepair {
  std::string path;
  bool done = false;            // nothing wrong is left in it; if not, `problems` says why
  bool renewed = false;         // it was damaged: set aside, and a new one was started
  std::vector<WrongRow> removed;
};

// Repairs each file that `found` calls damaged, unfinished or wrong in some row, in one transaction per file. A new winners.db gets the winners and blocks that `found` could read.
// Files that are not the store's to use are left as they are.
std::vector<FileRepair> repair_store(const std::string& dir, const StoreReport& found, Problems&);

}  // namespace pagetune
