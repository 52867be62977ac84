// The kernels of one spec on one device that must never run: wrong or crashing.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/config.hpp"

namespace pagetune {

// Blocked is a binary, and so every config of its shape. Another generator's kernels are other kernels and get another chance.
class Blocklist {
 public:
  Blocklist() = default;
  explicit Blocklist(const std::vector<std::pair<KernelConfig, std::string>>& blocked);  // as Store::blocked() gives them
  Blocklist(const Store& store, const std::string& env_key, const std::string& spec_key) : Blocklist(store.blocked(env_key, spec_key)) {}

  // Why a config is blocked, or null.
  const std::string* reason(const KernelConfig&) const;

  // What Store::block() is to store: what went wrong, and this build's generator.
  static std::string text(const std::string& what);
  static bool is_of_this_build(const std::string& text);

 private:
  std::map<KernelConfig, std::string> reasons_;  // by shape
};

// Which stored winners are blocked; asks the store once for each device and spec.
class BlockedWinners {
 public:
  explicit BlockedWinners(const Store& store) : store_(store) {}
  bool has(const Winner&);

 private:
  const Store& store_;
  std::map<std::pair<std::string, std::string>, Blocklist> known_;  // by environment and spec
};

}  // namespace pagetune
