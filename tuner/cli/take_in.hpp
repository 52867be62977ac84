// Winners from elsewhere into a store: what merge and import share.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache_db/merge.hpp"

namespace pagetune::cli {

struct TakenIn {
  std::string store;  // its directory
  Merged merged;
  int blocked = 0;    // winners whose kernels a machine found wrong
};

// By the one rule of merging. Says what the store worked around and how many winners are blocked. Error io if nothing could be written.
TakenIn take_in(const std::string& store, const std::vector<MergeSource>&);

// "winners", "added", "replaced", "blocked", "blocked_winners", "conflicts"
nlohmann::ordered_json taken_json(const TakenIn&);
void print_conflicts(const std::vector<Conflict>&);

}  // namespace pagetune::cli
