// What a test problem is: a spec, lengths and where everything lies. What is left out is filled in, so that {.spec = s, .lens = {…}} is a
// whole problem for any spec.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "pagetune/spec.hpp"

namespace pagetune {

// How K and V lie. contiguous: two dense arrays in the spec's layout; padded: gaps after heads, tokens and pages, none a multiple of
// the next; interleaved: one array [pages][2][…]; sliced: one array whose innermost axis holds K and V side by side, [pages][…][2D].
enum class Placement : uint8_t { contiguous, padded, interleaved, sliced };
const char* name_of(Placement);

// Table entries of pages that no row sees: -1 as an engine leaves them that recycles such pages; kept: an id whose page is poison; mixed:
// either, or no id at all.
enum class Unseen : uint8_t { mixed, recycled, kept };
const char* name_of(Unseen);

// The block-sparse numbers of pt_decode_params.
struct SparseBlocks {
  int block_size = 0;  // 0: chosen at random, as are the others
  int vert_stride = 1, local_blocks = 0, head_step = 0, head_offset = 0, kv_head_offset = 0;
};

struct ProblemShape {
  AttentionSpec spec;
  std::vector<int> lens;           // tokens of each sequence, its query tokens included; 0 is a padding row
  Placement placement = Placement::contiguous;
  int num_pages = 0;               // 0: what the rows list and three that no row lists
  int table_width = 0;             // 0: the longest row's pages and two more; rows longer than it are clamped
  int shared_pages = 0;            // leading pages that all rows have in common, where they are long enough; uniform tables
  double absent = 0;               // share of the needed table entries that are -1
  std::vector<int> page_ids;       // ids in the order of the rows' entries; empty: distinct, in random order
  int64_t page_stride = 0;         // elements, in place of the placement's own; contiguous only
  int64_t q_stride_seq = 0, out_stride_seq = 0;  // elements, in place of the dense ones
  bool sparse = false;             // huge and mostly untouched: no poison, no guards, nothing outside the listed pages is copied
  bool poison = true;              // false: zeros where a kernel may not read
  float scale = 0;                 // 0: 1/sqrt(head_dim_k)
  uint64_t seed = 1;

  std::vector<int> q_lens;         // query tokens of each sequence, packed; empty: q_len each, without cu_seqlens_q. More than q_len: the rest is not computed
  int64_t q_stride_token = 0, out_stride_token = 0;  // elements, in place of the dense ones
  std::vector<int> head_lens;      // head-wise: [batch][kv_heads]; lens may then be left out
  Unseen unseen = Unseen::mixed;

  // Data of the spec's features. Left out: random, of both sides of every edge. Given for a feature that the spec has not: an error.
  std::vector<int> windows;                // [kv_heads], 0: all; at random one in three is 0, one small, one near the longest length
  int chunk = 0;
  int sink_tokens = 0;
  std::vector<float> sinks;                // [q_heads]
  float soft_cap = 0;
  std::vector<float> alibi_slopes;         // [q_heads]
  int tree_mask_size = 0;                  // 0: q_len and up to three more
  std::vector<unsigned char> tree_mask;    // [batch][tree_mask_size][tree_mask_size]
  std::vector<int> mask_offset;            // [rows][2]
  SparseBlocks blocks;
};

// The shape with everything filled in. Error invalid_argument if it contradicts itself.
ProblemShape completed(ProblemShape);

// Pages that the sequence's table row lists for one KV head.
int slots_of(const ProblemShape&, int sequence, int kv_head);
int length_of(const ProblemShape&, int sequence, int kv_head);
// Rows of a table: sequences, or head-wise (sequence, KV head) pairs.
int64_t table_rows(const ProblemShape&);
// Rows of q.
int64_t query_rows(const ProblemShape&);
// One line with everything that is not the default, as C++ would write it.
std::string text_of(const ProblemShape&);

}  // namespace pagetune
