// From the warps' states to the result: the meeting of the warps in shared memory, the partial results of several CTAs and their merge.
#pragma once
#include "params.h"
#include "cuda/attend.cuh"

constexpr int kMeetPitch = spec::head_dim_v + 4;  // floats: the four rows that a warp stores together land in different banks
constexpr int kMeetBytes = config::num_warps * kLiveRows * (kMeetPitch * 4 + 8);

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

  // Dims (dim, dim + 1) of a row over all warps, normalised, and the row's base-2 LSE.
  __device__ __forceinline__ float2 take(int row, int dim, float& lse) const {
    float top = minus_infinity();
#pragma unroll
    for (int w = 0; w < config::num_warps; ++w) top = fmaxf(top, weight[w * kLiveRows + row].x);
    lse = minus_infinity();
    if (top == minus_infinity()) return make_float2(0.f, 0.f);
    float total = 0.f;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int w = 0; w < config::num_warps; ++w) {
      const float2 state = weight[w * kLiveRows + row];
      const float factor = ptx::exp2_approx(state.x - top);
      const float2 part = *reinterpret_cast<const float2*>(out + (w * kLiveRows + row) * kMeetPitch + dim);
      total += factor * state.y;
      sum.x += factor * part.x;
      sum.y += factor * part.y;
    }
    lse = top + ptx::log2_approx(total);
    const float inverse = 1.f / total;
    return make_float2(sum.x * inverse, sum.y * inverse);
  }
};

// Writes dims (dim, dim + 1) of a row. The learned sink joins the denominator here, once, whatever the keys were split into.
__device__ __forceinline__ void write_result(const pt_decode_params& p, const Segment& s, const RowMap& rows, int row, int dim, float2 o, float lse) {
  const int head = rows.head(row), token = rows.token(row);
  if constexpr (spec::sinks) {
    const float all = log2_add(lse, __ldg(p.sinks + s.head * spec::group_size + head) * kLog2E);
    const float factor = lse == minus_infinity() ? 0.f : ptx::exp2_approx(lse - all);
    o.x *= factor;
    o.y *= factor;
    lse = all;
  }
  unsigned short* out = static_cast<unsigned short*>(p.out) + rows.out_base + token * p.out_stride_token + head * p.out_stride_head + dim;
  *reinterpret_cast<u32*>(out) = pack_out(o.x, o.y);
  if (spec::lse && dim == 0) p.lse[rows.lse_row + static_cast<i64>(token) * spec::q_heads + head] = lse * kLn2;
}

// Where the partial results of one (pair, row tile) lie. Even share: two slots for each CTA, of its first segment and of its last.
struct Partials {
  int count;
  i64 first, stride;  // rows; of part i: first + i * stride, but part 0 of an even share may be its CTA's second slot
  i64 row_stride;     // between the rows of a part
  i64 zero;           // row of part 0

  __device__ __forceinline__ i64 row(int part, int r) const { return (part == 0 ? zero : first + part * stride) + r * row_stride; }
};

__device__ __forceinline__ Partials fixed_partials(const pt_decode_params& p, const Segment& s, const RowMap& rows) {
  // [sequence][KV head][row of the pair][split]
  const i64 pair_row = (static_cast<i64>(s.sequence) * spec::kv_heads + s.head) * kRows + rows.first;
  return {used_splits(s.span, p.num_splits), pair_row * p.num_splits, 1, p.num_splits, pair_row * p.num_splits};
}
__device__ __forceinline__ Partials even_partials(const Shares& shares, const Segment& s, int& first_cta) {
  first_cta = shares.owner(s.line);
  const int last_cta = shares.owner(s.line + s.span.tiles - 1);
  const i64 slots = 2 * kRowsPerCta;
  return {last_cta - first_cta + 1, first_cta * slots, slots, 1, first_cta * slots + (shares.begin(first_cta) < s.line ? kRowsPerCta : 0)};
}

// One warp merges 64 dims of a row: weights from the parts' LSEs, then the weighted sum. Every part was written, an empty one as (0, -inf).
// What stands in L2 is far away: the first parts are fetched before their weights are known, and no load waits for a branch.
__device__ __forceinline__ float2 merge_row(const pt_decode_params& p, const Partials& parts, int r, int dim, int lane, float& lse) {
  constexpr int kBatch = 16;
  const bool live = dim < spec::head_dim_v;
  const auto fetch = [&](int part) {
    return live && part < parts.count ? __ldcg(reinterpret_cast<const float2*>(p.partial_out + parts.row(part, r) * spec::head_dim_v + dim)) : make_float2(0.f, 0.f);
  };
  const auto fetch_lse = [&](int part) { return part < parts.count ? __ldcg(p.partial_lse + parts.row(part, r)) : minus_infinity(); };
  float2 o[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) o[i] = fetch(i);
  const float first_lse = fetch_lse(lane);
  float top = first_lse;
  for (int i = lane + 32; i < parts.count; i += 32) top = fmaxf(top, fetch_lse(i));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
  lse = minus_infinity();
  float2 sum = make_float2(0.f, 0.f);
  if (top == minus_infinity()) return sum;  // all parts empty
  float total = 0.f;
  for (int base = 0; base < parts.count; base += 32) {
    const float mine = ptx::exp2_approx((base == 0 ? first_lse : fetch_lse(base + lane)) - top);
    total += mine;
#pragma unroll 1
    for (int batch = 0; batch < 32 && base + batch < parts.count; batch += kBatch) {
      if (base + batch > 0) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) o[i] = fetch(base + batch + i);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = __shfl_sync(0xffffffffu, mine, batch + i);
        sum.x += weight * o[i].x;
        sum.y += weight * o[i].y;
      }
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
  lse = top + ptx::log2_approx(total);
  const float inverse = 1.f / total;
  return make_float2(sum.x * inverse, sum.y * inverse);
}

__device__ __forceinline__ void merge_parts(const pt_decode_params& p, const Segment& s, const RowMap& rows, const Partials& parts, int warp, int warps, int lane) {
  constexpr int kChunks = ceil_div(spec::head_dim_v, 64);
  for (int i = warp; i < rows.live * kChunks; i += warps) {
    const int r = i / kChunks, dim = i % kChunks * 64 + lane * 2;
    float lse;
    const float2 o = merge_row(p, parts, r, dim, lane, lse);
    if (dim < spec::head_dim_v) write_result(p, s, rows, r, dim, o, lse);
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
