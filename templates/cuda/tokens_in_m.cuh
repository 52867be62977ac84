// A warp's attention over tiles of its own, on tensor cores with the tokens in M and the query rows in N: scores S = K Q^T and
// output O^T = V^T P^T. A group of up to 8 rows then fills one n-tile, where rows in M would waste half of every product and twice the registers.
#pragma once
#include "params.h"
#include "cuda/attend.cuh"

constexpr int kColumnTiles = kRowsPerCta / 8;  // of 8 rows each
constexpr int kTokenTiles = config::tile_kv / 16;
constexpr int kOutTiles = ceil_div(spec::head_dim_v, 16);
constexpr int kStateRegisters = kColumnTiles * (kDimSteps * 2 + kOutTiles * 4 + 40) + 32;  // of a thread, about

// The query's fragments stay in registers unless they would not fit beside the accumulators; then they are read again for each tile.
constexpr bool kQueryInRegisters = kColumnTiles * (kDimSteps * 2 + kOutTiles * 4) <= 128;

// A lane's of a tile: [token tile][column tile][token of two, row of two].
struct Scores {
  static constexpr int kTokens = kTokenTiles * 2, kRows = kColumnTiles * 2;
  float x[kTokenTiles][kColumnTiles][4];

  __device__ __forceinline__ float& at(int i, int j) { return x[i / 2][j / 2][i % 2 * 2 + j % 2]; }
  __device__ __forceinline__ static int token(int i, int lane) { return i * 8 + lane / 4; }
  __device__ __forceinline__ static int row(int j, int lane) { return j / 2 * 8 + lane % 4 * 2 + j % 2; }
};

// q of one row tile as B fragments.
struct Query {
  u32 fragment[kQueryInRegisters ? kDimSteps : 1][kColumnTiles][2];
  u32 shared;

  __device__ __forceinline__ void read(const pt_decode_params& p, const RowMap& rows, unsigned char* memory, int thread) {
    if constexpr (kQueryInRegisters) return load(p, rows, thread % 32);
    sync_workers();
    load_shared(p, rows, memory, thread);
    sync_workers();
  }
  // The fragments of what fetch_query() brought.
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

 private:
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
  // Into the CTA's shared memory.
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
};

// What a warp has accumulated. A lane holds the query rows n*8 + lane%4*2 + {0, 1}; of out[m][n] the dims m*16 + lane/4 + {0, 8}.
struct State {
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
  __device__ __forceinline__ void absorb(const pt_decode_params& p, const Query& query, const RowMap& rows, const Segment& segment, int token, unsigned char* memory, u32 present, const Team& team) {
    const int lane = team.place;
    const u32 stage = ptx::shared_address(memory);
    Scores scores;
    multiply(query, stage, lane, scores.x);
    const bool masked = to_logits(p, rows, segment, token, present, lane, scores);
    auto& s = scores.x;
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

  // Its rows of a meeting.
  __device__ __forceinline__ void leave(float* to, float2* weights, int lane) const {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float total = sum[n][c];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
        const int row = n * 8 + lane % 4 * 2 + c;
        if (row >= kLiveRows) continue;
        float* dims = to + row * kMeetPitch + lane / 4;
#pragma unroll
        for (int m = 0; m < kOutTiles; ++m) {
          dims[m * 16] = out[m][n][c];
          if (m * 16 + 8 < spec::head_dim_v) dims[m * 16 + 8] = out[m][n][c + 2];
        }
        if (lane < 4) weights[row] = make_float2(maximum[n][c], total);
      }
  }

 private:
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
      Unbounded unbounded{0, 0};
      if (dim < spec::head_dim_v && lane % 4 == 0) {
        unbounded.find(values, dim);
        Unbounded::take_out(values, dim);
      }
      unbounded.positive = __shfl_sync(0xffffffffu, unbounded.positive, lane & ~3);
      unbounded.negative = __shfl_sync(0xffffffffu, unbounded.negative, lane & ~3);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float added = unbounded.sum(seen[n][c]);
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

  __device__ __forceinline__ static void multiply(const Query& query, u32 stage, int lane, float (&s)[kTokenTiles][kColumnTiles][4]) {
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
