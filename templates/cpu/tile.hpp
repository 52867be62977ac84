// The rows of K and V that one tile of tokens needs: paging, clamping, masking and the checks of a checked kernel.
#pragma once
#include "templates/params.h"
#include "vec.hpp"

// One entry per token of the tile. A token that is absent or past the end points at zeros, so that the arithmetic needs no branch; its
// score is replaced by a select.
struct Rows {
  const Byte* k[kMaxTile];
  const Byte* v[kMaxTile];
  alignas(64) int visible[kMaxTile];  // -1 or 0
  bool any;                           // is one visible?
};

alignas(64) static const Byte zero_row[kMaxHeadDim * 4] = {};

// The first record wins, over launches too: a kind without the tag is what the workspace's memory held before. Only the thread that
// claims `kind` writes the rest; the host reads it after the launch.
static inline void report(const pt_decode_params& params, int kind, int sequence, int head, int slot, int value) {
  pt_error_record* record = params.error;
  int seen = __atomic_load_n(&record->kind, __ATOMIC_RELAXED);
  do {
    if (seen > PT_ERROR_TAG && seen <= PT_ERROR_TAG + 3) return;
  } while (!__atomic_compare_exchange_n(&record->kind, &seen, PT_ERROR_TAG + kind, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  record->sequence = sequence;
  record->head = head;
  record->slot = slot;
  record->value = value;
}

PT_INLINE long long tokens_of_row(const pt_decode_params& params) {
  return static_cast<long long>(params.block_table_width) * spec_page_size;
}

// Clamped to what the sequence's table row can hold.
PT_INLINE int sequence_length(const pt_decode_params& params, int sequence) {
  int len = params.seq_lens[sequence];
  if (len <= 0) return 0;
  long long room = tokens_of_row(params);
  return len > room ? static_cast<int>(room) : len;
}

PT_INLINE void report_length(const pt_decode_params& params, int sequence) {
  if (!spec_checked) return;
  int len = params.seq_lens[sequence];
  long long room = tokens_of_row(params);
  if (len > room) report(params, 3, sequence, 0, len, static_cast<int>(room));
}

// Fills `rows` for tokens [first, first + tile_kv) of a sequence of `len` tokens.
static void find_rows(const pt_decode_params& params, Rows& rows, int sequence, int kv_head, int first, int len) {
  const int* table = params.block_tables + sequence * params.block_table_stride;
  const Byte* k_head = static_cast<const Byte*>(params.k_cache) + kv_head * params.k_stride_head * element_bytes();
  const Byte* v_head = static_cast<const Byte*>(params.v_cache) + kv_head * params.v_stride_head * element_bytes();
  const long long k_step = params.k_stride_token * element_bytes();
  const long long v_step = params.v_stride_token * element_bytes();
  int count = len - first < config_tile_kv ? len - first : config_tile_kv;
  rows.any = false;
  int t = 0;
  while (t < count) {
    int slot = (first + t) / spec_page_size;
    int offset = (first + t) % spec_page_size;
    int run = spec_page_size - offset < count - t ? spec_page_size - offset : count - t;
    int id = table[slot];
    bool present = id >= 0 && id < params.num_pages;
    if (spec_checked && !present) report(params, id < 0 ? 2 : 1, sequence, kv_head, slot, id);
    if (present) {
      rows.any = true;
      const Byte* k = k_head + (id * params.k_stride_page) * element_bytes() + offset * k_step;
      const Byte* v = v_head + (id * params.v_stride_page) * element_bytes() + offset * v_step;
      for (int end = t + run; t < end; ++t, k += k_step, v += v_step) {
        rows.k[t] = k;
        rows.v[t] = v;
        rows.visible[t] = -1;
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

// Starts to fetch token t's rows. A row is a few cache lines and the next one far away, so hardware prefetchers do not see it coming
// (measured on Zen 4, 32 query heads on 8 KV heads of 128, bf16, cache in memory, busy machine: 4.9 GB/s of KV per thread without, 7 GB/s with).
PT_INLINE void prefetch_rows(const Rows& rows, int t) {
  for (int byte = 0; byte < spec_head_dim * element_bytes(); byte += 64) {
    __builtin_prefetch(rows.k[t] + byte);
    __builtin_prefetch(rows.v[t] + byte);
  }
}
