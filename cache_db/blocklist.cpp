#include "cache_db/blocklist.hpp"

#include <fmt/format.h>

#include "codegen/generate.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune {
namespace {

std::string mark() { return fmt::format("(generator {})", generator_hash().substr(0, 12)); }

}  // namespace

Blocklist::Blocklist(const std::vector<std::pair<KernelConfig, std::string>>& blocked) {
  for (const auto& [config, why] : blocked)
    if (is_of_this_build(why)) reasons_.emplace(shape_of(config), why);
}

const std::string* Blocklist::reason(const KernelConfig& config) const {
  const auto found = reasons_.find(shape_of(config));
  return found == reasons_.end() ? nullptr : &found->second;
}

std::string Blocklist::text(const std::string& what) { return what + " " + mark(); }

bool Blocklist::is_of_this_build(const std::string& text) { return text.find(mark()) != std::string::npos; }

bool BlockedWinners::has(const Winner& winner) {
  auto [at, first] = known_.try_emplace({winner.env_key, winner.spec_key});
  if (first) at->second = Blocklist(store_, winner.env_key, winner.spec_key);
  return at->second.reason(winner.config) != nullptr;
}

}  // namespace pagetune
