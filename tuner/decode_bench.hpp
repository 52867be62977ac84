// Measures configs and ways of decoding one problem side by side.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/bucket.hpp"
#include "runtime/device.hpp"
#include "runtime/dispatch.hpp"
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
  int prepared_len = 0;         // as in BenchOptions
  bool all_pages = false;       // as in BenchOptions
};

// The lengths of a cell's sequences: all `len`, or, ragged, spread evenly on a log scale from len / 16 to len, in an order that is the same
// each time but not sorted.
std::vector<int> lengths_of(const DecodeCell&);
// What a launch of the cell is to the dispatch table.
CallShape call_shape(const DecodeCell&);

// A config for a bucket and where it comes from.
struct Chosen {
  KernelConfig config;
  bool tuned = false;
};
// Which config an engine would get. Each spec's winners are read once: make a new one after tuning.
class ConfigChooser {
 public:
  // Keeps the references.
  ConfigChooser(const Device& device, const Store& store) : device_(device), store_(store) {}
  // `which`: "tuned" (what dispatch picks), "default" (without any measurement), or "both", the default left out where it is what dispatch picks.
  std::vector<Chosen> choose(const std::string& which, const AttentionSpec&, const CallShape&);

 private:
  const Device& device_;
  const Store& store_;
  std::unordered_map<AttentionSpec, DispatchTable, AttentionSpecHash> tables_;
};

struct Measured {
  KernelConfig config;
  double median_us = 0, min_us = 0;  // per launch
  int64_t kv_bytes = 0;              // that a launch must read
  double error = 0;                  // |out - ref| / |ref| on a sample of (sequence, KV head) pairs
  bool correct = false;
  std::string what;                  // what is wrong
};

// Seconds by what was done.
struct BenchSeconds {
  double building = 0, problems = 0, checks = 0, timing = 0;
};

struct MeasureOptions {
  size_t memory_limit = 0;          // as in BenchOptions, of one problem
  KvPool* pool = nullptr;
  BenchSeconds* seconds = nullptr;  // added to
};

// One way to do a problem: a launch of one kernel, or launches of several, one after the other.
struct Pass {
  size_t cell = 0;  // index into the cells
  KernelConfig config;
};
using Way = std::vector<Pass>;

// Interleaved samples (A B A B …) of all ways, each launch checked against the oracle first; a way with a wrong one is not timed. Ways that name
// one cell share its problem. Of a way with several passes, times and bytes are those of all its passes, the error is the largest.
std::vector<Measured> measure_ways(Device&, Store&, const std::vector<DecodeCell>& cells, const std::vector<Way>&, const MeasurePolicy&, const MeasureOptions& = {});

// The same for several configs of one cell.
std::vector<Measured> measure_decode(Device&, Store&, const DecodeCell&, const std::vector<KernelConfig>&, const MeasurePolicy&, const MeasureOptions& = {});

}  // namespace pagetune
