// Decode attention over a paged KV cache on tensor cores (sm_80 and up): one query token per sequence, heads of a group in M.
//
// A CTA serves up to 16 query heads of one (sequence, KV head), over the whole sequence (V1) or one split of it (V2). Its warps share
// each tile of kTileTokens tokens, a unit of tile_kv tokens each, and every warp keeps an asynchronous-copy pipeline of its own, so
// the main loop has no CTA barrier. The warps' states meet once, in shared memory, at the end.
//   grid: x = head tile + head_tiles * (KV head + kv_heads * sequence), y = split
#include "params.h"
#include "cuda/ptx.cuh"
#include "cuda/numeric.cuh"
#include "cuda/split.cuh"
#include "cuda/paging.cuh"
#include "cuda/softmax.cuh"

constexpr int kThreads = config::num_warps * 32;
constexpr int kHeadTiles = ceil_div(spec::group_size, 16);
constexpr int kLiveRows = min_of(spec::group_size, 16);  // rows of the MMA tile that can hold a head
constexpr int kOutTiles = spec::head_dim / 8;
constexpr int kTokenSteps = config::tile_kv / 16;

// Beyond 128 dims the query's fragments would not fit beside the accumulators: they are read again from shared memory for each unit.
constexpr bool kQueryInRegisters = spec::head_dim <= 128;
constexpr int kQueryBytes = kQueryInRegisters ? 0 : 16 * kRowBytes;
constexpr int kPipelineBytes = config::num_warps * config::num_stages * kStageBytes;
constexpr int kMeetBytes = config::num_warps * kLiveRows * (spec::head_dim * 4 + 8);  // the warps' states, after the pipeline
constexpr int kSharedBytes = max_of(kPipelineBytes, kMeetBytes) + kQueryBytes;

// Read back from the compiled image by the host, in the order of LaunchFacts.
extern "C" __device__ int pt_facts[11] = {
    static_cast<int>(sizeof(pt_decode_params)), PT_PARAMS_VERSION, config::variant, kThreads, kSharedBytes, kTileTokens, kLiveRows, kHeadTiles,
    config::variant == 2 ? 64 * ceil_div(spec::head_dim, 128) : 0, spec::kv_heads, spec::q_heads};

// The query heads of one head tile, as MMA A-fragments.
struct Query {
  u32 fragment[kQueryInRegisters ? kDimSteps : 1][4];
  u32 shared;

  __device__ __forceinline__ void start(const unsigned short* q, i64 head_stride, int rows, unsigned char* memory, int thread, int lane) {
    if constexpr (kQueryInRegisters) {
      const int row = lane / 4;
#pragma unroll
      for (int k = 0; k < kDimSteps; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int r = row + j % 2 * 8, dim = k * 16 + j / 2 * 8 + lane % 4 * 2;
          const bool live = r < rows && dim < spec::head_dim;
          fragment[k][j] = live ? __ldg(reinterpret_cast<const u32*>(q + r * head_stride + dim)) : 0u;
        }
    } else {
      constexpr int kPieces = kDimSteps * 2;
      for (int i = thread; i < 16 * kPieces; i += kThreads) {
        const int r = i / kPieces, piece = i % kPieces;
        const bool live = r < rows && piece < kRowPieces;
        *reinterpret_cast<uint4*>(memory + r * kRowBytes + piece * 16) =
            live ? __ldg(reinterpret_cast<const uint4*>(q + r * head_stride + piece * 8)) : make_uint4(0, 0, 0, 0);
      }
      shared = ptx::shared_address(memory) + (lane % 8 + lane / 8 % 2 * 8) * kRowBytes + lane / 16 * 16;
    }
  }

  __device__ __forceinline__ void step(int k, u32 (&a)[4]) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = fragment[k][j];
    } else {
      ptx::load_matrices(a, shared + k * 32);
    }
  }
};

