// What the pretended workers of tests/tuner_worker_helper.cpp do, and what the tests ask of them.
#pragma once
#include <cmath>
#include <map>
#include <string>

#include "codegen/config.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune::testing_support {

inline double pretended_us(const KernelConfig& config) {
  return 20 + config.at("NUM_WARPS") + std::abs(std::log2(config.num_splits() / 4.0)) + (config.variant() == 1 ? 10 : 0);
}

// shape_of(config) as canonical JSON -> "STEP FAULT": at STEP (compile, build, verify, sample) its worker does FAULT. With " once" at the first time only.
using Faults = std::map<std::string, std::string>;

}  // namespace pagetune::testing_support
