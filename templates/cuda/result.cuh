// From the warps' states to the result: the meeting of the warps in shared memory, the partial results of several CTAs and their merge.
#pragma once
#include "params.h"
#include "cuda/attend.cuh"

constexpr int kMeetPitch = spec::head_dim_v + 4;  // floats: the four rows that a warp stores together land in different banks
constexpr int kMeetBytes = max_of(config::num_warps * kLiveRows * (kMeetPitch * 4 + 8), config::variant == 2 ? kWorkers * 24 : 0);  // the merge of parts works there too

// The warps' states: out [warp][row][dim], (maximum, sum) [warp][row].
struct Meeting {
  float* out;
  float2* weight;

  __device__ __forceinline__ explicit Meeting(unsigned char* memory)
      : out(reinterpret_cast<float*>(memory)), weight(reinterpret_cast<float2*>(memory + config::num_warps * kLiveRows * kMeetPitch * 4)) {}

  __device__ __forceinline__ void put(const State& state, int warp, int lane) const {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = state.sum[n][c];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        const int row = n * 8 + lane % 4 * 2 + c;
        if (row >= kLiveRows) continue;
        float* to = out + (warp * kLiveRows + row) * kMeetPitch + lane / 4;
#pragma unroll
        for (int m = 0; m < kOutTiles; ++m) {
          to[m * 16] = state.out[m][n][c];
          if (m * 16 + 8 < spec::head_dim_v) to[m * 16 + 8] = state.out[m][n][c + 2];
        }
        if (lane < 4) weight[warp * kLiveRows + row] = make_float2(state.maximum[n][c], sum);
      }
  }

  // Four dims of a row over all warps, normalised, and the row's base-2 LSE.
  __device__ __forceinline__ float4 take(int row, int dim, float& lse) const {
    float top = minus_infinity();
    float2 state[config::num_warps];
#pragma unroll
    for (int w = 0; w < config::num_warps; ++w) {
      state[w] = weight[w * kLiveRows + row];
      top = fmaxf(top, state[w].x);
    }
    // A maximum never is NaN, so -inf may also mean that no logit was a number: the sums tell.
    const float base = top == minus_infinity() ? 0.f : top;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < config::num_warps; ++w) {
      const float factor = state[w].y == 0.f ? 0.f : ptx::exp2_approx(state[w].x - base);
      const float4 part = *reinterpret_cast<const float4*>(out + (w * kLiveRows + row) * kMeetPitch + dim);
      total += factor * state[w].y;
      sum.x += factor * part.x, sum.y += factor * part.y, sum.z += factor * part.z, sum.w += factor * part.w;
    }
    lse = total == 0.f ? minus_infinity() : base + ptx::log2_approx(total);
    const float inverse = total == 0.f ? 0.f : 1.f / total;
    return make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
  }
};

// Writes four dims of a row. The learned sink joins the denominator here, once, whatever the keys were split into.
__device__ __forceinline__ void write_result(const pt_decode_params& p, const Segment& s, const RowMap& rows, int row, int dim, float4 o, float lse) {
  const int head = rows.head(row), token = rows.token(row);
  if constexpr (spec::sinks) {
    const float all = log2_add(lse, __ldg(p.sinks + s.head * spec::group_size + head) * kLog2E);
    const float factor = lse == minus_infinity() ? 0.f : ptx::exp2_approx(lse - all);
    o.x *= factor, o.y *= factor, o.z *= factor, o.w *= factor;
    lse = all;
  }
  unsigned short* out = static_cast<unsigned short*>(p.out) + rows.out_base + token * p.out_stride_token + head * p.out_stride_head + dim;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack_out(o.x, o.y), pack_out(o.z, o.w));
  if (spec::lse && dim == 0) p.lse[rows.lse_row + static_cast<i64>(token) * spec::q_heads + head] = lse * kLn2;
}

// Where the partial results of one (pair, row tile) lie. Even share: two slots for each CTA, of its first segment and of its last. The host bounds
// the number of rows to 31 bits.
struct Partials {
  int count;
  int first, stride;  // rows; of part i: first + i * stride, but part 0 of an even share may be its CTA's second slot
  int row_stride;     // between the rows of a part
  int zero;           // row of part 0

  __device__ __forceinline__ i64 row(int part, int r) const { return (part == 0 ? zero : first + part * stride) + r * row_stride; }
};

// A CTA's row 0 among the rows of all pairs.
__device__ __forceinline__ int pair_row(const Segment& s, const RowMap& rows) { return (s.sequence * spec::kv_heads + s.head) * kRows + rows.first; }

// Parts of `ctas` splits each: [sequence][KV head][row of the pair][part].
__device__ __forceinline__ Partials fixed_partials(const pt_decode_params& p, const Segment& s, const RowMap& rows, int ctas = 1) {
  const int all = ceil_div(p.num_splits, ctas);
  const int first = pair_row(s, rows) * all;
  return {ceil_div(used_splits(s.span, p.num_splits), ctas), first, 1, all, first};
}
__device__ __forceinline__ Partials even_partials(const Shares& shares, const Segment& s, int cta, int& part) {
  const int first = shares.owner(s.line), last = shares.owner(s.line + s.span.tiles - 1);
  constexpr int kSlots = 2 * kRowsPerCta;
  const int stride = shares.lanes * kSlots;
  part = cta / shares.lanes - first;
  const int at = first * stride + cta % shares.lanes * kSlots;
  return {last - first + 1, at, stride, 1, at + (shares.begin(first) < s.line ? kRowsPerCta : 0)};
}

