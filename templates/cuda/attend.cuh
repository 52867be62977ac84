// One warp's attention over tiles in shared memory, on tensor cores with the tokens in M and the query rows in N: scores S = K Q^T and
// output O^T = V^T P^T. A group of up to 8 rows then fills one n-tile, where rows in M would waste half of every product and twice the registers.
#pragma once
#include "params.h"
#include "cuda/paging.cuh"

constexpr int kWorkers = config::num_warps * 32;             // threads that compute
constexpr int kThreads = kWorkers + kProducers * 32;
// A barrier of the computing warps.
__device__ __forceinline__ void sync_workers() {
  if constexpr (kProducer) ptx::sync_threads(1, kWorkers);
  else __syncthreads();
}

constexpr int kTokenTiles = config::tile_kv / 16;
constexpr int kOutTiles = ceil_div(spec::head_dim_v, 16);
constexpr int kLiveRows = min_of(kRows, kRowsPerCta);  // rows of a CTA that can exist

// The query's fragments stay in registers unless they would not fit beside the accumulators; then they are read again for each tile.
constexpr bool kQueryInRegisters = kColumnTiles * (kDimSteps * 2 + kOutTiles * 4) <= 128;
// In a walk the next segment's query is fetched while the current one runs: read when it is needed, it would come back behind all that the copy engine has
// asked for, 3 us later with a full ring.
constexpr bool kQueryAhead = config::even_share && kProducer && kQueryInRegisters;
constexpr int kQueryPitch = kDimSteps * 32 + 16;
constexpr int kQueryBytes = kQueryInRegisters && !kQueryAhead ? 0 : kRowsPerCta * kQueryPitch;

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

// q of one row tile as B fragments.
struct Query {
  u32 fragment[kQueryInRegisters ? kDimSteps : 1][kColumnTiles][2];
  u32 shared;

  __device__ __forceinline__ void load(const pt_decode_params& p, const RowMap& rows, int lane) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int r = n * 8 + lane / 4;
      const bool live = r < rows.live;
      const unsigned short* q = static_cast<const unsigned short*>(p.q) + rows.q_base + (live ? rows.token(r) * p.q_stride_token + rows.head(r) * p.q_stride_head : 0);
#pragma unroll
      for (int k = 0; k < kDimSteps; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int dim = k * 16 + half * 8 + lane % 4 * 2;
          fragment[k][n][half] = live && dim < spec::head_dim ? __ldcg(reinterpret_cast<const u32*>(q + dim)) : 0u;
        }
    }
  }
  // Starts to copy q of another row tile into the CTA's shared memory; its barriers are the caller's.
  __device__ __forceinline__ static void fetch(const pt_decode_params& p, const RowMap& rows, unsigned char* memory, int thread) {
    constexpr int kPieces = spec::head_dim / 8;
    const u32 to = ptx::shared_address(memory);
#pragma unroll 1
    for (int i = thread; i < rows.live * kPieces; i += kWorkers) {
      const int r = i / kPieces, piece = i % kPieces;
      ptx::copy16_async(to + r * kQueryPitch + piece * 16, static_cast<const unsigned short*>(p.q) + rows.q_base + rows.token(r) * p.q_stride_token + rows.head(r) * p.q_stride_head + piece * 8);
    }
    ptx::commit_copies();
  }
  // The fragments of what fetch() brought.
  __device__ __forceinline__ void take(const RowMap& rows, const unsigned char* memory, int lane) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int r = n * 8 + lane / 4;
#pragma unroll
      for (int k = 0; k < kDimSteps; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int dim = k * 16 + half * 8 + lane % 4 * 2;
          fragment[k][n][half] = r < rows.live && dim < spec::head_dim ? *reinterpret_cast<const u32*>(memory + r * kQueryPitch + dim * 2) : 0u;
        }
    }
  }
  // Into the CTA's shared memory; a CTA barrier before and after is the caller's.
  __device__ __forceinline__ void load_shared(const pt_decode_params& p, const RowMap& rows, unsigned char* memory, int thread) {
    constexpr int kPieces = kDimSteps * 2;
#pragma unroll 1
    for (int i = thread; i < kRowsPerCta * kPieces; i += kWorkers) {
      const int r = i / kPieces, piece = i % kPieces;
      const bool live = r < rows.live && piece < spec::head_dim / 8;
      const unsigned short* q = static_cast<const unsigned short*>(p.q) + rows.q_base + (live ? rows.token(r) * p.q_stride_token + rows.head(r) * p.q_stride_head + piece * 8 : 0);
      *reinterpret_cast<uint4*>(memory + r * kQueryPitch + piece * 16) = live ? __ldcg(reinterpret_cast<const uint4*>(q)) : make_uint4(0, 0, 0, 0);
    }
    const int lane = thread % 32;
    shared = ptx::shared_address(memory) + (lane % 8 + lane / 16 * 8) * kQueryPitch + lane / 8 % 2 * 16;
  }
  __device__ __forceinline__ void step(int k, u32 (&b)[kColumnTiles][2]) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) b[n][0] = fragment[k][n][0], b[n][1] = fragment[k][n][1];
    } else {
      static_assert(kQueryInRegisters || kColumnTiles == 2, "only two row tiles outgrow the registers");
      u32 r[4];
      ptx::load_matrices(r, shared + k * 32);
      b[0][0] = r[0], b[0][1] = r[1];
      b[kColumnTiles - 1][0] = r[2], b[kColumnTiles - 1][1] = r[3];
    }
  }
};

