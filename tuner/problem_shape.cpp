#include "tuner/problem_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "pagetune/error.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::invalid_argument, "problem shape: " + why); }

template <class T>
void require_count(const char* what, const std::vector<T>& values, int64_t count) {
  if (!values.empty() && static_cast<int64_t>(values.size()) != count) refuse(fmt::format("{} {} where {} are due", values.size(), what, count));
}

void require_features(const ProblemShape& shape) {
  const AttentionSpec& spec = shape.spec;
  const auto require = [](bool given, bool on, const char* what) {
    if (given && !on) refuse(fmt::format("{} given, but the spec is without", what));
  };
  require(!shape.q_lens.empty(), spec.q_len > 1, "q_lens");
  require(!shape.head_lens.empty(), spec.headwise, "head_lens");
  require(!shape.windows.empty(), spec.window, "windows");
  require(shape.chunk != 0, spec.chunk, "chunk");
  require(shape.sink_tokens != 0, spec.sink_tokens, "sink_tokens");
  require(!shape.sinks.empty(), spec.sinks, "sinks");
  require(shape.soft_cap != 0, spec.soft_cap, "soft_cap");
  require(!shape.alibi_slopes.empty(), spec.alibi, "alibi_slopes");
  require(!shape.tree_mask.empty() || shape.tree_mask_size != 0, spec.mask == MaskKind::tree, "a tree mask");
  require(!shape.mask_offset.empty(), spec.mask == MaskKind::offset, "mask_offset");
  require(shape.blocks.block_size != 0, spec.block_sparse, "block-sparse numbers");
  require(shape.shared_pages != 0, !spec.headwise, "shared_pages");
}

void require_lengths(ProblemShape& shape) {
  const AttentionSpec& spec = shape.spec;
  if (shape.lens.empty() && !shape.head_lens.empty()) {
    for (size_t at = 0; at < shape.head_lens.size(); at += static_cast<size_t>(spec.kv_heads)) {
      const size_t end = std::min(shape.head_lens.size(), at + static_cast<size_t>(spec.kv_heads));
      shape.lens.push_back(*std::max_element(shape.head_lens.begin() + static_cast<std::ptrdiff_t>(at), shape.head_lens.begin() + static_cast<std::ptrdiff_t>(end)));
    }
  }
  if (shape.lens.empty()) refuse("no sequence");
  const auto batch = static_cast<int64_t>(shape.lens.size());
  require_count("head_lens", shape.head_lens, batch * spec.kv_heads);
  require_count("q_lens", shape.q_lens, batch);
  for (const std::vector<int>* lengths : {&shape.lens, &shape.head_lens, &shape.q_lens})
    for (const int length : *lengths)
      if (length < 0) refuse(fmt::format("length {} is negative", length));
}

