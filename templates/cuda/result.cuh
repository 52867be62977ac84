// From the teams' states to the result: their meeting in shared memory, the partial results of several CTAs and their merge.
#pragma once
#include "params.h"
#include "cuda/attend.cuh"  // and one of the two ways to compute, which has the State

constexpr int kMeetBytes = kTeams * kLiveRows * (kMeetPitch * 4 + 8);

// The teams' states: out [team][row][dim], (maximum, sum) [team][row].
struct Meeting {
  float* out;
  float2* weight;

  __device__ __forceinline__ explicit Meeting(unsigned char* memory)
      : out(reinterpret_cast<float*>(memory)), weight(reinterpret_cast<float2*>(memory + kTeams * kLiveRows * kMeetPitch * 4)) {}

  __device__ __forceinline__ void put(const State& state, const Team& team) const { state.leave(out + team.index * kLiveRows * kMeetPitch, weight + team.index * kLiveRows, team.place); }

  // Four dims of a row over all teams, normalised, and the row's base-2 LSE.
  __device__ __forceinline__ float4 take(int row, int dim, float& lse) const {
    float top = minus_infinity();
    float2 state[kTeams];
#pragma unroll
    for (int w = 0; w < kTeams; ++w) {
      state[w] = weight[w * kLiveRows + row];
      top = fmaxf(top, state[w].x);
    }
    // A maximum never is NaN, so -inf may also mean that no logit was a number: the sums tell.
    const float base = top == minus_infinity() ? 0.f : top;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < kTeams; ++w) {
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

// Four dims of a row of a part.
__device__ __forceinline__ void write_part(const pt_decode_params& p, i64 row, int dim, float4 o, float lse) {
  *reinterpret_cast<float4*>(p.partial_out + row * spec::head_dim_v + dim) = o;
  if (dim == 0) p.partial_lse[row] = lse;
}

// A weighted sum of a cluster's parts: base-2 LSEs relative to `top`.
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
  __device__ __forceinline__ void add(const float (&lse)[kCount], const float4 (&o)[kCount]) {
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
      total += weight;
      sum.x += weight * o[i].x, sum.y += weight * o[i].y, sum.z += weight * o[i].z, sum.w += weight * o[i].w;
    }
  }
  __device__ __forceinline__ float lse() const { return total == 0.f ? minus_infinity() : (top == minus_infinity() ? 0.f : top) + ptx::log2_approx(total); }
  __device__ __forceinline__ float4 mean() const {
    const float inverse = total == 0.f ? 0.f : 1.f / total;
    return make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
  }
};

