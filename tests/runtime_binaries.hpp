// What the tests and the helper program prepare, and which binaries that takes.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "codegen/default_config.hpp"
#include "pagetune/spec.hpp"
#include "runtime/device.hpp"
#include "runtime/dispatch.hpp"

namespace pagetune {

// Large enough that every device needs V1 and V2.
constexpr int kMaxBatch = 256, kMaxLen = 16384;

inline AttentionSpec served_spec(int head_dim, DType type) {
  AttentionSpec spec;
  spec.q_heads = 4;
  spec.kv_heads = 2;
  spec.head_dim_k = spec.head_dim_v = head_dim;
  spec.q_dtype = spec.kv_dtype = spec.out_dtype = type;
  spec.lse = true;
  return spec;
}
inline std::vector<AttentionSpec> served_specs() { return {served_spec(64, DType::bf16), served_spec(64, DType::fp16), served_spec(128, DType::bf16)}; }

// Distinct keys over all buckets within the maxima, without winners.
inline int64_t binaries_of(const Device& device, const std::vector<AttentionSpec>& specs) {
  std::set<std::string> keys;
  for (const AttentionSpec& spec : specs)
    for (const CallShape& call : DispatchTable::reachable(kMaxBatch, kMaxLen))
      keys.insert(binary_key(generate(spec, default_config(spec, device.target(), call), device.target()), device.compiler().identity()));
  return static_cast<int64_t>(keys.size());
}

}  // namespace pagetune
