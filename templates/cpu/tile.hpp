// The rows of K and V that one tile of tokens needs: paging, clamping, masking and the checks of a checked kernel.
#pragma once
#include "visibility.hpp"

// One entry per token of the tile. A token that is absent or that no query row sees points at zeros, so that the arithmetic needs no
// branch; its score is replaced by a select.
struct Rows {
  const Byte* k[kMaxTile];
  const Byte* v[kMaxTile];
  alignas(64) int visible[kMaxTile];          // -1 or 0: to any query row
  alignas(64) int seen[kMaxRows * kMaxTile];  // by one query row; only where `masked`
  int first;                                  // token of the sequence
  bool masked;                                // do the query rows differ?
  bool any;                                   // is one visible?
};

alignas(64) static const Byte zero_row[kMaxHeadDim * 4] = {};

// A work item's share of the keys is that of one KV head, seen from one block of query rows.
struct Item {
  const Sequence& sequence;
  Block block;
  int kv_head;
  int len;
  Sight sight;
};

// Fills k and v for the first `count` tokens of the tile, and visible; where masked, visible says which of them are wanted.
template <bool masked> static void find_pages(const pt_decode_params& params, Rows& rows, int sequence, int kv_head, int first, int count) {
  const long long table_row = spec_headwise ? static_cast<long long>(sequence) * spec_kv_heads + kv_head : sequence;
  const int* table = params.block_tables + table_row * params.block_table_stride;
  const int head = spec_flat_map ? 0 : kv_head;  // flat ids name a head's part of a page by themselves
  const Byte* k_head = static_cast<const Byte*>(params.k_cache) + head * params.k_stride_head * element_bytes();
  const Byte* v_head = static_cast<const Byte*>(params.v_cache) + head * params.v_stride_head * element_bytes();
  const long long k_step = params.k_stride_token * element_bytes();
  const long long v_step = params.v_stride_token * element_bytes();
  rows.any = false;
  int t = 0;
  while (t < count) {
    int slot = (first + t) / spec_page_size;
    int offset = (first + t) % spec_page_size;
    int run = spec_page_size - offset < count - t ? spec_page_size - offset : count - t;
    bool present = true;
    if (masked) {
      present = false;
      for (int i = t; i < t + run; ++i) present |= rows.visible[i] != 0;
    }
    int id = 0;
    if (present) {
      id = table[slot];
      present = id >= 0 && id < params.num_pages;
      if (spec_checked && !present) report(params, id < 0 ? 2 : 1, sequence, kv_head, slot, id);
    }
    if (present) {
      rows.any = true;
      const Byte* k = k_head + (id * params.k_stride_page) * element_bytes() + offset * k_step;
      const Byte* v = v_head + (id * params.v_stride_page) * element_bytes() + offset * v_step;
      for (int end = t + run; t < end; ++t, k += k_step, v += v_step) {
        bool wanted = !masked || rows.visible[t] != 0;
        rows.k[t] = wanted ? k : zero_row;
        rows.v[t] = wanted ? v : zero_row;
        if (!masked) rows.visible[t] = -1;
      }
    } else {
      for (int end = t + run; t < end; ++t) {
        rows.k[t] = zero_row;
        rows.v[t] = zero_row;
        rows.visible[t] = 0;
      }
    }
  }
  for (; t < config_tile_kv; ++t) {
    rows.k[t] = zero_row;
    rows.v[t] = zero_row;
    rows.visible[t] = 0;
  }
}

// Fills `rows` for tokens [first, first + tile_kv) of the item's sequence.
PT_INLINE void find_rows(const pt_decode_params& params, Rows& rows, const Item& item, int first) {
  int count = item.len - first < config_tile_kv ? item.len - first : config_tile_kv;
  rows.first = first;
  rows.masked = masks_rows() && !all_see(item.sight, first);
  if (masks_rows() && rows.masked) {
    see_tile(params, item.sight, item.sequence, item.block, item.kv_head, item.len, first, rows.seen, rows.visible);
    find_pages<true>(params, rows, item.sequence.index, item.kv_head, first, count);
  } else {
    find_pages<false>(params, rows, item.sequence.index, item.kv_head, first, count);
  }
}

// Starts to fetch token t's rows. A row is a few cache lines and the next one far away, so hardware prefetchers do not see it coming
// (measured on Zen 4, 32 query heads on 8 KV heads of 128, bf16, cache in memory, busy machine: 4.9 GB/s of KV per thread without, 7 GB/s with).
PT_INLINE void prefetch_rows(const Rows& rows, int t) {
  for (int byte = 0; byte < spec_head_dim * element_bytes(); byte += 64) {
    __builtin_prefetch(rows.k[t] + byte);
    if (spec_head_dim_v == spec_head_dim) __builtin_prefetch(rows.v[t] + byte);
  }
  if (spec_head_dim_v != spec_head_dim)
    for (int byte = 0; byte < spec_head_dim_v * element_bytes(); byte += 64) __builtin_prefetch(rows.v[t] + byte);
}
