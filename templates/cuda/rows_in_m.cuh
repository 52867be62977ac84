// A warpgroup's attention over tiles of its own, on tensor cores with 64 query rows in M and the tokens in N: scores S = Q K^T and output O = P V, Q and P in registers,
// K and V read by the tensor cores from where the boxes' swizzle has put them (sm_90a). For more rows than the other form serves from one reading of the keys.
#pragma once
#include "params.h"
#include "cuda/attend.cuh"

static_assert(kProducer && spec::head_dim % 64 == 0 && spec::head_dim_v % 64 == 0, "the tensor cores read swizzled panels of 64 dims");
constexpr int kStateRegisters = kDimSteps * 4 + spec::head_dim_v / 2 + config::tile_kv / 2 + 64;  // of a thread, about
constexpr bool kQueryInRegisters = true;

// A thread's row in M is warp of the group * 16 + lane / 4, or 8 more.
__device__ __forceinline__ int upper_row(int place) { return place / 32 * 16 + place % 32 / 4; }

// A thread's of a tile: [box][8 tokens of the box][row of two, token of two].
struct Scores {
  static constexpr int kTokens = config::tile_kv / 4, kRows = 2, kOfBox = kBoxTokens / 8;
  float x[kBoxes][kOfBox][4];

  __device__ __forceinline__ float& at(int i, int j) { return x[i / 2 / kOfBox][i / 2 % kOfBox][j * 2 + i % 2]; }
  __device__ __forceinline__ static int token(int i, int place) { return i / 2 * 8 + place % 4 * 2 + i % 2; }
  __device__ __forceinline__ static int row(int j, int place) { return upper_row(place) + j * 8; }
};

// q of 64 rows as A fragments.
struct Query {
  u32 fragment[kDimSteps][4];

  __device__ __forceinline__ void read(const pt_decode_params& p, const RowMap& rows, unsigned char* /*memory*/, int thread) {
    fill(rows, thread % kTeamThreads, [&](int row) { return static_cast<const unsigned short*>(p.q) + rows.q_base + rows.token(row) * p.q_stride_token + rows.head(row) * p.q_stride_head; },
         [](const unsigned short* pair) { return __ldcg(reinterpret_cast<const u32*>(pair)); });
  }
  // What fetch_query() brought.
  __device__ __forceinline__ void take(const RowMap& rows, const unsigned char* memory, int place) {
    fill(rows, place, [&](int row) { return reinterpret_cast<const unsigned short*>(memory + row * kQueryPitch); }, [](const unsigned short* pair) { return *reinterpret_cast<const u32*>(pair); });
  }

 private:
  template <class RowOf, class Read>
  __device__ __forceinline__ void fill(const RowMap& rows, int place, RowOf row_of, Read read) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = upper_row(place) + half * 8;
      const bool live = r < rows.live;
      const unsigned short* q = row_of(live ? r : 0) + place % 4 * 2;
#pragma unroll
      for (int k = 0; k < kDimSteps; ++k) {
        fragment[k][half] = live ? read(q + k * 16) : 0u;
        fragment[k][half + 2] = live ? read(q + k * 16 + 8) : 0u;
      }
    }
  }
};

// What a warpgroup has accumulated. A thread holds its two rows; of out[panel][n] the dims panel*64 + n*8 + lane%4*2 + {0, 1}.
struct State {
  static constexpr int kPanels = spec::head_dim_v / 64;
  float out[kPanels][8][4];
  float maximum[2];  // base-2 logits, equal in the four lanes of a row
  float sum[2];      // this lane's tokens only

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int n = 0; n < 8; ++n) out[panel][n][0] = out[panel][n][1] = out[panel][n][2] = out[panel][n][3] = 0.f;
    maximum[0] = maximum[1] = minus_infinity();
    sum[0] = sum[1] = 0.f;
  }

  // One tile: the stage holds K and V of tokens [token, token + tile_kv), of which `present` exist.
  __device__ __forceinline__ void absorb(const pt_decode_params& p, const Query& query, const RowMap& rows, const Segment& segment, int token, unsigned char* memory, u32 present, Team& team) {
    const int place = team.place;
    const u32 stage = ptx::shared_address(memory);
    Scores s;
    ptx::warpgroup_open();
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k)
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        ptx::warpgroup_mma<spec::dtype == 0, false>(s.x[box], query.fragment[k], ptx::matrix_in_panels(KeyRows::step(stage, 0, 0, k) + box * KeyRows::kBoxBytes, 1024), k > 0);
    ptx::warpgroup_close();
    const bool masked = to_logits(p, rows, segment, token, present, place, s);
    weigh(s);
    if (kRowsDiffer && masked && !all_finite(memory + kValuesAt, place % 32)) take_unbounded(memory + kValuesAt, team, s);
    u32 weights[config::tile_kv / 16][4];
