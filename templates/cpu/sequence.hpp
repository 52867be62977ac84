// A sequence of the batch: its query tokens, its length, and the blocks of query rows that share one pass over K and V.
#pragma once
#include "templates/params.h"
#include "vec.hpp"

struct Sequence {
  int index;
  int given_tokens;
  int tokens;           // query tokens of this step: what was given, cut to spec.q_len
  long long first_row;  // of its tokens among all query tokens
};

PT_INLINE Sequence sequence_of(const pt_decode_params& params, int index) {
  if (params.cu_seqlens_q == nullptr) return {index, spec_q_len, spec_q_len, static_cast<long long>(index) * spec_q_len};
  int first = params.cu_seqlens_q[index];
  int tokens = params.cu_seqlens_q[index + 1] - first;
  if (tokens < 0) tokens = 0;
  return {index, tokens, tokens < spec_q_len ? tokens : spec_q_len, first};
}

// Where token `token` of the sequence stands in q or out, in elements.
PT_INLINE long long token_offset(const pt_decode_params& params, const Sequence& sequence, int token, long long stride_seq, long long stride_token) {
  long long start = params.cu_seqlens_q == nullptr ? sequence.index * stride_seq : sequence.first_row * stride_token;
  return spec_q_len == 1 ? start : start + token * stride_token;
}

PT_INLINE long long tokens_of_table_row(const pt_decode_params& params) {
  return static_cast<long long>(params.block_table_width) * spec_page_size;
}

PT_INLINE int given_length(const pt_decode_params& params, int sequence, int kv_head) {
  if (!spec_headwise) return params.seq_lens[sequence];
  return params.seq_lens[static_cast<long long>(sequence) * params.seq_lens_stride_seq + static_cast<long long>(kv_head) * params.seq_lens_stride_head];
}

// Clamped to what the table row can hold.
PT_INLINE int length_of(const pt_decode_params& params, int sequence, int kv_head) {
  int len = given_length(params, sequence, kv_head);
  if (len <= 0) return 0;
  long long room = tokens_of_table_row(params);
  return len > room ? static_cast<int>(room) : len;
}

// The first record wins, over launches too: a kind without the tag is what the workspace's memory held before. Only the thread that
// claims `kind` writes the rest; the host reads it after the launch.
static inline void report(const pt_decode_params& params, int kind, int sequence, int head, int slot, int value) {
  pt_error_record* record = params.error;
  int seen = __atomic_load_n(&record->kind, __ATOMIC_RELAXED);
  do {
    if (seen > PT_ERROR_TAG && seen <= PT_ERROR_TAG + 4) return;
  } while (!__atomic_compare_exchange_n(&record->kind, &seen, PT_ERROR_TAG + kind, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  record->sequence = sequence;
  record->head = head;
  record->slot = slot;
  record->value = value;
}

PT_INLINE void report_sequence(const pt_decode_params& params, const Sequence& sequence, int kv_head) {
  if (!spec_checked) return;
  if (sequence.given_tokens > spec_q_len) report(params, 4, sequence.index, kv_head, 0, sequence.given_tokens);
  int len = given_length(params, sequence.index, kv_head);
  long long room = tokens_of_table_row(params);
  if (len > room) report(params, 3, sequence.index, kv_head, len, static_cast<int>(room));
}

// The query rows of a KV head, tokens outside: row = token * group size + head in the group. Blocks of even size: 24 rows are 12 + 12,
// not 16 + 8.
struct Block {
  int first_row;
  int rows;

  __attribute__((always_inline)) int token(int row) const { return spec_q_len == 1 ? 0 : (first_row + row) / spec_group_size; }
  __attribute__((always_inline)) int head(int row) const { return spec_q_len == 1 ? first_row + row : (first_row + row) % spec_group_size; }
};

PT_INLINE int blocks_for(int rows) { return (rows + kMaxRows - 1) / kMaxRows; }
PT_INLINE int rows_per_block(int rows) { return (rows + blocks_for(rows) - 1) / blocks_for(rows); }
// Not of a sequence without tokens.
PT_INLINE int rows_of(const Sequence& sequence) { return spec_q_len == 1 ? spec_group_size : sequence.tokens * spec_group_size; }

PT_INLINE Block block_of(const Sequence& sequence, int index) {
  int rows = rows_of(sequence);
  int per_block = rows_per_block(rows);
  int first = index * per_block;
  return {first, rows - first < per_block ? rows - first : per_block};
}
