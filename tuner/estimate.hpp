// How long a session will take, before anything is run.
#pragma once
#include <cstdint>

#include "codegen/target.hpp"
#include "tuner/policy.hpp"

namespace pagetune {

// Seconds for `shapes` binaries of one spec: compile on the pool, load, verify.
double build_seconds(int shapes, Backend, int host_threads);
// Seconds for one bucket's race among `candidates`, if the budget does not end it.
double race_seconds(int candidates, double kv_bytes, const MeasurePolicy&, double bytes_per_us);

}  // namespace pagetune
