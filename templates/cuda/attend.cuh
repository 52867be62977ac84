// What both ways to compute share: the threads, a CTA's rows, the query's way into shared memory, from products to logits. tokens_in_m.cuh: warps, on up to 16 rows;
// rows_in_m.cuh: warpgroups, on 64.
#pragma once
#include "params.h"
#include "cuda/paging.cuh"

constexpr int kWorkers = config::num_warps * 32;             // threads that compute
constexpr int kThreads = kWorkers + kProducers * 32;
constexpr int kTeamThreads = kWorkers / kTeams;
// A barrier of the computing warps.
__device__ __forceinline__ void sync_workers() {
  if constexpr (kProducer) ptx::sync_threads(1, kWorkers);
  else __syncthreads();
}
// A thread's place in its team, and the team's barrier: a warpgroup's lies in shared memory. (With named barriers for each team compute-sanitizer's racecheck loses sight of
// the one of all workers.)
struct Team {
  int index, place;
  u32 barrier;
  u32 parity = 0;

  __device__ __forceinline__ void sync() {
    if constexpr (kWarpgroups) {
      ptx::barrier_arrive(barrier);
      ptx::barrier_wait(barrier, parity);
      parity ^= 1;
    } else {
      __syncwarp();
    }
  }
};

constexpr int kLiveRows = min_of(kRows, kRowsPerCta);  // rows of a CTA that can exist
constexpr int kQueryPitch = kDimSteps * 32 + 16;       // bytes of a row in shared memory
constexpr int kMeetPitch = spec::head_dim_v + 4;       // floats of a row of a team's state there: the rows that a warp stores together land in different banks

// The rows of one (pair, row tile): which query token and head each is, and where it lies in q and out.
struct RowMap {
  int first;  // row of this CTA's row 0 among the pair's
  int live;   // rows of this CTA that exist in this launch
  i64 q_base, out_base, lse_row;

  __device__ __forceinline__ void open(const pt_decode_params& p, const Segment& s) {
    const QueryTokens query = query_tokens(p, s.sequence);
    first = s.row_tile * kRowsPerCta;
    live = min(query.count * spec::group_size - first, kLiveRows);
    const bool packed = spec::q_len > 1 && p.cu_seqlens_q != nullptr;
    const int head = s.head * spec::group_size;
    q_base = (packed ? query.row * p.q_stride_token : s.sequence * p.q_stride_seq) + head * p.q_stride_head;
    out_base = (packed ? query.row * p.out_stride_token : s.sequence * p.out_stride_seq) + head * p.out_stride_head;
    lse_row = query.row * spec::q_heads + head;
  }
  __device__ __forceinline__ int token(int row) const { return spec::q_len == 1 ? 0 : static_cast<u32>(first + row) / static_cast<u32>(spec::group_size); }
  __device__ __forceinline__ int head(int row) const { return spec::q_len == 1 ? first + row : static_cast<u32>(first + row) % static_cast<u32>(spec::group_size); }
};

// Starts to copy the query of a row tile into the CTA's shared memory; its barriers are the caller's.
__device__ __forceinline__ void fetch_query(const pt_decode_params& p, const RowMap& rows, unsigned char* memory, int thread) {
  constexpr int kPieces = spec::head_dim / 8;
  const u32 to = ptx::shared_address(memory);
#pragma unroll 1
  for (int i = thread; i < rows.live * kPieces; i += kWorkers) {
    const int r = i / kPieces, piece = i % kPieces;
    ptx::copy16_async(to + r * kQueryPitch + piece * 16, static_cast<const unsigned short*>(p.q) + rows.q_base + rows.token(r) * p.q_stride_token + rows.head(r) * p.q_stride_head + piece * 8);
  }
  ptx::commit_copies();
}

// A new maximum is taken only when a score exceeds the old one by more than 2^kSlack: weights then stay below 2^kSlack, which costs
// no precision, and most tiles neither reduce over the lanes nor rescale.
constexpr float kSlack = 8.f;

