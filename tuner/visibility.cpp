#include "tuner/visibility.hpp"

#include <algorithm>
#include <cstring>

namespace pagetune {

void read_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

bool has_masks(const AttentionSpec& spec) { return spec.window || spec.chunk || spec.block_sparse || spec.mask != MaskKind::none; }

Visibility::Visibility(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, int sequence, int kv_head)
    : spec_(spec),
      kv_head_(kv_head),
      chunk_(params.chunk),
      sink_tokens_(params.sink_tokens),
      sparse_block_size_(params.sparse_block_size),
      sparse_vert_stride_(params.sparse_vert_stride),
      sparse_local_blocks_(params.sparse_local_blocks),
      sparse_head_step_(params.sparse_head_step),
      sparse_head_offset_(params.sparse_head_offset),
      sparse_kv_head_offset_(params.sparse_kv_head_offset),
      tree_size_(params.tree_mask_size) {
  int length = 0;
  read(&length, params.seq_lens + int64_t{sequence} * params.seq_lens_stride_seq + int64_t{kv_head} * params.seq_lens_stride_head, sizeof length);
  tokens_ = std::clamp<int64_t>(length, 0, int64_t{params.block_table_width} * spec.page_size);
  rows_ = spec.q_len;
  first_row_ = int64_t{sequence} * spec.q_len;
  if (params.cu_seqlens_q != nullptr) {
    int ends[2];
    read(ends, params.cu_seqlens_q + sequence, sizeof ends);
    first_row_ = ends[0];
    rows_ = std::clamp(ends[1] - ends[0], 0, spec.q_len);
  }
  if (spec.window) read(&window_, params.window + kv_head, sizeof window_);
  if (rows_ == 0) return;
  if (spec.mask == MaskKind::tree) {
    tree_.resize(static_cast<size_t>(rows_) * static_cast<size_t>(tree_size_));
    read(tree_.data(), params.tree_mask + int64_t{sequence} * tree_size_ * tree_size_, tree_.size());
  }
  if (spec.mask == MaskKind::offset) {
    bounds_.resize(static_cast<size_t>(rows_) * 2);
    read(bounds_.data(), params.mask_offset + first_row_ * 2, bounds_.size() * sizeof(int));
  }
}

bool Visibility::sees(int row, int head, int64_t key) const {
  const int64_t p = position(row);
  if (key < 0 || key > p || key >= tokens_) return false;
  if (spec_.chunk && key < p / chunk_ * chunk_) return false;
  const int64_t sinks = spec_.sink_tokens ? sink_tokens_ : 0;
  const bool windowed = spec_.window && window_ > 0;
  if (spec_.mask == MaskKind::offset) {
    const int64_t lo = bounds_[static_cast<size_t>(row) * 2], hi = bounds_[static_cast<size_t>(row) * 2 + 1];
    if (key < lo || key >= hi) return false;
    if (windowed && key >= lo + sinks && key < hi - window_) return false;
  } else if (windowed && key <= p - window_ && key >= sinks) {
    return false;
  }
  const int64_t new_token = key - (tokens_ - rows_);
  if (spec_.mask == MaskKind::tree && new_token >= 0 && tree_[static_cast<size_t>(row * tree_size_ + new_token)] != 0) return false;
  if (spec_.block_sparse) {
    const int64_t q_block = p / sparse_block_size_, k_block = key / sparse_block_size_;
    const int64_t q_head = int64_t{kv_head_} * spec_.group_size() + head;
    const int64_t offset = sparse_head_step_ >= 0 ? (sparse_head_offset_ + q_head) * sparse_head_step_ + 1 : (int64_t{sparse_kv_head_offset_} + kv_head_) * -sparse_head_step_ + 1;
    if ((k_block + offset) % sparse_vert_stride_ != 0 && k_block <= q_block - sparse_local_blocks_) return false;
  }
  return true;
}

bool Visibility::needs(int64_t first, int64_t end) const {
  if (!has_masks(spec_)) return rows_ > 0 && first < std::min(end, tokens_);
  const int heads = spec_.block_sparse ? spec_.group_size() : 1;  // only there the heads of a group differ
  for (int64_t key = first; key < std::min(end, tokens_); ++key)
    for (int row = 0; row < rows_; ++row)
      for (int head = 0; head < heads; ++head)
        if (sees(row, head, key)) return true;
  return false;
}

}  // namespace pagetune
