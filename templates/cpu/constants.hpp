// What a kernel is specialised for. Declared, never defined here: the run-time compiler gives each one its value and folds it, so
// every branch on them is decided before optimisation starts. The names are those of KernelSource::constants with '.' as '_'.
#pragma once

extern "C" {
extern const int spec_q_heads;    // of this rank
extern const int spec_kv_heads;   // of this rank
extern const int spec_group_size; // query heads per KV head
extern const int spec_head_dim;   // a multiple of 8, at most kMaxHeadDim
extern const int spec_page_size;  // tokens
extern const int spec_dtype;      // of q, K, V and out: kBf16, kFp16, kFp32
extern const int spec_lse;        // also write the natural-log LSE
extern const int spec_checked;    // report bad lengths and table entries
extern const int config_variant;      // 1: one pass, 2: split KV and merge
extern const int config_tile_kv;      // tokens of one block of the online softmax: 16, 32 or 64
extern const int config_vector_bits;  // 128, 256 or 512
}

constexpr int kBf16 = 0;
constexpr int kFp16 = 1;
constexpr int kFp32 = 2;

constexpr int kMaxHeadDim = 256;
constexpr int kMaxTile = 64;
constexpr int kMaxHeads = 16;  // query heads that share one pass over K and V
