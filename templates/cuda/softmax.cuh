// The online softmax of one warp over its units: 16 query rows, of which a lane holds two (row lane/4 and that plus 8).
#pragma once
#include "cuda/numeric.cuh"

struct Softmax {
  float maximum[2];  // base-2 logits, equal in the four lanes of a row
  float sum[2];      // this lane's part

  __device__ __forceinline__ void start() {
    maximum[0] = maximum[1] = minus_infinity();
    sum[0] = sum[1] = 0.f;
  }

  // Scores of kTiles n-tiles (8 tokens each) become weights. present: bit t set where token t exists. Returns the factors by which
  // what was accumulated so far must be scaled, and whether any of them differs from 1 in this warp.
  template <int kTiles>
  __device__ __forceinline__ bool update(float (&s)[kTiles][4], float scale_log2, u32 present, int lane, float (&factor)[2]) {
    constexpr u32 kAll = kTiles == 4 ? 0xffffffffu : (1u << (kTiles * 8 % 32)) - 1;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= scale_log2;
    if (present != kAll) {  // a select: what an absent key holds cannot matter
      const u32 mine = present >> (lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (!((mine >> (i * 8 + j % 2)) & 1)) s[i][j] = minus_infinity();
    }
    bool grown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = maximum[r];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) top = fmaxf(top, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float shift = top == minus_infinity() ? 0.f : top;  // no key yet: exp2(-inf - 0) = 0, never -inf - -inf
      factor[r] = ptx::exp2_approx(maximum[r] - shift);
      grown |= top != maximum[r];
      float added = 0.f;
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) added += s[i][2 * r + j] = ptx::exp2_approx(s[i][2 * r + j] - shift);
      sum[r] = sum[r] * factor[r] + added;
      maximum[r] = top;
    }
    return __any_sync(0xffffffffu, grown);
  }

  // Totals of the row in all of its four lanes.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    }
  }
};
