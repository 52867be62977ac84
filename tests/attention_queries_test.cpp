// Several query tokens in one step: causality, packed rows, trees, mask offsets, shared pages; K and V of different dims and types.
#include <cmath>

#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

AttentionSpec of_tokens(int q_len, int q_heads = 4, int kv_heads = 2, int head_dim = 64, int page_size = 16, DType type = DType::fp16) {
  AttentionSpec spec = decode_spec(q_heads, kv_heads, head_dim, page_size, type);
  spec.q_len = q_len;
  return spec;
}

class Queries : public DeviceTest {};

TEST_F(Queries, EveryPlan) {
  AttentionSpec spec = of_tokens(5, 8, 2);
  spec.mask = MaskKind::tree;
  require_supported(spec);
  expect_right_in_every_plan(device(), {.spec = spec, .lens = {0, 1, 5, 17, 300, 1000}, .q_lens = {5, 1, 0, 5, 4, 2}});
}

// The same for warpgroups, whose masks, packed rows and row tiles are other code: 60 rows and 80 of a KV head, a window and sinks beside the mask.
TEST_F(Queries, EveryPlanOfManyRows) {
  AttentionSpec tree = of_tokens(10, 12, 2, 128);
  tree.mask = MaskKind::tree;
  AttentionSpec offsets = of_tokens(16, 10, 2, 64, 8, DType::bf16);
  offsets.mask = MaskKind::offset;
  offsets.window = offsets.sinks = offsets.soft_cap = true;
  AttentionSpec sparse = of_tokens(5, 20, 2, 64, 32);
  sparse.block_sparse = sparse.alibi = true;
  for (const AttentionSpec& spec : {tree, offsets, sparse}) {
    require_supported(spec);
    expect_right_in_every_plan(device(), {.spec = spec, .lens = {0, 1, 10, 17, 300, 1000}, .q_lens = {5, 1, 0, 5, 4, 2}});
  }
}

// ---- causality

// A mask sentinel that is finite, or block bounds below 0: rows without keys are 0 and -inf.
TEST_F(Queries, MoreQueryTokensThanKeys_B19_B97) {
  const AttentionSpec spec = of_tokens(4);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {2, 0, 4, 100}});
  for (int row = 0; row < 2; ++row) expect_empty(spec, outputs, row);
  expect_seen(spec, outputs, 2, 0, 0, 1);
  expect_seen(spec, outputs, 3, 0, 0.5, 2);
  for (int row = 4; row < 8; ++row) expect_empty(spec, outputs, row);
  for (int i = 0; i < 4; ++i) expect_seen(spec, outputs, 8 + i, 3, i / 2.0, i + 1);
}

// The cached prefix dropped: attention to the step's own tokens only.
TEST_F(Queries, ThePrefixIsAttended_B104) {
  const AttentionSpec spec = of_tokens(4);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {36}});
  for (int i = 0; i < 4; ++i) expect_seen(spec, outputs, i, 0, (32 + i) / 2.0, 33 + i);
}

TEST_F(Queries, EveryCountUpToSixteenInEveryGroup) {
  std::vector<AttentionSpec> specs;
  for (int q_len = 1; q_len <= 16; ++q_len)
    for (const int group : {1, 3, 8}) specs.push_back(of_tokens(q_len, 2 * group, 2, q_len % 2 == 0 ? 64 : 136, 16, DType::bf16));
  specs = sampled(specs);
  for (const AttentionSpec& spec : specs) require_supported(spec);
  build_all(device(), specs);
  for (const AttentionSpec& spec : specs) expect_right(device(), {.spec = spec, .lens = {1, 16, 17, 40, 0, 129}});
}

// ---- packed rows

// The combine step indexes a fixed layout: rows after the first stay unwritten.
TEST_F(Queries, PackedRowsUnderSplits_B98) {
  const AttentionSpec spec = of_tokens(2, 4, 4, 64, 256, DType::bf16);
  require_supported(spec);
  expect_right(device(), {.spec = spec, .lens = {300, 700}, .q_lens = {1, 1}});
}

