// Who sees what. A pair is a (sequence, KV head); its query rows are (token i, head of the group), row = i * group_size + head, at position
// length - tokens + i. Everything here is decided by position alone; page tables come later.
#pragma once
#include "params.h"
#include "cuda/numeric.cuh"

constexpr int kTileTokens = config::tile_kv;                      // of a tile: what one warp works on at a time, the granule of every schedule
constexpr int kRows = spec::group_size * spec::q_len;             // query rows of a pair
constexpr bool kWarpgroups = config::warpgroups > 0;               // which compute on 64 rows at a time; else warps do, on 16
constexpr int kTeams = kWarpgroups ? config::warpgroups : config::num_warps;  // that take a CTA's tiles in turn
constexpr int kRowsPerCta = kWarpgroups ? 64 : min_of(round_up(kRows, 8), 16);
constexpr int kRowTiles = ceil_div(kRows, kRowsPerCta);           // CTAs that walk the same keys for different rows
constexpr bool kHeadsMayDiffer = spec::window || spec::headwise;  // which keys a pair has may depend on the KV head

__device__ __forceinline__ const int* length_at(const pt_decode_params& p, int sequence, int head) {
  if constexpr (spec::headwise) return p.seq_lens + static_cast<i64>(sequence) * p.seq_lens_stride_seq + static_cast<i64>(head) * p.seq_lens_stride_head;
  return p.seq_lens + sequence;
}
// Tokens of a pair that its table row can hold; a longer claim is cut, so that nothing past the row is read.
__device__ __forceinline__ int usable_length(const pt_decode_params& p, int claimed) {
  const int length = max(claimed, 0);
  const i64 capacity = static_cast<i64>(p.block_table_width) * spec::page_size;
  return static_cast<int>(length < capacity ? static_cast<i64>(length) : capacity);
}

// Do all heads of a sequence have the same keys to read? A head-wise table by itself changes nothing: that depends on windows and lengths.
__device__ __forceinline__ bool heads_are_alike(const pt_decode_params& p) {
  if constexpr (spec::window) return false;
  return !spec::headwise || p.seq_lens_stride_head == 0;
}

// Query tokens of a sequence, at most q_len, and the row of its first.
struct QueryTokens {
  int count;
  i64 row;
};
__device__ __forceinline__ QueryTokens query_tokens(const pt_decode_params& p, int sequence) {
  if constexpr (spec::q_len > 1) {
    if (p.cu_seqlens_q != nullptr) {
      const int first = __ldg(p.cu_seqlens_q + sequence), end = __ldg(p.cu_seqlens_q + sequence + 1);
      return {min(max(end - first, 0), spec::q_len), first};
    }
  }
  return {spec::q_len, static_cast<i64>(sequence) * spec::q_len};
}

// The keys that some row of a pair can see: [lo, hi) and, under a window, the sink tokens [sink_lo, sink_hi), those that a chunk leaves.
struct Span {
  int length, tokens;  // of the pair: keys, query tokens
  int window;          // 0: all
  int lo, hi, sink_lo, sink_hi;
  int sink_tile, sink_tiles, first_tile, tiles;  // tiles in order: those of the sink tokens from sink_tile on, then those from first_tile on

  __device__ __forceinline__ int first_position() const { return length - tokens; }
  __device__ __forceinline__ int token_of(int tile) const {
    if constexpr (spec::sink_tokens) return (tile < sink_tiles ? tile + sink_tile : tile - sink_tiles + first_tile) * kTileTokens;
    return (tile + first_tile) * kTileTokens;
  }
};

// `claimed`: what lies at length_at().
__device__ __forceinline__ Span span_of(const pt_decode_params& p, int sequence, int head, int claimed) {
  Span s;
  s.length = usable_length(p, claimed);
  const QueryTokens query = query_tokens(p, sequence);
  s.tokens = query.count;
  s.window = spec::window ? __ldg(p.window + head) : 0;
  s.lo = s.sink_lo = s.sink_hi = 0;
  s.hi = s.tokens > 0 ? s.length : 0;
  const int first = max(s.first_position(), 0);
  if constexpr (spec::mask == 2) {
    int lowest = s.hi, highest = 0;
    for (int i = 0; i < s.tokens; ++i) {
      const int lo = __ldg(p.mask_offset + 2 * (query.row + i)), hi = __ldg(p.mask_offset + 2 * (query.row + i) + 1);
      if (lo >= hi) continue;
      lowest = min(lowest, spec::window && !spec::sink_tokens && s.window > 0 ? max(lo, hi - s.window) : lo);
      highest = max(highest, hi);
    }
    s.lo = max(lowest, 0);
    s.hi = min(s.hi, highest);
  } else if constexpr (spec::window) {
    if (s.window > 0) {
      s.lo = max(first - s.window + 1, 0);
      if constexpr (spec::sink_tokens) s.sink_hi = min(p.sink_tokens, s.lo);
    }
  }
  if constexpr (spec::chunk) {
    s.sink_lo = first / p.chunk * p.chunk;  // a chunk hides what lies before it, sink tokens too
    s.lo = max(s.lo, s.sink_lo);
  }
  s.first_tile = s.lo / kTileTokens;
  s.sink_tile = s.sink_lo / kTileTokens;
  s.sink_tiles = s.sink_lo < s.sink_hi ? max(min(ceil_div(s.sink_hi, kTileTokens), s.first_tile) - s.sink_tile, 0) : 0;
  s.tiles = s.hi > s.lo ? s.sink_tiles + ceil_div(s.hi, kTileTokens) - s.first_tile : 0;
  s.tiles = max(s.tiles, 1);  // an empty pair has one tile without keys: someone has to write its rows
  return s;
}
__device__ __forceinline__ Span span_of(const pt_decode_params& p, int sequence, int head) { return span_of(p, sequence, head, __ldg(length_at(p, sequence, head))); }

