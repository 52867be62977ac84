// The one maker of decode specs for the tests: one dtype and one head dim throughout.
#pragma once
#include "pagetune/spec.hpp"

namespace pagetune {

inline AttentionSpec uniform_spec(int q_heads, int kv_heads, int head_dim, int page_size, DType type, bool lse) {
  AttentionSpec spec;
  spec.q_heads = q_heads;
  spec.kv_heads = kv_heads;
  spec.head_dim_k = spec.head_dim_v = head_dim;
  spec.page_size = page_size;
  spec.q_dtype = spec.kv_dtype = spec.out_dtype = type;
  spec.lse = lse;
  return spec;
}

}  // namespace pagetune