// Row offsets missing where a long step follows single tokens.
TEST_F(Queries, StepsOfAnyLengthInAnyOrder_B110_B113) {
  const AttentionSpec spec = of_tokens(16);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {50, 9, 7}, .q_lens = {1, 1, 7}});
  expect_seen(spec, outputs, 0, 0, 24.5, 50);
  expect_seen(spec, outputs, 1, 0, 4, 9);
  for (int i = 0; i < 7; ++i) expect_seen(spec, outputs, 2 + i, 0, i / 2.0, i + 1);
  const Outputs mixed = expect_right(device(), {.spec = spec, .lens = {16, 600, 0}, .q_lens = {16, 1, 1}});
  expect_empty(spec, mixed, 17);
  expect_right(device(), {.spec = spec, .lens = {16, 600, 33, 0, 100, 5}, .q_lens = {0, 3, 16, 2, 0, 5}});
}

// Rows beyond what the kernel was built for are nobody's: neither computed nor written.
TEST_F(Queries, MoreTokensThanTheKernelWasBuiltFor) {
  const AttentionSpec spec = of_tokens(3);
  require_supported(spec);
  expect_right(device(), {.spec = spec, .lens = {40, 40, 40}, .q_lens = {2, 5, 3}});
}

TEST_F(Queries, StridedRows) {
  const AttentionSpec spec = of_tokens(3, 6, 2, 72);
  require_supported(spec);
  ProblemShape shape{.spec = spec, .lens = {17, 0, 5, 100}, .q_stride_token = 10 * 72, .out_stride_token = 6 * 72 + 40};
  expect_right(device(), shape);
  shape.q_lens = {3, 1, 0, 2};
  expect_right(device(), shape);
  shape.q_lens.clear();
  shape.q_stride_seq = 3 * 10 * 72 + 64;
  shape.out_stride_seq = 3 * (6 * 72 + 40) + 8;
  expect_right(device(), shape);
}

// ---- pages

// The next slot taken for slot + 1: pages of one token in any order.
TEST_F(Queries, AddressesComeFromTheTable_B46) {
  const AttentionSpec spec = of_tokens(3, 1, 1, 64, 1);
  require_supported(spec);
  HostProblem problem({.spec = spec, .lens = {5}, .page_ids = {9, 2, 31, 4, 17}});
  fill_mean_probe(problem);
  problem.fill_v([](int64_t, int page, int, int dim) { return page == dim ? 1 : 0; });
  const Outputs outputs = expect_right(device(), problem);
  for (int i = 0; i < 3; ++i) {
    int slot = 0;
    for (const int page : {9, 2, 31, 4, 17}) EXPECT_NEAR(out_at(spec, outputs, i, 0, page), slot++ <= i + 2 ? 1.0 / (i + 3) : 0, 1e-3) << i;
  }
}

// A shared prefix: non-causal inside it, or the split into prefix and rest invalid with a window.
TEST_F(Queries, SharedPagesGiveTheBitsOfCopies_B38) {
  for (const bool window : {false, true}) {
    for (const int q_len : {1, 4}) {
      AttentionSpec spec = of_tokens(q_len, 8, 2);
      spec.window = window;
      require_supported(spec);
      ProblemShape shape{.spec = spec, .lens = {33, 40, 48}, .shared_pages = 2};
      if (window) shape.windows = {20, 20};
      HostProblem shared(shape);
      shape.shared_pages = 0;
      HostProblem copies(shape);
      fill_by_position(shared);
      fill_by_position(copies);
      expect_right(device(), shared);
      EXPECT_TRUE(outputs_of(device(), shared, 1, 1) == outputs_of(device(), copies, 1, 1));
      for (const int splits : split_counts()) EXPECT_TRUE(outputs_of(device(), shared, 2, splits) == outputs_of(device(), copies, 2, splits)) << splits;
    }
  }
}

// ---- masks over query tokens

