// What a kernel is specialised for. Declared, never defined here: the run-time compiler gives each one its value and folds it, so
// every branch on them is decided before optimisation starts. The names are those of KernelSource::constants with '.' as '_'.
#pragma once

extern "C" {
extern const int spec_q_heads;    // of this rank
extern const int spec_kv_heads;   // of this rank
extern const int spec_group_size; // query heads per KV head
extern const int spec_q_len;      // query tokens of a sequence, at most kMaxTokens
extern const int spec_head_dim;   // of q and K: a multiple of 8, at most kMaxHeadDim
extern const int spec_head_dim_v; // of V and out: likewise
extern const int spec_page_size;  // tokens
extern const int spec_dtype;      // of q, K and V: kBf16, kFp16, kFp32
extern const int spec_out_dtype;
extern const int spec_headwise;   // a table row, and where the strides say so a length, per (sequence, KV head)
extern const int spec_flat_map;   // head-wise ids name (page, head) pairs, not pages
extern const int spec_window;
extern const int spec_chunk;
extern const int spec_sink_tokens;
extern const int spec_sinks;
extern const int spec_soft_cap;
extern const int spec_alibi;
extern const int spec_mask;       // kNoMask, kTreeMask, kOffsetMask
extern const int spec_block_sparse;
extern const int spec_lse;        // also write the natural-log LSE
extern const int spec_checked;    // report bad lengths and table entries
extern const int config_variant;      // 1: one pass, 2: split KV and merge
extern const int config_tile_kv;      // tokens of one block of the online softmax: 16, 32 or 64
extern const int config_vector_bits;  // 128, 256 or 512
}

constexpr int kBf16 = 0;
constexpr int kFp16 = 1;
constexpr int kFp32 = 2;

constexpr int kNoMask = 0;
constexpr int kTreeMask = 1;
constexpr int kOffsetMask = 2;

constexpr int kMaxHeadDim = 256;
constexpr int kMaxTile = 64;
constexpr int kMaxTokens = 16;
constexpr int kMaxRows = 16;  // query rows that share one pass over K and V