// Data of features. The seed alone decides, so that a problem can be made again.
void fill_features(ProblemShape& shape) {
  const AttentionSpec& spec = shape.spec;
  Random random(shape.seed ^ 0xFEA7E5ULL);
  const int longest = std::max(1, *std::max_element(shape.lens.begin(), shape.lens.end()));
  const auto some = [&](int least, int most) { return least + random.below(std::max(1, most - least + 1)); };
  if (spec.window && shape.windows.empty()) {
    for (int h = 0; h < spec.kv_heads; ++h) {
      switch ((static_cast<uint64_t>(h) + shape.seed) % 3) {
        case 0: shape.windows.push_back(0); break;
        case 1: shape.windows.push_back(some(1, std::min(longest, spec.page_size) + 8)); break;
        default: shape.windows.push_back(some(longest / 2 + 1, longest + 2)); break;
      }
    }
  }
  if (spec.chunk && shape.chunk == 0) shape.chunk = some(1, std::min(longest, random.below(2) == 0 ? 2 * spec.page_size + 3 : longest) + 1);
  if (spec.sink_tokens && shape.sink_tokens == 0) shape.sink_tokens = some(1, std::min(spec.page_size, 64) + 3);
  if (spec.sinks && shape.sinks.empty())
    for (int h = 0; h < spec.q_heads; ++h) shape.sinks.push_back(static_cast<float>(random.uniform(-3, 6)));
  if (spec.soft_cap && shape.soft_cap == 0) shape.soft_cap = static_cast<float>(std::exp2(random.uniform(0, 6)));
  if (spec.alibi && shape.alibi_slopes.empty())
    for (int h = 0; h < spec.q_heads; ++h) shape.alibi_slopes.push_back(static_cast<float>(std::exp2(random.uniform(-9, 0))));
  if (spec.mask == MaskKind::tree) {
    if (shape.tree_mask_size == 0) shape.tree_mask_size = some(spec.q_len, spec.q_len + 3);
    if (shape.tree_mask_size < spec.q_len) refuse(fmt::format("tree_mask_size {} is below q_len {}", shape.tree_mask_size, spec.q_len));
    const size_t cells = shape.lens.size() * static_cast<size_t>(shape.tree_mask_size) * static_cast<size_t>(shape.tree_mask_size);
    if (shape.tree_mask.empty())
      for (size_t i = 0; i < cells; ++i) shape.tree_mask.push_back(random.below(5) < 2 ? static_cast<unsigned char>(some(1, 255)) : 0);
    require_count("bytes of tree_mask", shape.tree_mask, static_cast<int64_t>(cells));
  }
  if (spec.mask == MaskKind::offset) {
    const int64_t rows = query_rows(shape);
    if (shape.mask_offset.empty()) {
      for (int64_t row = 0; row < rows; ++row) {
        // One in eight sees nothing at all.
        const int hi = some(1, longest + 3), lo = random.below(8) == 0 ? hi : random.below(3) == 0 ? 0 : random.below(hi);
        shape.mask_offset.insert(shape.mask_offset.end(), {lo, hi});
      }
    }
    require_count("numbers in mask_offset", shape.mask_offset, rows * 2);
  }
  if (spec.block_sparse && shape.blocks.block_size == 0) {
    shape.blocks = {.block_size = spec.page_size * some(1, std::max(1, std::min(4, 64 / spec.page_size))), .vert_stride = some(1, 8), .local_blocks = some(0, 4), .head_step = some(-2, 3),
                    .head_offset = some(0, 1) * spec.q_heads, .kv_head_offset = some(0, 1) * spec.kv_heads};
  }
  require_count("windows", shape.windows, spec.kv_heads);
  require_count("sinks", shape.sinks, spec.q_heads);
  require_count("alibi_slopes", shape.alibi_slopes, spec.q_heads);
}

}  // namespace

const char* name_of(Placement placement) {
  switch (placement) {
    case Placement::contiguous: return "contiguous";
    case Placement::padded: return "padded";
    case Placement::interleaved: return "interleaved";
    case Placement::sliced: return "sliced";
  }
  return "?";
}

const char* name_of(Unseen unseen) {
  switch (unseen) {
    case Unseen::mixed: return "mixed";
    case Unseen::recycled: return "recycled";
    case Unseen::kept: return "kept";
  }
  return "?";
}

int length_of(const ProblemShape& shape, int sequence, int kv_head) {
  const auto b = static_cast<size_t>(sequence);
  return shape.head_lens.empty() ? shape.lens[b] : shape.head_lens[b * static_cast<size_t>(shape.spec.kv_heads) + static_cast<size_t>(kv_head)];
}

int slots_of(const ProblemShape& shape, int sequence, int kv_head) {
  const auto pages = static_cast<int>((int64_t{length_of(shape, sequence, kv_head)} + shape.spec.page_size - 1) / shape.spec.page_size);
  return shape.table_width > 0 ? std::min(pages, shape.table_width) : pages;
}

int64_t table_rows(const ProblemShape& shape) { return static_cast<int64_t>(shape.lens.size()) * (shape.spec.headwise ? shape.spec.kv_heads : 1); }