TEST_F(Queries, TreeOfDraftTokens) {
  AttentionSpec spec = of_tokens(4);
  spec.mask = MaskKind::tree;
  require_supported(spec);
  // 0 is the root, 1 and 2 its children, 3 a child of 1; a step of two tokens, and one longer than its sequence.
  const std::vector<unsigned char> tree = {0, 1, 1, 1, 0, /**/ 0, 0, 1, 1, 0, /**/ 0, 1, 0, 1, 0, /**/ 0, 0, 1, 0, 0, /**/ 1, 1, 1, 1, 1};
  std::vector<unsigned char> masks;
  for (int b = 0; b < 3; ++b) masks.insert(masks.end(), tree.begin(), tree.end());
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {20, 30, 3}, .q_lens = {4, 2, 4}, .tree_mask_size = 5, .tree_mask = masks});
  const double prefix = 120;
  expect_seen(spec, outputs, 0, 0, (prefix + 16) / 17, 17);
  expect_seen(spec, outputs, 1, 0, (prefix + 16 + 17) / 18, 18);
  expect_seen(spec, outputs, 2, 0, (prefix + 16 + 18) / 18, 18);
  expect_seen(spec, outputs, 3, 0, (prefix + 16 + 17 + 19) / 19, 19);
  for (uint64_t seed = 1; seed < 6; ++seed) expect_right(device(), {.spec = spec, .lens = {1, 4, 16, 18, 35, 0, 200}, .seed = seed});
}

TEST_F(Queries, MaskOffsets) {
  AttentionSpec spec = of_tokens(2, 4, 2);
  spec.mask = MaskKind::offset;
  spec.window = spec.sink_tokens = true;
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {20, 20}, .windows = {0, 3}, .sink_tokens = 2, .mask_offset = {4, 15, 6, 40, 7, 7, 0, 1}});
  expect_seen(spec, outputs, 0, 0, 9, 11);
  expect_seen(spec, outputs, 0, 2, 9.6, 5);
  expect_seen(spec, outputs, 1, 0, 12.5, 14);
  expect_seen(spec, outputs, 1, 3, 6.5, 2);
  expect_empty(spec, outputs, 2);
  for (uint64_t seed = 1; seed < 6; ++seed) expect_right(device(), {.spec = spec, .lens = {1, 4, 16, 18, 35, 0, 400}, .seed = seed});
}

TEST_F(Queries, BlockSparse) {
  for (const int page : {1, 16, 32}) {
    AttentionSpec spec = of_tokens(page == 16 ? 3 : 1, 6, 2, 64, page);
    spec.block_sparse = true;
    require_supported(spec);
    for (uint64_t seed = 1; seed < 6; ++seed) expect_right(device(), {.spec = spec, .lens = {1, 63, 64, 65, 0, 300, 1000}, .seed = seed});
  }
}

// ---- dims and types

TEST_F(Queries, KeysAndValuesOfDifferentDims) {
  std::vector<AttentionSpec> specs;
  for (const auto& [k, v] : {std::pair{192, 128}, {128, 64}, {64, 128}, {72, 256}, {256, 8}}) {
    specs.push_back(of_tokens(1, 8, 2, k, 16, DType::bf16));
    specs.back().head_dim_v = v;
    specs.push_back(of_tokens(3, 8, 2, k, 7, DType::bf16));
    specs.back().head_dim_v = v;
  }
  for (const AttentionSpec& spec : specs) require_supported(spec);
  build_all(device(), specs);
  for (const AttentionSpec& spec : specs) {
    expect_right(device(), {.spec = spec, .lens = {1, 16, 77, 0, 300}});
    expect_right(device(), {.spec = spec, .lens = {1, 16, 77, 0, 300}, .placement = Placement::padded});
  }
}

TEST_F(Queries, OutputOfAnotherType) {
  require_supported(of_tokens(2));
  for (const DType out : {DType::fp32, DType::fp16, DType::bf16}) {
    AttentionSpec spec = of_tokens(2, 8, 2, 64, 16, DType::bf16);
    spec.out_dtype = out;
    if (const std::string refusal = refusal_of(device(), spec); !refusal.empty()) {
      EXPECT_NE(refusal.find("out_dtype"), std::string::npos) << refusal;
      continue;
    }
    expect_right(device(), {.spec = spec, .lens = {1, 16, 77, 0, 300}});
  }
}

}  // namespace
}  // namespace pagetune::testing_support
