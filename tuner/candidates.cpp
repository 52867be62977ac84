#include "tuner/candidates.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "cache_db/blocklist.hpp"
#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"

namespace pagetune {

void count_reason(std::vector<std::pair<std::string, int>>& reasons, const std::string& reason, int count) {
  auto found = std::find_if(reasons.begin(), reasons.end(), [&](const auto& entry) { return entry.first == reason; });
  if (found == reasons.end())
    reasons.emplace_back(reason, count);
  else
    found->second += count;
}

std::string reasons_text(const std::vector<std::pair<std::string, int>>& reasons) {
  std::string text;
  for (const auto& [reason, count] : reasons) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", count, reason);
  return text;
}

CandidateSet candidates_of(const Work& work, const Target& target, const Store& store, const std::string& env_key) {
  CandidateSet set;
  ConfigSpace::Candidates space = ConfigSpace::builtin().candidates(work.spec, target, work.bucket);
  set.total = space.total;
  set.rejected = space.pruned;
  set.default_config = default_config(work.spec, target, work.bucket);

  std::string key = spec_key(work.spec);
  std::vector<KernelConfig> ordered{set.default_config};
  for (const Winner& winner : store.winners(env_key, key))
    if (winner.bucket == work.bucket && supports(work.spec, winner.config, target)) {
      set.incumbent = winner.config;
      ordered.push_back(winner.config);
    }
  ordered.insert(ordered.end(), space.configs.begin(), space.configs.end());

  const Blocklist blocked(store, env_key, key);
  std::set<KernelConfig> seen;
  for (const KernelConfig& config : ordered) {
    if (!seen.insert(config).second) continue;
    if (blocked.reason(config) != nullptr)
      count_reason(set.rejected, "blocked by an earlier session: wrong or crashing");
    else
      set.configs.push_back(config);
  }
  return set;
}

}  // namespace pagetune
