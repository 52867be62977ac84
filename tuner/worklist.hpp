// The work list of a model, or of what kernels counted, on a target: (spec, bucket) pairs, and in words what was left out. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache_db/store.hpp"
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
  uint64_t hits = 0;        // calls that were counted, if that is why it is here
};

struct LeftOut {
  std::string what;    // "layers 0-31", "bucket 64x32768"
  std::string reason;  // one sentence
};

struct WorkList {
  std::vector<Work> works;       // those of one spec together; no pair twice. Of a model: in its order, then by bucket
  std::vector<LeftOut> refused;  // layer groups, or specs, that supports() refuses
  std::vector<LeftOut> skipped;  // buckets that do not fit
};

// kv_limit_bytes: the most K and V that a bucket's problem may hold; 0: no limit.
WorkList work_list(const ModelAttention&, const Target&, const Grid&, int64_t kv_limit_bytes);

// What kernels counted on devices of one environment. Who had the most K and V to read comes first: the specs, and the buckets of one.
WorkList untuned_list(const std::vector<Store::Untuned>&, const std::string& env_key, const Target&, int64_t kv_limit_bytes);

// "0-3, 5": ascending indices as ranges.
std::string ranges_text(const std::vector<int>& indices);
// "32/8 heads, dim 128, page 16, bf16, nhd"
std::string spec_text(const AttentionSpec&);

}  // namespace pagetune