#pragma unroll
    for (int t = 0; t < config::tile_kv / 16; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[t][i] = pack(s.at(4 * t + i / 2 * 2, i % 2), s.at(4 * t + i / 2 * 2 + 1, i % 2));
    ptx::warpgroup_open();
#pragma unroll
    for (int t = 0; t < config::tile_kv / 16; ++t)
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        ptx::warpgroup_mma<spec::dtype == 0, true>(out[panel], weights[t], ptx::matrix_in_panels(stage + kValuesAt + ValueRows::row_at(t * 16) + panel * ValueRows::kPanelBytes, kBoxTokens == 8 ? ValueRows::kBoxBytes : 1024), true);
    ptx::warpgroup_close();
  }

  // Its rows of a meeting.
  __device__ __forceinline__ void leave(float* to, float2* weights, int place) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = upper_row(place) + half * 8;
      if (row >= kLiveRows) continue;
      float* dims = to + row * kMeetPitch + place % 4 * 2;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
        for (int n = 0; n < 8; ++n) *reinterpret_cast<float2*>(dims + panel * 64 + n * 8) = make_float2(out[panel][n][half * 2], out[panel][n][half * 2 + 1]);
      if (place % 4 == 0) weights[row] = make_float2(maximum[half], total);
    }
  }

 private:
  // Logits to weights.
  __device__ __forceinline__ void weigh(Scores& s) {
    float top[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
    for (int i = 0; i < Scores::kTokens; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) top[half] = fmaxf(top[half], s.at(i, half));
    const bool grown = top[0] > maximum[0] + kSlack || top[1] > maximum[1] + kSlack;  // -inf + kSlack: any score exceeds it
    if (__any_sync(0xffffffffu, grown)) rescale(top);
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) shift[half] = maximum[half] == minus_infinity() ? 0.f : maximum[half];  // no key yet: exp2(-inf - 0) = 0, never -inf - -inf
#pragma unroll
    for (int i = 0; i < Scores::kTokens; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[half] += s.at(i, half) = ptx::exp2_approx(s.at(i, half) - shift[half]);
  }

  __device__ __forceinline__ void rescale(float (&top)[2]) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = fmaxf(maximum[half], top[half]);
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
      factor[half] = x == minus_infinity() ? 1.f : ptx::exp2_approx(maximum[half] - x);
      maximum[half] = x;
      sum[half] *= factor[half];
    }
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) out[panel][n][j] *= factor[j / 2];
  }

  __device__ __forceinline__ void take_unbounded(unsigned char* values, Team& team, Scores& s) {
    const int place = team.place;
    u32 seen[2] = {0, 0};  // tokens that each of this thread's rows sees
#pragma unroll
    for (int i = 0; i < Scores::kTokens; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (s.at(i, half) > 0.f) seen[half] |= 1u << Scores::token(i, place);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      seen[half] |= __shfl_xor_sync(0xffffffffu, seen[half], 1);
      seen[half] |= __shfl_xor_sync(0xffffffffu, seen[half], 2);
    }
#pragma unroll 1
    for (int octet = 0; octet < 8 * kPanels; ++octet) {  // rare: small code, not fast code
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        Unbounded unbounded;
        unbounded.find(values, octet * 8 + place % 4 * 2 + c);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float added = unbounded.sum(seen[half]);
#pragma unroll
          for (int n = 0; n < 8 * kPanels; ++n)
            if (n == octet) out[n / 8][n % 8][half * 2 + c] += added;
        }
      }
    }
    team.sync();  // all warps have found what there is
#pragma unroll 1
    for (int dim = place; dim < spec::head_dim_v; dim += kTeamThreads) Unbounded::take_out(values, dim);
    ptx::fence_async();
    team.sync();
  }
};