// What a warp has accumulated. A lane holds the query rows n*8 + lane%4*2 + {0, 1}; of out[m][n] the dims m*16 + lane/4 + {0, 8}.
struct State {
  // A new maximum is taken only when a score exceeds the old one by more than 2^kSlack: weights then stay below 2^kSlack, which costs
  // no precision, and most tiles neither reduce over the lanes nor rescale.
  static constexpr float kSlack = 8.f;
  float out[kOutTiles][kColumnTiles][4];
  float maximum[kColumnTiles][2];  // base-2 logits, equal in all lanes of a row
  float sum[kColumnTiles][2];      // this lane's tokens only

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int m = 0; m < kOutTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.f;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      maximum[n][0] = maximum[n][1] = minus_infinity();
      sum[n][0] = sum[n][1] = 0.f;
    }
  }

  // One tile: the stage holds K and V of tokens [token, token + tile_kv), of which `present` exist.
  __device__ __forceinline__ void absorb(const pt_decode_params& p, const Query& query, const RowMap& rows, const Segment& segment, int token, unsigned char* memory, u32 present, int lane) {
    const u32 stage = ptx::shared_address(memory);
    float s[kTokenTiles][kColumnTiles][4];
    scores(query, stage, lane, s);
    const bool masked = to_logits(p, rows, segment, token, present, lane, s);
    weigh(s);
    if (kRowsDiffer && masked && !all_finite(memory + kValuesAt, lane)) take_unbounded(memory + kValuesAt, lane, s);
    const u32 offset = ValueRows::lane_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      u32 b[kColumnTiles][2];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        b[n][0] = ptx::transpose(pack(s[t][n][0], s[t][n][1]));
        b[n][1] = ptx::transpose(pack(s[t][n][2], s[t][n][3]));
      }
#pragma unroll
      for (int m = 0; m < kOutTiles; ++m) {
        u32 a[4];
        ptx::load_matrices_transposed(a, ValueRows::step(stage + kValuesAt, offset, t, m));
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) mma(out[m][n], a, b[n][0], b[n][1]);
      }
    }
  }

 private:
  // A token that one row sees may be hidden from another, whose weight of it is 0; but 0 * Inf is not. Where rows differ, what is not finite
  // is taken out of V in shared memory, and what it does to the rows that see it is done apart.
  static constexpr bool kRowsDiffer = kRows > 1 && (spec::q_len > 1 || spec::block_sparse);

  __device__ __forceinline__ static bool all_finite(const unsigned char* values, int lane) {
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

  __device__ __forceinline__ void take_unbounded(unsigned char* values, int lane, const float (&s)[kTokenTiles][kColumnTiles][4]) {
    u32 seen[kColumnTiles][2];  // tokens that each of this lane's rows sees
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        u32 mine = 0;
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            if (s[t][n][half * 2 + c] > 0.f) mine |= 1u << (t * 16 + half * 8 + lane / 4);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) mine |= __shfl_xor_sync(0xffffffffu, mine, distance);
        seen[n][c] = mine;
      }