// What a warp has accumulated: out[i] holds dims 8i … 8i+7 of the lane's two rows.
struct State {
  float out[kOutTiles][4];
  Softmax softmax;

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.f;
    softmax.start();
  }

  __device__ __forceinline__ void absorb(const Query& query, const unsigned char* stage, u32 present, float scale_log2, int lane) {
    const u32 k_unit = ptx::shared_address(stage);
    float s[2 * kTokenSteps][4];
#pragma unroll
    for (int i = 0; i < 2 * kTokenSteps; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.f;
    const u32 k_row = k_unit + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k) {
      u32 a[4];
      query.step(k, a);
#pragma unroll
      for (int t = 0; t < kTokenSteps; ++t) {
        u32 b[4];
        ptx::load_matrices(b, k_row + t * 16 * kRowBytes + k * 32);
        mma(s[2 * t], a, b[0], b[1]);
        mma(s[2 * t + 1], a, b[2], b[3]);
      }
    }
    float factor[2];
    if (softmax.update(s, scale_log2, present, lane, factor)) {
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        out[i][0] *= factor[0];
        out[i][1] *= factor[0];
        out[i][2] *= factor[1];
        out[i][3] *= factor[1];
      }
    }
    const u32 v_row = k_unit + kUnitBytes + lane % 16 * kRowBytes + lane / 16 * 16;
#pragma unroll
    for (int t = 0; t < kTokenSteps; ++t) {
      const u32 a[4] = {pack(s[2 * t][0], s[2 * t][1]), pack(s[2 * t][2], s[2 * t][3]), pack(s[2 * t + 1][0], s[2 * t + 1][1]),
                        pack(s[2 * t + 1][2], s[2 * t + 1][3])};
#pragma unroll
      for (int d = 0; d < kDimSteps; ++d) {
        u32 b[4];
        ptx::load_matrices_transposed(b, v_row + t * 16 * kRowBytes + d * 32);
        mma(out[2 * d], a, b[0], b[1]);
        if (2 * d + 1 < kOutTiles) mma(out[2 * d + 1 < kOutTiles ? 2 * d + 1 : 0], a, b[2], b[3]);
      }
    }
  }
};

// The warps' states in shared memory: accumulators [warp][row][dim], then (maximum, sum) [warp][row].
struct Meeting {
  float* out;
  float2* weight;

  __device__ __forceinline__ explicit Meeting(unsigned char* memory)
      : out(reinterpret_cast<float*>(memory)), weight(reinterpret_cast<float2*>(memory + config::num_warps * kLiveRows * spec::head_dim * 4)) {}

  __device__ __forceinline__ void put(const State& state, int warp, int lane) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + h * 8;
      if (row >= kLiveRows) continue;
      float* to = out + (warp * kLiveRows + row) * spec::head_dim + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) *reinterpret_cast<float2*>(to + i * 8) = make_float2(state.out[i][2 * h], state.out[i][2 * h + 1]);
      if (lane % 4 == 0) weight[warp * kLiveRows + row] = make_float2(state.softmax.maximum[h], state.softmax.sum[h]);
    }
  }

  // Normalised dims (dim, dim + 1) of a row over all warps, and the base-2 LSE.
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
      const float2 part = *reinterpret_cast<const float2*>(out + (w * kLiveRows + row) * spec::head_dim + dim);
      total += factor * state.y;
      sum.x += factor * part.x;
      sum.y += factor * part.y;
    }
    lse = top + ptx::log2_approx(total);
    const float inverse = 1.f / total;
    return make_float2(sum.x * inverse, sum.y * inverse);
  }
};

