// What a frozen process does with a kernel that is not loaded yet.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "codegen/config.hpp"
#include "pagetune/pagetune.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

class Freezer {
 public:
  void set(Freeze policy) { policy_.store(policy, std::memory_order_relaxed); }
  bool refuses() const { return policy_.load(std::memory_order_relaxed) == Freeze::error; }
  // A kernel is about to be compiled or loaded. Error not_prepared if the policy is error.
  void miss(const AttentionSpec&, const KernelConfig&);
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Freeze> policy_{Freeze::off};
  std::atomic<uint64_t> misses_{0};
  std::mutex mutex_;
  std::set<std::string> said_;  // kernels
};

// Of the process.
Freezer& freezer();

}  // namespace pagetune