// Products to base-2 logits; what a row must not see becomes -inf by a select, whatever its memory holds. Returns whether rows were told apart. A thread's scores are of
// some tokens of the tile and some rows, which follow from its place in its team.
template <class Scores>
__device__ __forceinline__ bool to_logits(const pt_decode_params& p, const RowMap& rows, const Segment& segment, int token, u32 present, int place, Scores& s) {
#pragma unroll
  for (int i = 0; i < Scores::kTokens; ++i)
#pragma unroll
    for (int j = 0; j < Scores::kRows; ++j) {
      float& x = s.at(i, j);
      x *= p.scale_log2;
      if constexpr (spec::soft_cap) x = p.soft_cap * kLog2E * tanh_exp2(x / (p.soft_cap * kLog2E));
      if constexpr (spec::alibi) {
        const int r = Scores::row(j, place);
        const float slope = r < rows.live ? __ldg(p.alibi_slopes + segment.head * spec::group_size + rows.head(r)) * kLog2E : 0.f;
        x += slope * static_cast<float>(token + Scores::token(i, place) - (segment.span.first_position() + rows.token(r)));
      }
    }
  const Visibility visibility{p, segment.sequence, segment.head};
  const bool masked = !visibility.all_see(segment.span, token);
  if (present == kAllPresent && !masked) return false;
#pragma unroll
  for (int i = 0; i < Scores::kTokens; ++i) {
    const int at = Scores::token(i, place);
    const bool here = (present >> at) & 1;
#pragma unroll
    for (int j = 0; j < Scores::kRows; ++j) {
      const int r = Scores::row(j, place);
      const bool exists = spec::q_len == 1 || r < rows.live;  // a row that does not has no mask to ask
      if (!here || (masked && exists && !visibility.sees(segment.span, token + at, rows.token(r), rows.head(r)))) s.at(i, j) = minus_infinity();
    }
  }
  return masked;
}

// A token that one row sees may be hidden from another, whose weight of it is 0; but 0 * Inf is not. Where rows differ, what is not finite is taken out of V in shared memory, and
// what it does to the rows that see it is done apart.
constexpr bool kRowsDiffer = kRows > 1 && (spec::q_len > 1 || spec::block_sparse);

__device__ __forceinline__ bool all_finite(const unsigned char* values, int lane) {
  bool finite = true;
#pragma unroll 1
  for (int i = lane; i < config::tile_kv * (spec::head_dim_v / 8); i += 32) {
    const uint4 v = *reinterpret_cast<const uint4*>(values + ValueRows::element(i / (spec::head_dim_v / 8), i % (spec::head_dim_v / 8) * 8));
    const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) finite &= is_finite(pairs[j]) && is_finite(pairs[j] >> 16);
  }
  return __all_sync(0xffffffffu, finite);
}

// Tokens of a tile whose element of one dim is +Inf, -Inf; NaN counts as both.
struct Unbounded {
  u32 positive, negative;

  __device__ __forceinline__ void find(const unsigned char* values, int dim) {
    positive = negative = 0;
#pragma unroll 1
    for (int token = 0; token < config::tile_kv; ++token) {
      const unsigned short v = *reinterpret_cast<const unsigned short*>(values + ValueRows::element(token, dim));
      if (is_finite(v)) continue;
      const float x = to_float(v);
      if (!(x < 0.f)) positive |= 1u << token;
      if (!(x > 0.f)) negative |= 1u << token;
    }
  }
  __device__ __forceinline__ static void take_out(unsigned char* values, int dim) {
#pragma unroll 1
    for (int token = 0; token < config::tile_kv; ++token) {
      unsigned short& v = *reinterpret_cast<unsigned short*>(values + ValueRows::element(token, dim));
      if (!is_finite(v)) v = 0;
    }
  }
  // What they add to a row that sees some tokens.
  __device__ __forceinline__ float sum(u32 seen) const {
    float x = positive & seen ? __int_as_float(0x7f800000) : 0.f;
    if (negative & seen) x -= __int_as_float(0x7f800000);
    return x;
  }
};
