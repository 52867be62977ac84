// Decode problems, from host data to a verdict: one include for the tuner, the tests and the benches.
#pragma once
#include "tuner/bench_problem.hpp"    // IWYU pragma: export
#include "tuner/device_problem.hpp"   // IWYU pragma: export
#include "tuner/host_problem.hpp"     // IWYU pragma: export
#include "tuner/oracle.hpp"           // IWYU pragma: export
#include "tuner/verify.hpp"           // IWYU pragma: export
