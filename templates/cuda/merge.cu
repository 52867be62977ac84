// Merges the splits of V2: weights first, then the weighted sum. One CTA per (sequence, query head); splits that see no token were
// never written and are never read.
//   grid: x = query head + q_heads * sequence
#include "params.h"
#include "cuda/numeric.cuh"
#include "cuda/split.cuh"

constexpr int kMaxSplits = 256;  // the host refuses more
constexpr int kMergeThreads = 64 * ceil_div(spec::head_dim, 128);  // two dims a thread

extern "C" __global__ void __launch_bounds__(kMergeThreads) pt_merge(const __grid_constant__ pt_decode_params p) {
  __shared__ float weights[kMaxSplits];
  __shared__ float total;
  const int thread = threadIdx.x;
  const int q_head = blockIdx.x % spec::q_heads, sequence = blockIdx.x / spec::q_heads;
  const Shares shares = shares_of(usable_length(p, sequence), p.num_splits);
  if (shares.used <= 1) return;  // the main kernel wrote the result
  const i64 slot = (static_cast<i64>(sequence) * spec::q_heads + q_head) * p.num_splits;

  if (thread < 32) {
    float top = minus_infinity();
    for (int i = thread; i < shares.used; i += 32) top = fmaxf(top, p.partial_lse[slot + i]);
    for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    float sum = 0.f;
    for (int i = thread; i < shares.used; i += 32) {
      // All splits empty (every page absent): the weights stay 0, and so does the result.
      const float weight = top == minus_infinity() ? 0.f : ptx::exp2_approx(p.partial_lse[slot + i] - top);
      weights[i] = weight;
      sum += weight;
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (thread == 0) {
      total = sum;
      if (spec::lse) p.lse[static_cast<i64>(sequence) * spec::q_heads + q_head] = (top + ptx::log2_approx(sum)) * kLn2;
    }
  }
  __syncthreads();

  const int dim = thread * 2;
  if (dim >= spec::head_dim) return;
  const float* part = p.partial_out + slot * spec::head_dim + dim;
  float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
  for (int i = 0; i < shares.used; ++i) {
    const float2 o = *reinterpret_cast<const float2*>(part + static_cast<i64>(i) * spec::head_dim);
    sum.x += weights[i] * o.x;
    sum.y += weights[i] * o.y;
  }
  const float inverse = total > 0.f ? 1.f / total : 0.f;
  unsigned short* out = static_cast<unsigned short*>(p.out) + sequence * p.out_stride_seq + q_head * p.out_stride_head + dim;
  *reinterpret_cast<u32*>(out) = pack(sum.x * inverse, sum.y * inverse);
}