int64_t query_rows(const ProblemShape& shape) {
  if (shape.q_lens.empty()) return static_cast<int64_t>(shape.lens.size()) * shape.spec.q_len;
  return std::accumulate(shape.q_lens.begin(), shape.q_lens.end(), int64_t{0});
}

ProblemShape completed(ProblemShape shape) {
  const AttentionSpec& spec = shape.spec;
  require_features(shape);
  require_lengths(shape);
  if (shape.placement != Placement::contiguous && shape.page_stride != 0) refuse("page_stride is for the contiguous placement only");
  if (shape.placement == Placement::sliced && spec.head_dim_k != spec.head_dim_v) refuse("a sliced cache needs head_dim_k == head_dim_v");
  if (shape.placement == Placement::interleaved && spec.head_dim_k != spec.head_dim_v) refuse("an interleaved cache needs head_dim_k == head_dim_v");
  fill_features(shape);

  // Ids are needed once for the whole table, or, where each head has a heap of its own, once for each head.
  const int heads = spec.headwise ? spec.kv_heads : 1;
  std::vector<int> of_head(static_cast<size_t>(heads), 0);
  for (int b = 0; b < static_cast<int>(shape.lens.size()); ++b)
    for (int h = 0; h < heads; ++h) of_head[static_cast<size_t>(h)] += slots_of(shape, b, h);
  const int all = std::accumulate(of_head.begin(), of_head.end(), 0);
  const int needed = spec.headwise && spec.address_map == AddressMap::slot ? *std::max_element(of_head.begin(), of_head.end()) : all;
  if (!shape.page_ids.empty() && static_cast<int>(shape.page_ids.size()) != all) refuse(fmt::format("{} page ids for {} table entries", shape.page_ids.size(), all));
  if (shape.num_pages == 0) shape.num_pages = shape.page_ids.empty() ? needed + 3 : 1 + *std::max_element(shape.page_ids.begin(), shape.page_ids.end());
  if (shape.page_ids.empty() && shape.num_pages < needed) refuse(fmt::format("{} pages for {} table entries", shape.num_pages, needed));
  if (shape.table_width == 0) {
    const int longest = *std::max_element(shape.lens.begin(), shape.lens.end());
    shape.table_width = (longest + spec.page_size - 1) / spec.page_size + 2;
  }
  return shape;
}

std::string text_of(const ProblemShape& shape) {
  std::string text = fmt::format("{{{}, lens {}, {}, unseen {}, seed {}", canonical_json(shape.spec), shape.lens, name_of(shape.placement), name_of(shape.unseen), shape.seed);
  const auto list = [&](const char* name, const auto& values) {
    if (!values.empty()) text += fmt::format(", {} {}", name, values);
  };
  const auto number = [&](const char* name, auto value) {
    if (value != 0) text += fmt::format(", {} {}", name, value);
  };
  list("q_lens", shape.q_lens);
  list("head_lens", shape.head_lens);
  list("windows", shape.windows);
  list("sinks", shape.sinks);
  list("alibi_slopes", shape.alibi_slopes);
  list("mask_offset", shape.mask_offset);
  number("chunk", shape.chunk);
  number("sink_tokens", shape.sink_tokens);
  number("soft_cap", shape.soft_cap);
  number("scale", shape.scale);
  number("tree_mask_size", shape.tree_mask_size);
  number("absent", shape.absent);
  number("shared_pages", shape.shared_pages);
  number("table_width", shape.table_width);
  number("q_stride_token", shape.q_stride_token);
  number("out_stride_token", shape.out_stride_token);
  number("q_stride_seq", shape.q_stride_seq);
  number("out_stride_seq", shape.out_stride_seq);
  if (shape.spec.block_sparse)
    text += fmt::format(", blocks {} vert {} local {} step {} offsets {} {}", shape.blocks.block_size, shape.blocks.vert_stride, shape.blocks.local_blocks, shape.blocks.head_step,
                        shape.blocks.head_offset, shape.blocks.kv_head_offset);
  return text + "}";
}

}  // namespace pagetune
