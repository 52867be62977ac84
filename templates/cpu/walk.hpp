// Which tiles a block of query rows walks, and how they are shared out. Nothing here depends on other sequences or on the number of
// workers, so the bits of a sequence do not either.
#pragma once
#include "visibility.hpp"

// Does a block walk less than its sequence's tokens?
PT_INLINE bool limits_walk() { return spec_window || spec_chunk || spec_mask == kOffsetMask || spec_block_sparse; }
// Must each (KV head, block) be planned by itself?
PT_INLINE bool plans_blocks() { return limits_walk() || spec_headwise; }

// Tiles [begin, end), each of which costs `weight` of kTileWeight.
struct Segment {
  int begin, end, weight;
};
constexpr int kTileWeight = 64;
constexpr int kMaxSegments = 2 * kMaxTokens + 1;

// In order and disjoint.
struct Walk {
  Segment segments[kMaxSegments];
  int count = 0;
};

// Segments that touch become one.
PT_INLINE void add_tokens(Walk& walk, Range tokens) {
  if (tokens.begin >= tokens.end) return;
  Segment merged = {tokens.begin / config_tile_kv, (tokens.end - 1) / config_tile_kv + 1, kTileWeight};
  int before = 0;
  while (before < walk.count && walk.segments[before].end < merged.begin) ++before;
  int after = before;
  for (; after < walk.count && walk.segments[after].begin <= merged.end; ++after) {
    const Segment& met = walk.segments[after];
    if (met.begin < merged.begin) merged.begin = met.begin;
    if (met.end > merged.end) merged.end = met.end;
  }
  int moved = before + 1 - after;
  if (moved > 0)
    for (int i = walk.count - 1; i >= after; --i) walk.segments[i + moved] = walk.segments[i];
  if (moved < 0)
    for (int i = after; i < walk.count; ++i) walk.segments[i + moved] = walk.segments[i];
  walk.segments[before] = merged;
  walk.count += moved;
}

// Of the tiles that are not local, only those on a stripe are read. Their share is estimated: it balances, and decides no visibility.
PT_INLINE void weigh_stripes(const pt_decode_params& params, Walk& walk, const Block& block, int position) {
  int stripes = 1;  // per sparse_vert_stride key blocks
  if (params.sparse_head_step > 0) stripes = block.rows < spec_group_size ? block.rows : spec_group_size;
  long long blocks_per_tile = (config_tile_kv + params.sparse_block_size - 1ll) / params.sparse_block_size;
  long long weight = kTileWeight * blocks_per_tile * stripes / params.sparse_vert_stride;
  int remote = weight < 1 ? 1 : weight > kTileWeight ? kTileWeight : static_cast<int>(weight);
  long long first_local = first_local_block(params, position < 0 ? 0 : position) * params.sparse_block_size / config_tile_kv;
  for (int i = 0; i < walk.count; ++i) {
    Segment& segment = walk.segments[i];
    if (segment.begin >= first_local) break;
    segment.weight = remote;
    if (segment.end <= first_local) continue;
    for (int j = walk.count; j > i + 1; --j) walk.segments[j] = walk.segments[j - 1];
    walk.segments[i + 1] = {static_cast<int>(first_local), segment.end, kTileWeight};
    segment.end = static_cast<int>(first_local);
    ++walk.count;
    break;
  }
}

PT_INLINE void plan_walk(const pt_decode_params& params, Walk& walk, const Sequence& sequence, const Block& block, int len, int kv_head) {
  int first = block.token(0), last = block.token(block.rows - 1);
  View view = view_of(params, sequence, first, len, kv_head);
  int position = view.position;
  if (spec_mask == kOffsetMask) {
    for (int token = first; token <= last; ++token) {
      if (token != first) view = view_of(params, sequence, token, len, kv_head);
      add_tokens(walk, view.near);
      if (spec_sink_tokens) add_tokens(walk, view.sink);
    }
  } else {
    // Windows and chunks only move on from token to token, and meet the token before: the first one's start to the last one's end.
    View end = spec_q_len == 1 ? view : view_of(params, sequence, last, len, kv_head);
    if (spec_sink_tokens) add_tokens(walk, {view.sink.begin, end.sink.end});
    add_tokens(walk, {view.near.begin, end.near.end});
  }
  if (spec_block_sparse) weigh_stripes(params, walk, block, position);
}

// How a walk is shared out. `used` shares have work; a walk without tiles still has one share, that writes.
struct Shares {
  Walk walk;            // only where it is limited
  long long whole;      // weight of all tiles; else tiles
  long long per_share;
  int len;
  int used;
};

// block_index counts (KV head, block) pairs; 0 stands for all of them unless they are planned one by one.
PT_INLINE void share_out(const pt_decode_params& params, Shares& shares, const Sequence& sequence, int kv_head, int block_index) {
  int len = length_of(params, sequence.index, kv_head);
  shares.len = len;
  if (limits_walk()) {
    shares.walk.count = 0;
    plan_walk(params, shares.walk, sequence, block_of(sequence, block_index), len, kv_head);
    shares.whole = 0;
    for (int i = 0; i < shares.walk.count; ++i) {
      const Segment& segment = shares.walk.segments[i];
      shares.whole += static_cast<long long>(segment.end - segment.begin) * segment.weight;
    }
  } else {
    shares.whole = len / config_tile_kv + (len % config_tile_kv != 0);
  }
  int splits = config_variant == 2 && params.num_splits > 1 ? params.num_splits : 1;
  long long unit = limits_walk() && !spec_block_sparse ? kTileWeight : 1;  // a share of whole tiles, where all weigh the same
  long long units = shares.whole / unit;
  shares.per_share = (units / splits + (units % splits != 0)) * unit;
  shares.used = shares.whole == 0 ? 1 : static_cast<int>((shares.whole - 1) / shares.per_share) + 1;
}

// Tokens that a share walks.
PT_INLINE long long share_tokens(const Shares& shares) {
  return limits_walk() ? shares.per_share * config_tile_kv / kTileWeight : shares.per_share * config_tile_kv;
}

// The tiles of one share, one after the other. A tile belongs to the share in which its weight starts.
struct Cursor {
  int tile, end;     // of the current segment
  int segment;       // the next one
  long long from, to;  // weight of the share's range, counted from the next segment's start
};

PT_INLINE Cursor cursor_of(const Shares& shares, int share) {
  long long from = share * shares.per_share;
  long long to = shares.whole - from < shares.per_share ? shares.whole : from + shares.per_share;
  if (limits_walk()) return {0, 0, 0, from, to};
  return {static_cast<int>(from), static_cast<int>(to), 0, 0, 0};
}

// -1 after the last one.
PT_INLINE int next_tile(const Shares& shares, Cursor& cursor) {
  if (limits_walk()) {
    while (cursor.tile >= cursor.end) {
      if (cursor.segment == shares.walk.count || cursor.to <= 0) return -1;
      const Segment& segment = shares.walk.segments[cursor.segment++];
      const auto tiles_before = [&segment](long long weight) __attribute__((always_inline)) {
        long long tiles = weight <= 0 ? 0 : (weight + segment.weight - 1) / segment.weight;
        return tiles < segment.end - segment.begin ? segment.begin + static_cast<int>(tiles) : segment.end;
      };
      cursor.tile = tiles_before(cursor.from);
      cursor.end = tiles_before(cursor.to);
      long long weight = static_cast<long long>(segment.end - segment.begin) * segment.weight;
      cursor.from -= weight;
      cursor.to -= weight;
    }
  }
  return cursor.tile < cursor.end ? cursor.tile++ : -1;
}
