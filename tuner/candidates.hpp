// The candidates of a work: the space's, the analytic default and the incumbent, without those that are blocked.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "tuner/worklist.hpp"

namespace pagetune {

struct CandidateSet {
  std::vector<KernelConfig> configs;                  // the default first; no config twice
  KernelConfig default_config;
  KernelConfig incumbent;                             // empty: none
  int total = 0;                                      // before pruning
  std::vector<std::pair<std::string, int>> rejected;  // reason -> how many
};

CandidateSet candidates_of(const Work&, const Target&, const Store&, const std::string& env_key);

// Adds to a reason's count.
void count_reason(std::vector<std::pair<std::string, int>>& reasons, const std::string& reason, int count = 1);
// "12 by shared memory, 3 spill registers"
std::string reasons_text(const std::vector<std::pair<std::string, int>>& reasons);

}  // namespace pagetune