// One CTA a multiprocessor is enough for the bound: without it ptxas aims at 96 or 168 registers and spills a word or two to get there.
extern "C" __global__ void __launch_bounds__(kThreads, 1) pt_decode(const __grid_constant__ pt_decode_params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const u32 x = blockIdx.x;
  const int head_tile = x % kHeadTiles;
  const int head = x / kHeadTiles % spec::kv_heads;
  const int sequence = x / (kHeadTiles * spec::kv_heads);
  const int split = blockIdx.y;

  const int length = usable_length(p, sequence);
  if constexpr (spec::checked) {
    const int claimed = __ldg(p.seq_lens + sequence);
    if (thread == 0 && claimed > length) report(p, 3, sequence, head, claimed, length);
  }
  const Shares shares = shares_of(length, config::variant == 2 ? p.num_splits : 1);
  if (split >= max(shares.used, 1)) return;
  const int first = split * shares.each;
  const int units = min(shares.each, shares.tiles - first);  // of this warp: one per CTA tile

  unsigned char* stages = shared + warp * config::num_stages * kStageBytes;
  const Pages pages{p, p.block_tables + sequence * p.block_table_stride, sequence, head, length, lane};
  const auto token_of = [&](int unit) { return (first + unit) * kTileTokens + warp * config::tile_kv; };
  const auto look_up = [&](int unit) { return unit < units ? pages.look_up(token_of(unit)) : -1; };

  clear_padding(stages, config::num_stages, lane);
  int ids[config::num_stages];
#pragma unroll
  for (int i = 0; i < config::num_stages; ++i) ids[i] = look_up(i);
#pragma unroll
  for (int i = 0; i < config::num_stages - 1; ++i) {
    if (i < units) pages.load(token_of(i), ids[i], stages + i * kStageBytes);
    ptx::commit_copies();
  }
  int next_id = ids[config::num_stages - 1];

  const int rows = min(spec::group_size - head_tile * 16, 16);  // live heads of this tile
  const int first_head = head * spec::group_size + head_tile * 16;
  Query query;
  query.start(static_cast<const unsigned short*>(p.q) + sequence * p.q_stride_seq + first_head * p.q_stride_head, p.q_stride_head, rows,
              shared + max_of(kPipelineBytes, kMeetBytes), thread, lane);
  if constexpr (!kQueryInRegisters) __syncthreads();

  State state;
  state.start();
  int reading = 0, filling = config::num_stages - 1;
  for (int unit = 0; unit < units; ++unit) {
    const int ahead = unit + config::num_stages - 1;
    if (ahead < units) pages.load(token_of(ahead), next_id, stages + filling * kStageBytes);
    ptx::commit_copies();
    next_id = look_up(ahead + 1);
    ptx::wait_copies<config::num_stages - 1>();
    __syncwarp();
    const unsigned char* stage = stages + reading * kStageBytes;
    const u32 present = *reinterpret_cast<const u32*>(stage + 2 * kUnitBytes);
    if (present != 0) state.absorb(query, stage, present, p.scale_log2, lane);
    __syncwarp();  // the stage is filled again in the next round
    reading = reading + 1 == config::num_stages ? 0 : reading + 1;
    filling = filling + 1 == config::num_stages ? 0 : filling + 1;
  }
  ptx::wait_copies<0>();
  state.softmax.finish();
  __syncthreads();  // all pipelines are drained: their memory becomes the meeting place
  const Meeting meeting(shared);
  meeting.put(state, warp, lane);
  __syncthreads();

  const bool whole = config::variant == 1 || shares.used <= 1;  // nothing to merge: write the result itself
  constexpr int kPairs = spec::head_dim / 2;
  for (int i = thread; i < rows * kPairs; i += kThreads) {
    const int row = i / kPairs, dim = i % kPairs * 2;
    float lse;
    const float2 o = meeting.take(row, dim, lse);
    const i64 q_head = first_head + row;
    if (whole) {
      unsigned short* out = static_cast<unsigned short*>(p.out) + sequence * p.out_stride_seq + q_head * p.out_stride_head + dim;
      *reinterpret_cast<u32*>(out) = pack(o.x, o.y);
      if (spec::lse && dim == 0) p.lse[static_cast<i64>(sequence) * spec::q_heads + q_head] = lse * kLn2;
    } else {
      const i64 slot = (static_cast<i64>(sequence) * spec::q_heads + q_head) * p.num_splits + split;
      *reinterpret_cast<float2*>(p.partial_out + slot * spec::head_dim + dim) = o;
      if (dim == 0) p.partial_lse[slot] = lse;
    }
  }
}
