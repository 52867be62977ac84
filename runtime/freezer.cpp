#include "runtime/freezer.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "pagetune/error.hpp"

namespace pagetune {

void Freezer::miss(const AttentionSpec& spec, const KernelConfig& config) {
  const Freeze policy = policy_.load(std::memory_order_relaxed);
  if (policy == Freeze::off) return;
  misses_.fetch_add(1, std::memory_order_relaxed);
  const std::string kernel = fmt::format("{} of spec {}", config.canonical_json(), canonical_json(spec));
  if (policy == Freeze::error)
    throw Error(ErrorCode::not_prepared, fmt::format("pagetune is frozen, and kernel {} is not loaded: prepare() all kernels for the largest batch and length before freeze(), or freeze with warn", kernel));
  const std::lock_guard lock(mutex_);
  if (said_.insert(kernel).second) fmt::print(stderr, "pagetune: frozen, but kernel {} had to be loaded: prepare() it before freeze()\n", kernel);
}

Freezer& freezer() {
  static Freezer one;
  return one;
}

}  // namespace pagetune