// A weighted sum of parts' results: base-2 LSEs relative to `top`.
struct Mixture {
  float top, total;
  float4 sum;

  __device__ __forceinline__ void start() {
    top = minus_infinity();
    total = 0.f;
    sum = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  // kCount parts at once; a part of weight 2^-inf must bring numbers.
  template <int kCount>
  __device__ __forceinline__ void add(const float (&lse)[kCount], const float4 (&o)[kCount], const float (&size)[kCount]) {
    float highest = top;
#pragma unroll
    for (int i = 0; i < kCount; ++i) highest = fmaxf(highest, lse[i]);
    const float base = highest == minus_infinity() ? 0.f : highest;  // all empty, or not a number, which must stay so
    const float factor = ptx::exp2_approx(top - base);
    top = highest;
    total *= factor;
    sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = ptx::exp2_approx(lse[i] - base);
      total += weight * size[i];
      sum.x += weight * o[i].x, sum.y += weight * o[i].y, sum.z += weight * o[i].z, sum.w += weight * o[i].w;
    }
  }
  __device__ __forceinline__ float lse() const { return total == 0.f ? minus_infinity() : (top == minus_infinity() ? 0.f : top) + ptx::log2_approx(total); }
  __device__ __forceinline__ float4 mean() const {
    const float inverse = total == 0.f ? 0.f : 1.f / total;
    return make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
  }
};

// Merges the parts of the rows [first_row, end_row) with kMergers threads: a thread has four dims of a row and, where threads are plenty, a share of
// the parts. What the others wrote lies in L2, far away: a thread fetches kBatch parts at once. `memory`: kMergers * 24 bytes, free of use.
template <int kMergers, int kBatch, class Sync>
__device__ __forceinline__ void merge_parts(const pt_decode_params& p, const Segment& s, const RowMap& rows, int first_row, int end_row, const Partials& parts, int thread, unsigned char* memory, Sync sync) {
  constexpr int kQuads = spec::head_dim_v / 4, kSlots = kLiveRows * kQuads;
  constexpr int kShares = kSlots >= kMergers ? 1 : min_of(kMergers / kSlots, 8);
  const int share = kShares == 1 ? 0 : thread / kSlots;
  for (int slot = kShares == 1 ? thread : thread % kSlots; slot < kSlots; slot += kShares == 1 ? kMergers : kSlots) {
    const int r = first_row + slot / kQuads, dim = slot % kQuads * 4;
    Mixture mixture;
    mixture.start();
    if (r < end_row && share < kShares) {
      for (int first = share; first < parts.count; first += kShares * kBatch) {
        float lse[kBatch], size[kBatch];
        float4 o[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int part = first + i * kShares;
          const bool exists = part < parts.count;
          const i64 row = parts.row(part, r);
          lse[i] = exists ? __ldcg(p.partial_lse + row) : minus_infinity();
          o[i] = exists ? __ldcg(reinterpret_cast<const float4*>(p.partial_out + row * spec::head_dim_v + dim)) : make_float4(0.f, 0.f, 0.f, 0.f);
          size[i] = 1.f;
        }
        mixture.add(lse, o, size);
      }
    }
    if constexpr (kShares > 1) {
      float4* sums = reinterpret_cast<float4*>(memory);
      float2* weights = reinterpret_cast<float2*>(memory + kMergers * 16);
      sync();
      if (share < kShares) sums[thread] = mixture.sum, weights[thread] = make_float2(mixture.top, mixture.total);
      sync();
      if (share == 0) {
        float lse[kShares], size[kShares];
        float4 o[kShares];
#pragma unroll
        for (int i = 0; i < kShares; ++i) lse[i] = weights[slot + i * kSlots].x, size[i] = weights[slot + i * kSlots].y, o[i] = sums[slot + i * kSlots];
        mixture.start();
        mixture.add(lse, o, size);
      }
    }
    if (r < end_row && share == 0) write_result(p, s, rows, r, dim, mixture.mean(), mixture.lse());
    if constexpr (kShares > 1) break;
  }
}

// Counts the arrivals at a merge. A counter carries a tag in its upper 48 bits; memory without it counts as zero, so that the workspace
// needs no initialisation, and the last to arrive leaves the tag with a zero behind.
__device__ __forceinline__ bool arrives_last(u64* counter, int partners) {
  constexpr u64 kTag = 0x70745f6d6572ull << 16;
  constexpr u64 kCount = 0xffff;
  u64 old = ptx::add_acq_rel(counter, 1);
  if ((old & ~kCount) != kTag) {
    u64 seen = old + 1;
    for (;;) {  // this arrival was added to garbage: count it again
      const u64 count = (seen & ~kCount) == kTag ? seen & kCount : 0;
      const u64 found = ptx::swap_if_acq_rel(counter, seen, kTag | (count + 1));
      if (found == seen) {
        old = kTag | count;
        break;
      }
      seen = found;
    }
  }
  if ((old & kCount) + 1 != static_cast<u64>(partners)) return false;
  *counter = kTag;
  return true;
}
