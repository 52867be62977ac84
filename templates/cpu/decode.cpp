// Decode attention (one query token per sequence) over a paged KV cache. Compiled to bitcode at build time and specialised at run time.
//
// A work item is a (sequence, KV head, block of query heads, share of the KV tiles). It walks its tiles with an online softmax; K and
// V are converted in registers and used for up to four query heads at once, because conversion, not arithmetic, is the cost that a
// loop per query head would repeat. V1 has one share per sequence; V2 has num_splits, merged by pt_merge.
#include "templates/params.h"
#include "softmax.hpp"
#include "tile.hpp"

namespace {

PT_INLINE int head_tiles() { return (spec_group_size + kMaxHeads - 1) / kMaxHeads; }
// Blocks of even size: 24 heads are 12 + 12, not 16 + 8.
PT_INLINE int rows_per_tile() { return (spec_group_size + head_tiles() - 1) / head_tiles(); }

// How the KV tiles of one sequence are shared out. `used` shares have at least one tile; an empty sequence still has one, that writes.
struct Shares {
  int len;
  int tiles;
  int per_share;
  int used;
};

PT_INLINE Shares shares_of(const pt_decode_params& params, int sequence) {
  int len = sequence_length(params, sequence);
  int tiles = len / config_tile_kv + (len % config_tile_kv != 0);
  int splits = config_variant == 2 && params.num_splits > 1 ? params.num_splits : 1;
  int per_share = tiles / splits + (tiles % splits != 0);
  int used = tiles == 0 ? 1 : (tiles - 1) / per_share + 1;
  return {len, tiles, per_share, used};
}

// Tokens that a share walks, plus what an item costs beside them, in tokens: reading q and writing out is about the work of one tile (an
// estimate; it only balances the workers).
constexpr long long kItemTokens = 32;
PT_INLINE long long item_cost(const Shares& shares) {
  return static_cast<long long>(shares.per_share) * config_tile_kv + kItemTokens;
}
PT_INLINE long long items_of(const Shares& shares) { return static_cast<long long>(shares.used) * spec_kv_heads * head_tiles(); }

PT_INLINE long long total_cost(const pt_decode_params& params) {
  long long cost = 0;
  for (int b = 0; b < params.batch; ++b) {
    Shares shares = shares_of(params, b);
    cost += item_cost(shares) * items_of(shares);
  }
  return cost;
}

// Start of part `index` of `parts` even parts of `whole`, without overflow of whole * index.
PT_INLINE long long part_start(long long whole, int index, int parts) {
  return whole / parts * index + whole % parts * index / parts;
}

PT_INLINE void write_output(const pt_decode_params& params, const State& state, int sequence, int first_head, int heads) {
  for (int h = 0; h < heads; ++h) {
    int head = first_head + h;
    Byte* out = static_cast<Byte*>(params.out) + (sequence * params.out_stride_seq + head * params.out_stride_head) * element_bytes();
    float sum = state.sum[h];
    float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int d = 0; d < spec_head_dim; d += 8) {
      Floats<8> o = load_floats<8>(state.out_row(h) + d);
      store_row<8>(out, d, sum == 0.0f ? Floats<8>(0.0f) : o * factor);
    }
    if (spec_lse) params.lse[static_cast<long long>(sequence) * spec_q_heads + head] = natural_lse(state.max[h], sum);
  }
}

// The share's result, normalised, and its base-2 LSE.
PT_INLINE void write_partial(const pt_decode_params& params, const State& state, int sequence, int share, int first_head, int heads) {
  for (int h = 0; h < heads; ++h) {
    long long row = (static_cast<long long>(sequence) * spec_q_heads + first_head + h) * params.num_splits + share;
    float sum = state.sum[h];
    float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int d = 0; d < spec_head_dim; d += 8) {
      Floats<8> o = load_floats<8>(state.out_row(h) + d);
      store_floats<8>(params.partial_out + row * spec_head_dim + d, sum == 0.0f ? Floats<8>(0.0f) : o * factor);
    }
    params.partial_lse[row] = log2_sum(state.max[h], sum);
  }
}

template <int lanes> PT_INLINE void run_item(const pt_decode_params& params, const Shares& shares, int sequence, long long item) {
  State state;
  int share = static_cast<int>(item % shares.used);
  int block = static_cast<int>(item / shares.used);
  int kv_head = block / head_tiles();
  int first_row = block % head_tiles() * rows_per_tile();
  int heads = spec_group_size - first_row < rows_per_tile() ? spec_group_size - first_row : rows_per_tile();
  int first_head = kv_head * spec_group_size + first_row;

  load_queries(params, state, sequence, first_head, heads);
  int first_tile = share * shares.per_share;
  int last_tile = shares.tiles - first_tile < shares.per_share ? shares.tiles : first_tile + shares.per_share;
  const auto look_up = [&](int tile) __attribute__((always_inline)) {
    find_rows(params, state.rows[tile & 1], sequence, kv_head, tile * config_tile_kv, shares.len);
  };
  if (first_tile < last_tile) look_up(first_tile);
  for (int tile = first_tile; tile < last_tile; ++tile) {
    bool more = tile + 1 < last_tile;
    if (more) look_up(tile + 1);
    const Rows& rows = state.rows[tile & 1];
    if (rows.any) attend_tile<lanes>(state, rows, state.rows[more ? (tile + 1) & 1 : tile & 1], heads, params.scale_log2);
  }
  if (shares.used == 1) {
    write_output(params, state, sequence, first_head, heads);
  } else {
    write_partial(params, state, sequence, share, first_head, heads);
  }
}

