// Measures configs of one decode problem side by side.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"
#include "runtime/device.hpp"
#include "tuner/bench_problem.hpp"
#include "tuner/policy.hpp"

namespace pagetune {

struct DecodeCell {
  AttentionSpec spec;
  int batch = 1;
  int len = 1;          // of the longest sequence
  bool ragged = false;
  BenchFeatures features = {};  // of the spec: windows by KV head, …
  unsigned flags = 0;           // PT_LAUNCH_…
};

// The lengths of a cell's sequences: all `len`, or, ragged, spread evenly on a log scale from len / 16 to len, in an order that is the same
// each time but not sorted.
std::vector<int> lengths_of(const DecodeCell&);

struct Measured {
  KernelConfig config;
  double median_us = 0, min_us = 0;  // per launch
  int64_t kv_bytes = 0;              // that a launch must read
  double error = 0;                  // |out - ref| / |ref| on a sample of (sequence, KV head) pairs
  bool correct = false;
  std::string what;                  // what is wrong
};

// Interleaved samples (A B A B …) of all configs on one problem, each checked against the oracle first; a wrong one is not timed.
std::vector<Measured> measure_decode(Device&, Store&, const DecodeCell&, const std::vector<KernelConfig>&, const MeasurePolicy&);

}  // namespace pagetune
