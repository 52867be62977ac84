// A config without its launch-time parameters: configs of one shape share one binary.
#pragma once
#include "codegen/config.hpp"

namespace pagetune {

inline KernelConfig shape_of(KernelConfig config) {
  config.set("NUM_SPLITS", 0);
  return config;
}

}  // namespace pagetune