// Contiguous ranges of items, even by cost; an item belongs to the worker in whose range its start lies.
template <int lanes> PT_INLINE void run_worker(const pt_decode_params& params, int worker, int workers) {
  long long whole = total_cost(params);
  long long begin = part_start(whole, worker, workers);
  long long end = part_start(whole, worker + 1, workers);
  long long start = 0;  // cost of all items before this sequence
  for (int b = 0; b < params.batch && start < end; ++b) {
    Shares shares = shares_of(params, b);
    long long cost = item_cost(shares);
    long long count = items_of(shares);
    long long first = begin > start ? (begin - start + cost - 1) / cost : 0;
    long long last = (end - start + cost - 1) / cost;
    if (last > count) last = count;
    if (first == 0 && last > 0) report_length(params, b);
    for (long long item = first; item < last; ++item) run_item<lanes>(params, shares, b, item);
    start += cost * count;
  }
}

// Weights first, then the sum: the largest share has weight 2^0, an empty one 0 whatever its memory holds.
PT_INLINE void merge_row(const pt_decode_params& params, int sequence, int head, int used) {
  long long row = (static_cast<long long>(sequence) * spec_q_heads + head) * params.num_splits;
  const float* lse = params.partial_lse + row;
  float top = -kInfinity;
  for (int s = 0; s < used; ++s) top = lse[s] > top ? lse[s] : top;
  float base = top == -kInfinity ? 0.0f : top;
  float total = 0.0f;
  for (int s = 0; s < used; ++s) total += exp2_nonpositive<4>(Floats<4>(lse[s] - base))[0];
  alignas(64) float sum[kMaxHeadDim];
  for (int d = 0; d < spec_head_dim; d += 8) store_floats<8>(sum + d, Floats<8>(0.0f));
  for (int s = 0; s < used; ++s) {
    if (lse[s] == -kInfinity) continue;
    float weight = exp2_nonpositive<4>(Floats<4>(lse[s] - base))[0] / total;
    const float* partial = params.partial_out + (row + s) * spec_head_dim;
    for (int d = 0; d < spec_head_dim; d += 8)
      store_floats<8>(sum + d, load_floats<8>(sum + d) + load_floats<8>(partial + d) * weight);
  }
  Byte* out = static_cast<Byte*>(params.out) + (sequence * params.out_stride_seq + head * params.out_stride_head) * element_bytes();
  for (int d = 0; d < spec_head_dim; d += 8) store_row<8>(out, d, load_floats<8>(sum + d));
  if (spec_lse) params.lse[static_cast<long long>(sequence) * spec_q_heads + head] = natural_lse(top, total);
}

}  // namespace

extern "C" {

// KV tokens x head blocks that a launch walks: how many workers are worth waking.
long long pt_cost(const pt_decode_params* params) { return total_cost(*params); }

void pt_decode(const pt_decode_params* params, int worker, int workers) {
  if (config_vector_bits == 512) {
    run_worker<16>(*params, worker, workers);
  } else if (config_vector_bits == 256) {
    run_worker<8>(*params, worker, workers);
  } else {
    run_worker<4>(*params, worker, workers);
  }
}

// After every worker has finished pt_decode. Sequences of one share have been written already.
void pt_merge(const pt_decode_params* params, int worker, int workers) {
  long long rows = static_cast<long long>(params->batch) * spec_q_heads;
  long long last = part_start(rows, worker + 1, workers);
  for (long long row = part_start(rows, worker, workers); row < last; ++row) {
    int sequence = static_cast<int>(row / spec_q_heads);
    int used = shares_of(*params, sequence).used;
    if (used > 1) merge_row(*params, sequence, static_cast<int>(row % spec_q_heads), used);
  }
}

// In the order of pagetune::LaunchFacts. The initialiser depends on the constants, so it becomes data when they are known.
__attribute__((used, section(".rodata.pt_facts"))) extern const int pt_facts[11] = {
    static_cast<int>(sizeof(pt_decode_params)),
    static_cast<int>(PT_PARAMS_VERSION),
    config_variant,
    0,
    static_cast<int>(sizeof(State)),
    config_tile_kv,
    rows_per_tile(),
    head_tiles(),
    config_variant == 2 ? 1 : 0,
    spec_kv_heads,
    spec_q_heads,
};

}  // extern "C"
