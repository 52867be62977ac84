// The launch parameters of every decode kernel: one text for the host (C and C++), NVRTC and the CPU templates. No includes.
// Strides are in elements; the innermost stride (head dim) is 1. Fields after "filled by launch" belong to pagetune.
#ifndef PAGETUNE_PARAMS_H
#define PAGETUNE_PARAMS_H

#define PT_PARAMS_VERSION 1u

// Where a checked kernel leaves the first bad block-table entry that it meets, at the start of the workspace. kind is PT_ERROR_TAG plus
// 1: id >= num_pages; 2: id < 0 inside a visible range; 3: sequence longer than its table row. Any other value means that nothing was
// met, so the workspace needs no initialisation.
#define PT_ERROR_TAG 0x50540000
typedef struct pt_error_record {
  int kind;
  int sequence;
  int head;   // KV head of this rank
  int slot;   // index into the table row (kind 3: the sequence's length)
  int value;  // the id (kind 3: tokens that the row can hold)
  int reserved[11];
} pt_error_record;

typedef struct pt_decode_params {
  unsigned struct_size;  // sizeof(pt_decode_params)
  unsigned version;      // PT_PARAMS_VERSION
  const void* q;         // [batch][q_heads][head_dim_k]
  const void* k_cache;   // pages in the order of the spec's layout
  const void* v_cache;
  void* out;             // [batch][q_heads][head_dim_v]
  float* lse;            // [batch][q_heads], contiguous, natural log; null unless the spec asks for it
  const int* block_tables;  // [batch][block_table_width], row stride block_table_stride; an id < 0 is an absent page
  const int* seq_lens;      // [batch], including the token of this step; 0 is a padding row
  void* workspace;          // Kernel::workspace_bytes(), 256-byte aligned; may be null where that is 0
  long long workspace_bytes;
  long long q_stride_seq, q_stride_head;
  long long out_stride_seq, out_stride_head;
  long long k_stride_page, k_stride_token, k_stride_head;
  long long v_stride_page, v_stride_token, v_stride_head;
  long long block_table_stride;
  long long total_len;    // sum of the lengths if the host knows it, else 0; only steers the choice of a config
  int block_table_width;
  int batch;
  int max_len;            // upper bound of seq_lens; only steers the choice of a config
  int num_pages;          // ids are valid in [0, num_pages)
  float scale;            // softmax scale; 0 means 1/sqrt(head_dim_k)
  float soft_cap;         // 0 unless the spec has soft_cap
  const int* window;      // [kv_heads], null unless the spec has window
  const float* sinks;     // [q_heads], null unless the spec has sinks
  const float* alibi_slopes;  // [q_heads], null unless the spec has alibi
  // filled by launch
  float* partial_out;     // [batch][q_heads][num_splits][head_dim_v] fp32, normalised within the split
  float* partial_lse;     // [batch][q_heads][num_splits] fp32, base-2 log
  pt_error_record* error; // null unless the spec is checked
  float scale_log2;       // scale * log2(e)
  int num_splits;         // 1 for V1
} pt_decode_params;

#endif
