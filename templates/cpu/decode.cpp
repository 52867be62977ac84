// Decode attention (1 to 16 query tokens per sequence) over a paged KV cache. Compiled to bitcode at build time and specialised at run
// time.
//
// A work item is a (sequence, KV head, block of query rows, share of the KV tiles). It walks its tiles with an online softmax; K and
// V are converted in registers and used for up to four query rows at once, because conversion, not arithmetic, is the cost that a
// loop per query row would repeat. V1 has one share per sequence; V2 has num_splits, merged by pt_merge.
#include "result.hpp"
#include "walk.hpp"

namespace {

PT_INLINE int kv_head_blocks(const Sequence& sequence) { return spec_kv_heads * blocks_for(rows_of(sequence)); }

// What is planned at once: all of a sequence, or each (KV head, block of rows) by itself.
PT_INLINE int units_of(const Sequence& sequence) {
  if (sequence.tokens == 0) return 0;
  return plans_blocks() ? kv_head_blocks(sequence) : 1;
}
PT_INLINE void plan_unit(const pt_decode_params& params, Shares& shares, const Sequence& sequence, int unit) {
  int blocks = blocks_for(rows_of(sequence));
  share_out(params, shares, sequence, plans_blocks() ? unit / blocks : 0, plans_blocks() ? unit % blocks : 0);
}
PT_INLINE long long items_of(const Sequence& sequence, const Shares& shares) {
  return plans_blocks() ? shares.used : static_cast<long long>(shares.used) * kv_head_blocks(sequence);
}

// Tokens that a share walks, plus what an item costs beside them, in tokens: reading q and writing out is about the work of one tile (an
// estimate; it only balances the workers).
constexpr long long kItemTokens = 32;
PT_INLINE long long item_cost(const Shares& shares) { return share_tokens(shares) + kItemTokens; }

static long long total_cost(const pt_decode_params& params) {
  long long cost = 0;
  Shares shares;
#pragma clang loop vectorize(disable) unroll(disable)  // too short to pay for the code
  for (int b = 0; b < params.batch; ++b) {
    Sequence sequence = sequence_of(params, b);
    int units = units_of(sequence);
    for (int unit = 0; unit < units; ++unit) {
      plan_unit(params, shares, sequence, unit);
      cost += item_cost(shares) * items_of(sequence, shares);
    }
  }
  return cost;
}

// Start of part `index` of `parts` even parts of `whole`, without overflow of whole * index.
PT_INLINE long long part_start(long long whole, int index, int parts) {
  return whole / parts * index + whole % parts * index / parts;
}

template <int lanes> PT_INLINE void run_item(const pt_decode_params& params, const Shares& shares, const Sequence& sequence, int kv_head_block, int share) {
  State state;
  int blocks = blocks_for(rows_of(sequence));
  const Block block = block_of(sequence, kv_head_block % blocks);  // a value of its own, that no call can change: the count of rows folds
  Item item = {sequence, block, kv_head_block / blocks, shares.len, {}};
  look(params, item.sight, sequence, block, item.len, item.kv_head);
  load_queries(params, state, item);
  const Scale scale = scale_of(params);
  Cursor cursor = cursor_of(shares, share);
  // The next tile that a row sees anything of.
  const auto find_next = [&](Rows& rows) __attribute__((always_inline)) {
    for (int tile = next_tile(shares, cursor); tile >= 0; tile = next_tile(shares, cursor)) {
      find_rows(params, rows, item, tile * config_tile_kv);
      if (rows.any) return true;
    }
    return false;
  };
  int turn = 0;
  for (bool more = find_next(state.rows[0]); more; turn ^= 1) {
    more = find_next(state.rows[turn ^ 1]);
    attend_tile<lanes>(state, state.rows[turn], state.rows[more ? turn ^ 1 : turn], block.rows, scale);
  }
  if (shares.used == 1) {
    write_output(params, state, item);
  } else {
    write_partial(params, state, item, share);
  }
}

// Contiguous ranges of items, even by cost; an item belongs to the worker in whose range its start lies.
template <int lanes> PT_INLINE void run_worker(const pt_decode_params& params, int worker, int workers) {
  long long whole = total_cost(params);
  long long begin = part_start(whole, worker, workers);
  long long end = part_start(whole, worker + 1, workers);
  long long start = 0;  // cost of all items before this unit
  Shares shares;
  for (int b = 0; b < params.batch && start < end; ++b) {
    Sequence sequence = sequence_of(params, b);
    int units = units_of(sequence);
    for (int unit = 0; unit < units && start < end; ++unit) {
      plan_unit(params, shares, sequence, unit);
      long long cost = item_cost(shares);
      long long count = items_of(sequence, shares);
      long long first = begin > start ? (begin - start + cost - 1) / cost : 0;
      long long last = (end - start + cost - 1) / cost;
      if (last > count) last = count;
      if (first == 0 && last > 0) report_sequence(params, sequence, plans_blocks() ? unit / blocks_for(rows_of(sequence)) : 0);
      for (long long item = first; item < last; ++item)
        run_item<lanes>(params, shares, sequence, plans_blocks() ? unit : static_cast<int>(item / shares.used), static_cast<int>(item % shares.used));
      start += cost * count;
    }
  }
}

}  // namespace

extern "C" {

// KV tokens x row blocks that a launch walks: how many workers are worth waking.
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

// After every worker has finished pt_decode. Rows of one share have been written already.
void pt_merge(const pt_decode_params* params, int worker, int workers) {
  constexpr long long kNone = -1;
  const int rows = spec_q_len * spec_group_size;  // of a KV head, tokens outside
  const long long all = static_cast<long long>(params->batch) * spec_kv_heads * rows;
  const long long last = part_start(all, worker + 1, workers);
  long long planned = kNone;  // the unit that `shares` is of
  Shares shares;
  for (long long at = part_start(all, worker, workers); at < last; ++at) {
    const int row = static_cast<int>(at % rows), kv_head = static_cast<int>(at / rows % spec_kv_heads);
    const int token = row / spec_group_size;
    const Sequence sequence = sequence_of(*params, static_cast<int>(at / rows / spec_kv_heads));
    if (token >= sequence.tokens) continue;
    const int unit = plans_blocks() ? kv_head * blocks_for(rows_of(sequence)) + row / rows_per_block(rows_of(sequence)) : 0;
    // Units of a sequence are fewer than its rows, so this names one.
    const long long name = static_cast<long long>(sequence.index) * spec_kv_heads * rows + unit;
    if (name != planned) plan_unit(*params, shares, sequence, unit);
    planned = name;
    if (shares.used > 1) merge_row(*params, sequence, token, kv_head * spec_group_size + row % spec_group_size, shares.used);
  }
}

// In the order of pagetune::LaunchFacts; what is left out belongs to GPUs and is zero. The initialiser depends on the constants, so it becomes data when they are known.
__attribute__((used, section(".rodata.pt_facts"))) extern const int pt_facts[19] = {
    static_cast<int>(sizeof(pt_decode_params)),
    static_cast<int>(PT_PARAMS_VERSION),
    config_variant,
    0,
    static_cast<int>(sizeof(State)),
    config_tile_kv,
    rows_per_block(spec_group_size * spec_q_len),
    blocks_for(spec_group_size * spec_q_len),
    config_variant == 2 ? 1 : 0,
    spec_kv_heads,
    spec_q_heads,
    0,
    0,
};

}  // extern "C"