#pragma unroll 1
    for (int octet = 0; octet < 2 * kOutTiles; ++octet) {  // rare: small code, not fast code
      const int dim = octet * 8 + lane / 4;
      u32 positive = 0, negative = 0;  // tokens whose element is +Inf, -Inf; NaN counts as both
      if (dim < spec::head_dim_v && lane % 4 == 0) {
#pragma unroll 1
        for (int token = 0; token < config::tile_kv; ++token) {
          unsigned short& v = *reinterpret_cast<unsigned short*>(values + ValueRows::element(token, dim));
          if (is_finite(v)) continue;
          const float x = to_float(v);
          if (!(x < 0.f)) positive |= 1u << token;
          if (!(x > 0.f)) negative |= 1u << token;
          v = 0;
        }
      }
      positive = __shfl_sync(0xffffffffu, positive, lane & ~3);
      negative = __shfl_sync(0xffffffffu, negative, lane & ~3);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float added = positive & seen[n][c] ? __int_as_float(0x7f800000) : 0.f;
          if (negative & seen[n][c]) added -= __int_as_float(0x7f800000);
#pragma unroll
          for (int m = 0; m < kOutTiles; ++m) {
            if (octet == 2 * m) out[m][n][c] += added;
            if (octet == 2 * m + 1) out[m][n][c + 2] += added;
          }
        }
    }
    if constexpr (config::loader != kLoadCopies) ptx::fence_async();
    __syncwarp();
  }

  __device__ __forceinline__ static void scores(const Query& query, u32 stage, int lane, float (&s)[kTokenTiles][kColumnTiles][4]) {
    // Two chains of products where there is only one accumulator: half the latency.
    constexpr int kChains = kTokenTiles * kColumnTiles == 1 ? 2 : 1;
    float c[kChains][kTokenTiles][kColumnTiles][4] = {};
    const u32 offset = KeyRows::lane_offset(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k) {
      u32 b[kColumnTiles][2];
      query.step(k, b);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        u32 a[4];
        ptx::load_matrices(a, KeyRows::step(stage, offset, t, k));
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) mma(c[k % kChains][t][n], a, b[n][0], b[n][1]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) s[t][n][j] = kChains == 2 ? c[0][t][n][j] + c[kChains - 1][t][n][j] : c[0][t][n][j];
  }

  // Products to base-2 logits; what a row must not see becomes -inf by a select, whatever its memory holds. Returns whether rows were told apart.
  __device__ __forceinline__ static bool to_logits(const pt_decode_params& p, const RowMap& rows, const Segment& segment, int token, u32 present, int lane,
                                                   float (&s)[kTokenTiles][kColumnTiles][4]) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = s[t][n][j];
          x *= p.scale_log2;
          if constexpr (spec::soft_cap) x = p.soft_cap * kLog2E * tanh_exp2(x / (p.soft_cap * kLog2E));
          if constexpr (spec::alibi) {
            const int r = n * 8 + lane % 4 * 2 + j % 2;
            const float slope = r < rows.live ? __ldg(p.alibi_slopes + segment.head * spec::group_size + rows.head(r)) * kLog2E : 0.f;
            x += slope * static_cast<float>(token + t * 16 + lane / 4 + j / 2 * 8 - (segment.span.first_position() + rows.token(r)));
          }
        }
    const Visibility visibility{p, segment.sequence, segment.head};
    const bool masked = !visibility.all_see(segment.span, token);
    if (present == kAllPresent && !masked) return false;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = t * 16 + lane / 4 + j / 2 * 8;
        const bool here = (present >> at) & 1;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const int r = n * 8 + lane % 4 * 2 + j % 2;
          if (!here || (masked && !visibility.sees(segment.span, token + at, rows.token(r), rows.head(r)))) s[t][n][j] = minus_infinity();
        }
      }
    return masked;
  }

  // Logits to weights.
  __device__ __forceinline__ void weigh(float (&s)[kTokenTiles][kColumnTiles][4]) {
    float top[kColumnTiles][2];
    bool grown = false;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float x = fmaxf(s[0][n][c], s[0][n][c + 2]);
        if constexpr (kTokenTiles == 2) x = fmaxf(x, fmaxf(s[kTokenTiles - 1][n][c], s[kTokenTiles - 1][n][c + 2]));
        top[n][c] = x;
        grown |= x > maximum[n][c] + kSlack;  // -inf + kSlack: any score exceeds it
      }
    if (__any_sync(0xffffffffu, grown)) rescale(top);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float shift = maximum[n][c] == minus_infinity() ? 0.f : maximum[n][c];  // no key yet: exp2(-inf - 0) = 0, never -inf - -inf
        float added = 0.f;
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
          for (int j = c; j < 4; j += 2) added += s[t][n][j] = ptx::exp2_approx(s[t][n][j] - shift);
        sum[n][c] += added;
      }
  }

  __device__ __forceinline__ void rescale(float (&top)[kColumnTiles][2]) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      float factor[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float x = fmaxf(maximum[n][c], top[n][c]);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
        factor[c] = x == minus_infinity() ? 1.f : ptx::exp2_approx(maximum[n][c] - x);
        maximum[n][c] = x;
        sum[n][c] *= factor[c];
      }
#pragma unroll
      for (int m = 0; m < kOutTiles; ++m) {
        out[m][n][0] *= factor[0];
        out[m][n][1] *= factor[1];
        out[m][n][2] *= factor[0];
        out[m][n][3] *= factor[1];
      }
    }
  }
};
