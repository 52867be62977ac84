// Which keys the rows of one (sequence, KV head) see: rules 1 to 5 of the contract, word for word. For the oracle and for what lays out test
// data; no kernel shares it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"

namespace pagetune {

// How the oracle reads what the parameters point to: host memory, or a device's through Device::download.
using ReadMemory = std::function<void(void* to, const void* from, size_t bytes)>;
void read_host(void* to, const void* from, size_t bytes);

// A kernel that restricts what a row sees beyond causality.
bool has_masks(const AttentionSpec&);

class Visibility {
 public:
  Visibility(const AttentionSpec&, const pt_decode_params&, const ReadMemory&, int sequence, int kv_head);

  int64_t tokens() const { return tokens_; }        // the length, clamped to what the table row can hold; positions follow from it
  int rows() const { return rows_; }                // query tokens, at most spec.q_len
  int64_t first_row() const { return first_row_; }  // of the sequence, in q, out and LSE
  int64_t position(int row) const { return tokens_ - rows_ + row; }

  // Does the row-th query token of the sequence see the key in query head `head` of the group? Sink tokens are exempt from the window, not
  // from a chunk; with mask offsets the window is counted from `hi`.
  bool sees(int row, int head, int64_t key) const;
  // Is any key of [first, end) seen by any row and head?
  bool needs(int64_t first, int64_t end) const;

 private:
  const AttentionSpec& spec_;
  int kv_head_;
  int64_t tokens_ = 0, first_row_ = 0;
  int rows_ = 0;
  int window_ = 0, chunk_, sink_tokens_;
  int sparse_block_size_, sparse_vert_stride_, sparse_local_blocks_, sparse_head_step_, sparse_head_offset_, sparse_kv_head_offset_;
  int tree_size_ = 0;
  std::vector<unsigned char> tree_;  // [rows][tree_size]
  std::vector<int> bounds_;          // [rows][2]
};

}  // namespace pagetune
