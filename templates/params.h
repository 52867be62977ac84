// The launch parameters of every decode kernel: one text for the host (C and C++), NVRTC and the CPU templates. No includes.
// Strides are in elements; the innermost stride (head dim) is 1. Fields after "filled by launch" belong to pagetune.
#ifndef PAGETUNE_PARAMS_H
#define PAGETUNE_PARAMS_H

#define PT_PARAMS_VERSION 3u

// Where a checked kernel leaves the first bad block-table entry that it meets, at the start of the workspace. kind is PT_ERROR_TAG plus
// 1: id >= num_pages; 2: id < 0 inside a visible range; 3: sequence longer than its table row; 4: more query tokens than the kernel was built for. Any other value means that nothing was
// met, so the workspace needs no initialisation.
#define PT_ERROR_TAG 0x50540000
typedef struct pt_error_record {
  int kind;
  int sequence;
  int head;   // KV head of this rank
  int slot;   // index into the table row (kind 3: the sequence's length)
  int value;  // the id (kind 3: tokens that the row can hold; kind 4: the sequence's query tokens)
  int reserved[11];
} pt_error_record;

// pt_decode_params.flags. PT_LAUNCH_OVERLAP: programmatic dependent launch. The kernel may then read block tables, lengths, cu_seqlens_q, windows and
// K/V of positions < length - query tokens while the stream's preceding kernel still runs; the caller promises that it writes none of them. Backends
// and devices without it ignore the flag.
#define PT_LAUNCH_OVERLAP 1u

// A row is a query token: row b * q_len + i, or cu_seqlens_q[b] + i, is token i of sequence b and has position length - (its tokens) + i.
typedef struct pt_decode_params {
  unsigned struct_size;  // sizeof(pt_decode_params)
  unsigned version;      // PT_PARAMS_VERSION
  const void* q;         // [batch][q_len][q_heads][head_dim_k]; with cu_seqlens_q [rows][q_heads][head_dim_k]
  const void* k_cache;   // pages in the order of the spec's layout
  const void* v_cache;
  void* out;             // as q, with head_dim_v
  float* lse;            // [rows][q_heads], contiguous, natural log; null unless the spec asks for it
  const int* block_tables;  // [batch][block_table_width], head-wise [batch * kv_heads][…]; row stride block_table_stride; an id < 0 is an absent page
  const int* seq_lens;      // [batch], including the tokens of this step; 0 is a padding row; head-wise [batch][kv_heads] where seq_lens_stride_head is 1
  const int* cu_seqlens_q;  // [batch + 1]: first row of each sequence, at most q_len rows each; null: q_len rows each
  void* workspace;          // Kernel::workspace_bytes(), 256-byte aligned; may be null where that is 0; needs no initialisation
  long long workspace_bytes;
  long long q_stride_seq, q_stride_token, q_stride_head;        // with cu_seqlens_q, stride_seq is not used
  long long out_stride_seq, out_stride_token, out_stride_head;
  long long k_stride_page, k_stride_token, k_stride_head;       // address map flat: stride_page is that of an id, stride_head is not used
  long long v_stride_page, v_stride_token, v_stride_head;
  long long block_table_stride;
  long long total_len;    // sum of the lengths if the host knows it, else 0; only steers the choice of a config
  int block_table_width;
  int batch;
  int max_len;            // upper bound of seq_lens; only steers the choice of a config
  int num_pages;          // ids are valid in [0, num_pages)
  int seq_lens_stride_seq, seq_lens_stride_head;  // 1 and 0: a length per sequence; head-wise only, kv_heads and 1: per (sequence, KV head)
  unsigned flags;         // PT_LAUNCH_…
  float scale;            // softmax scale; 0 means 1/sqrt(head_dim_k)
  float soft_cap;         // logit = soft_cap * tanh(logit / soft_cap); 0 unless the spec has soft_cap
  int sink_tokens;        // first tokens that stay visible to windowed heads; 0 unless the spec has sink_tokens
  int chunk;              // chunked-local: key j is visible from position p iff j >= p / chunk * chunk; 0 unless the spec has chunk
  const int* window;      // [kv_heads], attended tokens including self, 0 = all; null unless the spec has window
  const float* sinks;     // [q_heads], natural-log space; null unless the spec has sinks
  const float* alibi_slopes;       // [q_heads]: logit += slope * (j - p); null unless the spec has alibi
  const unsigned char* tree_mask;  // [batch][tree_mask_size][tree_mask_size], row = query token, column = new token, non-zero = hidden; null unless the mask is tree
  const int* mask_offset;          // [rows][2]: (lo, hi), visible iff lo <= j < hi, with a window j < lo + sink_tokens or j >= hi - window; null unless the mask is offset
  int tree_mask_size;     // at least q_len
  // Block-sparse (the spec has block_sparse): key block k = j / block_size is visible from query block p / block_size iff
  // (k + offset) % vert_stride == 0 or k > query block - local_blocks; offset = (head_offset + h) * head_step + 1 for head_step >= 0, else
  // (kv_head_offset + kv head) * -head_step + 1.
  int sparse_block_size, sparse_vert_stride, sparse_local_blocks, sparse_head_step, sparse_head_offset, sparse_kv_head_offset;
  // filled by launch
  float* partial_out;     // fp32, normalised within the split
  float* partial_lse;     // fp32, base-2 log
  unsigned long long* counters;  // arrivals per merged result [batch][q_heads][q_len], and at merges of an even share's neighbours [2 * num_ctas]
  pt_error_record* error; // null unless the spec is checked
  float scale_log2;       // scale * log2(e)
  int num_splits;         // of each sequence: 1 for V1 and for the even share
  int num_ctas;           // even share: CTAs that share all tiles; else 0
  // Even share, in pairs of (sequence, KV head, row tile) and ranges of the line of their tiles: pairs of a range if all stay whole, ranges that then have any, and ranges of a
  // pair, at most, if it does not stay whole.
  int whole_pairs, whole_ranges, cut_ranges;
} pt_decode_params;

#endif
