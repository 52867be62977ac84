// The work list of a model on a target: (spec, bucket) pairs, and in words what was left out. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/bucket.hpp"
#include "codegen/import/model_config.hpp"
#include "codegen/target.hpp"

namespace pagetune {

// Batches and lengths to tune for. Each pair falls into one bucket.
struct Grid {
  std::vector<int> batches;
  std::vector<int> lens;
  bool lens_asked_for = false;  // by the user: not limited to the model's max_position
};
Grid default_grid(Backend);

struct Work {
  AttentionSpec spec;
  Bucket bucket;
  std::vector<int> layers;  // of the model, for messages
};

struct LeftOut {
  std::string what;    // "layers 0-31", "bucket 64x32768"
  std::string reason;  // one sentence
};

struct WorkList {
  std::vector<Work> works;       // by spec in the order of the model, then by bucket; no pair twice
  std::vector<LeftOut> refused;  // layer groups that supports() refuses
  std::vector<LeftOut> skipped;  // buckets that do not fit
};

// kv_limit_bytes: the most K and V that a bucket's problem may hold; 0: no limit.
WorkList work_list(const ModelAttention&, const Target&, const Grid&, int64_t kv_limit_bytes);

// "0-3, 5": ascending indices as ranges.
std::string ranges_text(const std::vector<int>& indices);
// "32/8 heads, dim 128, page 16, bf16, nhd"
std::string spec_text(const AttentionSpec&);

}  // namespace pagetune
