// Who sees what: the tokens that a query row may attend to. Two ranges say it, but for tree masks and block-sparse attention, which
// take tokens out of them.
#pragma once
#include "sequence.hpp"

// May query rows of one block see different tokens, or a sequence's rows not all of its tokens?
PT_INLINE bool masks_rows() { return spec_q_len > 1 || spec_window || spec_chunk || spec_mask != kNoMask || spec_block_sparse; }

struct Range {
  int begin, end;
};

struct View {
  Range near;
  Range sink;    // first tokens that stay visible outside the window
  int position;
};

PT_INLINE View view_of(const pt_decode_params& params, const Sequence& sequence, int token, int len, int kv_head) {
  int position = len - sequence.tokens + token;
  long long limit = position < 0 ? 0 : position + 1ll;
  long long low = 0, high = limit;
  if (spec_mask == kOffsetMask) {
    const int* pair = params.mask_offset + (sequence.first_row + token) * 2;
    low = pair[0];
    high = pair[1];
  }
  long long begin = low, sink_begin = low, sink_end = low;
  if (spec_window) {
    int window = params.window[kv_head];
    if (window > 0) {
      if (high - window > low) begin = high - window;
      if (spec_sink_tokens) sink_end = low + params.sink_tokens < high ? low + params.sink_tokens : high;
    }
  }
  if (spec_chunk && position >= 0) {
    int first = position / params.chunk * params.chunk;
    if (begin < first) begin = first;
    if (sink_begin < first) sink_begin = first;
  }
  const auto clip = [limit](long long token) __attribute__((always_inline)) { return static_cast<int>(token < 0 ? 0 : token < limit ? token : limit); };
  return {{clip(begin), clip(high)}, {clip(sink_begin), clip(sink_end)}, position};
}

// Block-sparse: key block k is one of the vertical stripes of a head iff (k + offset) % stride == 0.
PT_INLINE long long stripe_offset(const pt_decode_params& params, int head, int kv_head) {
  long long step = params.sparse_head_step;
  if (step >= 0) return (static_cast<long long>(params.sparse_head_offset) + head) * step + 1;
  return (static_cast<long long>(params.sparse_kv_head_offset) + kv_head) * -step + 1;
}
// The first key block that is local to a position.
PT_INLINE long long first_local_block(const pt_decode_params& params, int position) {
  return static_cast<long long>(position / params.sparse_block_size) - params.sparse_local_blocks + 1;
}

// What the rows of a block see; filled only where they are masked.
struct Sight {
  View views[kMaxTokens];  // by token of the block
  Range common;            // every row sees all of it
  int first_token;
};

PT_INLINE void look(const pt_decode_params& params, Sight& sight, const Sequence& sequence, const Block& block, int len, int kv_head) {
  if (!masks_rows()) return;
  sight.first_token = block.token(0);
  sight.common = {0, len};
  // A tile that a tree or stripes touch is never common.
  if (spec_mask == kTreeMask) sight.common.end = len - sequence.tokens;
  if (spec_block_sparse) sight.common.end = 0;
  int tokens = block.token(block.rows - 1) - sight.first_token + 1;
  for (int i = 0; i < tokens; ++i) {
    View view = view_of(params, sequence, sight.first_token + i, len, kv_head);
    if (view.near.begin > sight.common.begin) sight.common.begin = view.near.begin;
    if (view.near.end < sight.common.end) sight.common.end = view.near.end;
    sight.views[i] = view;
  }
}

PT_INLINE bool all_see(const Sight& sight, int first) {
  return first >= sight.common.begin && sight.common.end - first >= config_tile_kv;
}

constexpr int kMaskLanes = 8;

// seen[row][token of the tile] and wanted[token], the union: -1 or 0.
static void see_tile(const pt_decode_params& params, const Sight& sight, const Sequence& sequence, const Block& block, int kv_head, int len, int first,
                     int* seen, int* wanted) {
  const Ints<kMaskLanes> lane = lane_numbers<kMaskLanes>();
  const Ints<kMaskLanes> none = 0;
  for (int t = 0; t < config_tile_kv; t += kMaskLanes) __builtin_memcpy(wanted + t, &none, sizeof none);
  for (int row = 0; row < block.rows; ++row) {
    const View& view = sight.views[block.token(row) - sight.first_token];
    int* mask = seen + row * config_tile_kv;
    for (int t = 0; t < config_tile_kv; t += kMaskLanes) {
      Ints<kMaskLanes> token = lane + (first + t);
      Ints<kMaskLanes> visible = (token >= view.near.begin) & (token < view.near.end);
      if (spec_sink_tokens) visible |= (token >= view.sink.begin) & (token < view.sink.end);
      __builtin_memcpy(mask + t, &visible, sizeof visible);
    }
    if (spec_mask == kTreeMask) {
      const int old_tokens = len - sequence.tokens;
      const long long size = params.tree_mask_size;
      const unsigned char* hidden = params.tree_mask + (sequence.index * size + block.token(row)) * size;
      for (int t = old_tokens > first ? old_tokens - first : 0; t < config_tile_kv; ++t) {
        long long column = static_cast<long long>(first) + t - old_tokens;
        if (column >= size) break;
        if (hidden[column] != 0) mask[t] = 0;
      }
    }
    if (spec_block_sparse && view.position >= 0) {
      const int stride = params.sparse_vert_stride;
      const long long offset = stripe_offset(params, kv_head * spec_group_size + block.head(row), kv_head);
      const long long local = first_local_block(params, view.position);
      for (int t = 0; t < config_tile_kv;) {
        long long key_block = (static_cast<long long>(first) + t) / params.sparse_block_size;
        long long end = (key_block + 1) * params.sparse_block_size - first;
        if (end > config_tile_kv) end = config_tile_kv;
        bool visible = key_block >= local || (key_block + offset) % stride == 0;
        for (; t < end; ++t)
          if (!visible) mask[t] = 0;
      }
    }
    for (int t = 0; t < config_tile_kv; t += kMaskLanes) {
      Ints<kMaskLanes> either = load_raw<Ints<kMaskLanes>>(wanted + t) | load_raw<Ints<kMaskLanes>>(mask + t);
      __builtin_memcpy(wanted + t, &either, sizeof either);
    }
  }
}