// Merges the parts of the rows [first_row, end_row) with kMergers threads, to the result, or, for another step, in the place of part 0. What the others wrote lies in L2, far away: as many parts as kBytes of shared
// memory hold are asked for at once. Meanwhile a warp turns a row's LSEs into weights; then a thread sums four dims of a row over the parts.
template <int kMergers, int kBytes, class Sync>
__device__ __forceinline__ void merge_parts(const pt_decode_params& p, const Segment& s, const RowMap& rows, int first_row, int end_row, const Partials& parts, bool to_result, int thread, unsigned char* memory, Sync sync) {
  constexpr int kQuads = spec::head_dim_v / 4, kMostItems = kMergers < 128 ? 2 : 4, kMostLses = 4;  // of a thread: (row, dims / 4), each a sum in four registers, and LSEs that it fetches; few warps hold more rows, and spill sooner
  constexpr int kRowsAtOnce = max_of(min_of(min_of(kLiveRows, kMostItems * kMergers / kQuads), kBytes / (16 * kQuads + 16)), 1), kPart = kRowsAtOnce * kQuads;
  constexpr int kItems = ceil_div(kPart, kMergers);
  struct Total {
    float top, factor, sum;  // of a row: its highest LSE so far, what the sums before it are worth, and the weights' sum
  };
  constexpr int kFit = (kBytes - kRowsAtOnce * static_cast<int>(sizeof(Total))) / (kPart * 16 + kRowsAtOnce * 4);
  static_assert(kFit > 0, "shared memory holds a part");
  constexpr int kAtOnce = min_of(kFit, kMostLses * kMergers / kRowsAtOnce), kLses = ceil_div(kAtOnce * kRowsAtOnce, kMergers);
  float4* outs = reinterpret_cast<float4*>(memory);                   // [part][row][dims / 4]
  float* weights = reinterpret_cast<float*>(outs + kAtOnce * kPart);  // [row][part]
  Total* totals = reinterpret_cast<Total*>(weights + kRowsAtOnce * kAtOnce);
  const int lane = thread % 32;
#pragma unroll 1
  for (; first_row < end_row; first_row += kRowsAtOnce) {
    const int live = min(end_row - first_row, kRowsAtOnce);
    float4 sums[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) sums[k] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int first = 0; first < parts.count; first += kAtOnce) {
      const int count = min(parts.count - first, kAtOnce);
      sync();  // the memory is free
      float lse[kLses];
#pragma unroll
      for (int k = 0; k < kLses; ++k) {
        const int part = (thread + k * kMergers) / kRowsAtOnce, r = (thread + k * kMergers) % kRowsAtOnce;
        lse[k] = part < count && r < live ? __ldcg(p.partial_lse + parts.row(first + part, first_row + r)) : minus_infinity();
      }
#pragma unroll 1
      for (int item = thread; item < live * kQuads; item += kMergers) {
        const float* from = p.partial_out + item % kQuads * 4;
        const int r = first_row + item / kQuads;
        const i64 step = static_cast<i64>(parts.stride) * spec::head_dim_v;
        const float* next = from + parts.row(max(first, 1), r) * spec::head_dim_v;
        u32 to = ptx::shared_address(outs + item);
        int i = 0;
        if (first == 0) ptx::copy16_async(to, from + parts.row(0, r) * spec::head_dim_v), to += kPart * 16, i = 1;
#pragma unroll 2
        for (; i < count; ++i, to += kPart * 16, next += step) ptx::copy16_async(to, next);
      }
      ptx::commit_copies();
#pragma unroll
      for (int k = 0; k < kLses; ++k) {
        const int part = (thread + k * kMergers) / kRowsAtOnce, r = (thread + k * kMergers) % kRowsAtOnce;
        if (part < count) weights[r * kAtOnce + part] = lse[k];
      }
      sync();
#pragma unroll 1
      for (int r = thread / 32; r < live; r += kMergers / 32) {
        float* const of = weights + r * kAtOnce;
        const float before = first == 0 ? minus_infinity() : totals[r].top;
        float top = before, sum = 0.f;
#pragma unroll 1
        for (int i = lane; i < count; i += 32) top = fmaxf(top, of[i]);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
        const float base = top == minus_infinity() ? 0.f : top;  // all empty, or not a number, which must stay so
#pragma unroll 1
        for (int i = lane; i < count; i += 32) sum += of[i] = ptx::exp2_approx(of[i] - base);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        const float factor = ptx::exp2_approx(before - base);
        if (first > 0) sum += factor * totals[r].sum;
        __syncwarp();
        if (lane == 0) totals[r] = {top, factor, sum};
      }
      ptx::wait_copies<0>();
      sync();
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int item = thread + k * kMergers, r = item / kQuads;
        if (r >= live) break;
        const float factor = totals[r].factor;
        float4 sum = sums[k];
        sum.x *= factor, sum.y *= factor, sum.z *= factor, sum.w *= factor;
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
          const float weight = weights[r * kAtOnce + i];
          const float4 o = outs[i * kPart + item];
          sum.x += weight * o.x, sum.y += weight * o.y, sum.z += weight * o.z, sum.w += weight * o.w;
        }
        sums[k] = sum;
      }
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int item = thread + k * kMergers, r = item / kQuads;
      if (r >= live) break;
      const Total total = totals[r];
      const float inverse = total.sum == 0.f ? 0.f : 1.f / total.sum;
      const float lse = total.sum == 0.f ? minus_infinity() : (total.top == minus_infinity() ? 0.f : total.top) + ptx::log2_approx(total.sum);
      const float4 o = make_float4(sums[k].x * inverse, sums[k].y * inverse, sums[k].z * inverse, sums[k].w * inverse);
      if (to_result) write_result(p, s, rows, first_row + r, item % kQuads * 4, o, lse);
      else write_part(p, parts.row(0, first_row + r), item % kQuads * 4, o, lse);
    }
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