// The masks of one pair.
struct Visibility {
  const pt_decode_params& p;
  int sequence, head;

  __device__ __forceinline__ bool offset_sees(const Span& s, int token, int i) const {
    const i64 row = query_tokens(p, sequence).row + i;
    const int lo = __ldg(p.mask_offset + 2 * row), hi = __ldg(p.mask_offset + 2 * row + 1);
    if (token < lo || token >= hi) return false;
    if constexpr (spec::window) {
      if (s.window > 0) return token >= hi - s.window || (spec::sink_tokens && token < lo + p.sink_tokens);
    }
    return true;
  }
  __device__ __forceinline__ bool sparse_sees(const Span& s, int token, int i, int head_of_group) const {
    const int key_block = token / p.sparse_block_size, query_block = (s.first_position() + i) / p.sparse_block_size;
    if (key_block > query_block - p.sparse_local_blocks) return true;
    const int offset = p.sparse_head_step >= 0 ? (p.sparse_head_offset + head * spec::group_size + head_of_group) * p.sparse_head_step + 1
                                               : (p.sparse_kv_head_offset + head) * -p.sparse_head_step + 1;
    return (key_block + offset) % p.sparse_vert_stride == 0;
  }

  __device__ __forceinline__ bool tree_hides(int i, int column) const {
    return p.tree_mask[(static_cast<i64>(sequence) * p.tree_mask_size + i) * p.tree_mask_size + column] != 0;
  }

  // May the key of a token be read at all? Exact where positions decide; where a mask decides, some row must see it.
  __device__ __forceinline__ bool readable(const Span& s, int token) const {
    if (token >= s.hi || (token < s.lo && (token < s.sink_lo || token >= s.sink_hi))) return false;
    if constexpr (spec::mask == 2) {
      bool any = false;
      for (int i = 0; i < s.tokens; ++i) any |= token <= s.first_position() + i && offset_sees(s, token, i);
      if (!any) return false;
    }
    if constexpr (spec::mask == 1) {
      const int column = token - s.first_position();
      bool any = column < 0;
      for (int i = max(column, 0); i < s.tokens && !any; ++i) any = !tree_hides(i, column);
      if (!any) return false;
    }
    if constexpr (spec::block_sparse) {
      bool any = false;
      for (int i = 0; i < s.tokens; ++i)
        for (int h = 0; h < spec::group_size; ++h) any |= sparse_sees(s, token, i, h);
      if (!any) return false;
    }
    return true;
  }

  // Does every row see every token of a tile that begins at `token`?
  __device__ __forceinline__ bool all_see(const Span& s, int token) const {
    if constexpr (spec::mask == 2 || spec::block_sparse) return false;
    const int end = token + kTileTokens;
    if (end > s.first_position() + (spec::mask == 1 ? 0 : 1)) return false;
    if constexpr (spec::window) {
      if (s.window > 0 && token < s.length - s.window && !(spec::sink_tokens && !spec::chunk && end <= p.sink_tokens)) return false;
    }
    if constexpr (spec::chunk) {
      if (token < (s.length - 1) / p.chunk * p.chunk) return false;
    }
    return true;
  }

  // Does query token i, as a head of the group, see a token? The token is one of the pair's.
  __device__ __forceinline__ bool sees(const Span& s, int token, int i, int head_of_group) const {
    const int position = s.first_position() + i;
    if (token > position) return false;
    if constexpr (spec::mask == 2) {
      if (!offset_sees(s, token, i)) return false;
    } else if constexpr (spec::window) {
      if (s.window > 0 && token <= position - s.window && !(spec::sink_tokens && token < p.sink_tokens)) return false;
    }
    if constexpr (spec::chunk) {
      if (token < position / p.chunk * p.chunk) return false;
    }
    if constexpr (spec::mask == 1) {
      const int column = token - s.first_position();
      if (column >= 0 && tree_hides(i, column)) return false;
    }
    if constexpr (spec::block_sparse) {
      if (!sparse_sees(s, token, i, head_of_group)) return false;
    }
    return true;
  }
};
