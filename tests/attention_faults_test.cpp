// Inputs cut down from faults that users of paged-attention kernels reported in public; the tag in a name is that of the kind.
#include <algorithm>
#include <cmath>

#include "attention_support.hpp"
#include "codegen/support.hpp"
#include "runtime/launch.hpp"

namespace pagetune::testing_support {
namespace {

class Faults : public DeviceTest {
 protected:
  void expect_all_right(const std::vector<ProblemShape>& all) {
    const std::vector<ProblemShape> shapes = all.size() > 10 ? sampled(all) : all;
    std::vector<AttentionSpec> specs;
    for (const ProblemShape& shape : shapes) specs.push_back(shape.spec);
    build_all(device(), specs);
    for (const ProblemShape& shape : shapes) expect_right(device(), shape);
  }
};

TEST_F(Faults, EveryPlan) { expect_right_in_every_plan(device(), {.spec = decode_spec(20, 1, 64, 16), .lens = {0, 2048, 5, 0, 300, 1, 0}, .absent = 0.6}); }

// ---- grid limits (B10, B11): heads or batch on a grid axis of 65,535

TEST_F(Faults, SixtyFiveThousandQueryHeads_B10) {
  const AttentionSpec spec = decode_spec(65536, 1024, 16, 16);
  ASSERT_TRUE(supports(spec, device().target())) << supports(spec, device().target()).reason;
  expect_right(device(), {.spec = spec, .lens = {10}});
}

TEST_F(Faults, HeadsBeyondTheDomainAreRefusedWithBothNumbers_B10) {
  const Support support = supports(decode_spec(65536, 65536, 16, 16), device().target());
  ASSERT_FALSE(support);
  EXPECT_NE(support.reason.find("65536"), std::string::npos) << support.reason;
  EXPECT_NE(support.reason.find("1024"), std::string::npos) << support.reason;
}

TEST_F(Faults, BatchTimesHeadsAcross65535_B11) {
  const AttentionSpec spec = decode_spec(6, 6, 16, 4);
  for (const int batch : sanitized() ? std::vector{500} : std::vector{10922, 10923}) expect_right(device(), {.spec = spec, .lens = std::vector<int>(static_cast<size_t>(batch), 5)}, std::to_string(batch));
}

TEST_F(Faults, BatchAcross65535_B11) { expect_right(device(), {.spec = decode_spec(1, 1, 8, 4), .lens = std::vector<int>(sanitized() ? 2000 : 70000, 3)}); }

// ---- empty and padding rows, unread memory

// A capture of 4 rows with 3 sequences: 0/0 in the merge of the fourth.
TEST_F(Faults, OnePaddingRowInACapturedBatch_B13) {
  const AttentionSpec spec = decode_spec(8, 2, 128, 16);
  const Outputs padded = expect_right(device(), {.spec = spec, .lens = {5, 17, 33, 0}});
  expect_empty(spec, padded, 3);
}

// Rows of length 0 skipped: what was in the buffer stays.
TEST_F(Faults, PaddingRowsAreWritten_B14) {
  const AttentionSpec spec = decode_spec(4, 4, 64, 16);
  const Outputs outputs = expect_right(device(), {.spec = spec, .lens = {3, 100, 16, 1, 77, 0, 0, 0}});
  for (int b = 5; b < 8; ++b) expect_empty(spec, outputs, b);
}

TEST_F(Faults, WholeBatchOfPaddingRows_B14) { expect_right(device(), {.spec = decode_spec(4, 4, 64, 16), .lens = {0, 0, 0}}); }

// exp2(-inf - -inf) when splits without a key meet: first, last, and all of them.
TEST_F(Faults, EmptySplitsAreNeutralInTheMerge_B16_B17_B23) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  HostProblem problem({.spec = spec, .lens = {2048, 2048, 2048}});
  for (int slot = 0; slot < 128; ++slot) {
    if (slot < 100) problem.table_entry(0, slot) = -1;
    if (slot >= 3) problem.table_entry(1, slot) = -1;
    problem.table_entry(2, slot) = -1;
  }
  const Outputs outputs = expect_right(device(), problem);
  expect_empty(spec, outputs, 2);
}

// Running maximum from a finite sentinel: valid rows become 0.
TEST_F(Faults, EveryLogitFarBelowAnySentinel_B20) {
  for (const DType type : dtypes()) {
    const AttentionSpec spec = decode_spec(32, 8, 128, 16, type);
    HostProblem problem({.spec = spec, .lens = {1, 20}});
    problem.fill_q([](int, int, int) { return 64; });
    problem.fill_k([](int64_t, int, int, int) { return -64; });
    problem.fill_v([](int64_t, int, int, int) { return 1; });
    const Outputs outputs = expect_right(device(), problem, name_of(type));
    EXPECT_EQ(out_at(spec, outputs, 0, 0, 0), 1.0);
    EXPECT_NEAR(outputs.lse[0], -46340.95, 0.02);
  }
}

TEST_F(Faults, EveryPageAbsent_B22) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  HostProblem problem({.spec = spec, .lens = {40}});
  for (int slot = 0; slot < 3; ++slot) problem.table_entry(0, slot) = -1;
  expect_empty(spec, expect_right(device(), problem), 0);
}

// Whole tiles loaded from a cache whose unused slots are NaN.
TEST_F(Faults, LengthsBelowATile_B25_B31) {
  expect_all_right({{.spec = decode_spec(8, 8, 64, 128), .lens = {32, 64, 96, 48}},
                    {.spec = decode_spec(20, 20, 128, 16), .lens = {9, 12}},
                    {.spec = decode_spec(20, 20, 128, 64), .lens = {9, 12}}});
}

TEST_F(Faults, LastPagePartlyFilled_B26) { expect_right(device(), {.spec = decode_spec(4, 1, 64, 4), .lens = {13, 15, 16}}); }

// Head dims padded to a vector or an MMA step: the lanes beyond read the next head's first elements, here NaN.
TEST_F(Faults, NextHeadsFirstLanesAreNaN_B32) {
  std::vector<AttentionSpec> specs;
  for (const int dim : {8, 24, 72, 80, 96, 112, 120}) specs.push_back(decode_spec(4, 2, dim, 16));
  build_all(device(), specs);
  for (const AttentionSpec& spec : specs) {
    const int dim = spec.head_dim_k;
    HostProblem problem({.spec = spec, .lens = {16, 30}});
    problem.fill_k([](int64_t position, int, int head, int d) { return head == 1 ? NAN : hashed(position, head, d); });
    problem.fill_v([](int64_t position, int, int head, int d) { return head == 1 ? NAN : hashed(position, head, d, 1); });
    const Reference expected = reference(spec, problem.params());
    for (const int variant : {1, 2}) {
      const Outputs first = outputs_of(device(), problem, variant, variant);
      for (int b = 0; b < 2; ++b) {
        for (int h = 0; h < 2; ++h) {
          for (int d = 0; d < dim; ++d) {
            ASSERT_NEAR(out_at(spec, first, b, h, d), expected.out[(static_cast<size_t>(b) * 4 + h) * dim + d], 0.02) << "head dim " << dim << ", V" << variant;
          }
        }
      }
      for (int run = 0; run < 3; ++run) EXPECT_TRUE(outputs_of(device(), problem, variant, variant) == first) << "head dim " << dim;
    }
  }
}

// ---- page size

// Every cell runs or is refused by supports(), with the same answer in both places.
TEST_F(Faults, PageSizeTimesHeadDim_B49_B50_B53_B67) {
  std::vector<ProblemShape> shapes;
  for (const int page : {1, 8, 16, 32, 64, 128, 256, 528, 544, 768, 784, 1056}) {
    for (const int dim : {64, 128, 256}) {
      shapes.push_back({.spec = decode_spec(4, 2, dim, page), .lens = {1, page, page + 1, 70}});
      const Support support = supports(shapes.back().spec, device().target());
      ASSERT_TRUE(support) << support.reason;
    }
  }
  expect_all_right(shapes);
}

TEST_F(Faults, TileLargerThanThePageAndNoMultipleOfIt_B55) {
  std::vector<ProblemShape> shapes;
  for (const int page : {1, 2, 3, 5, 6, 12, 20, 24, 48}) shapes.push_back({.spec = decode_spec(2, 1, 64, page), .lens = {1, 50, 129}});
  expect_all_right(shapes);
}

// ---- GQA ratio

TEST_F(Faults, GroupsOfFiveAndSeven_B56_B61) {
  std::vector<ProblemShape> shapes;
  for (const auto& [q_heads, kv_heads] : {std::pair{28, 4}, {40, 8}, {56, 8}}) shapes.push_back({.spec = decode_spec(q_heads, kv_heads, 128, 16), .lens = {100, 1, 0}});
  expect_all_right(shapes);
}

TEST_F(Faults, GroupsOf16And64_B58) {
  expect_all_right({{.spec = decode_spec(64, 4, 128, 16), .lens = {100, 17}},
                    {.spec = decode_spec(64, 1, 256, 16), .lens = {100, 17}},
                    {.spec = decode_spec(128, 1, 256, 64), .lens = {100}}});
}

// A thread id of the epilogue taken for a head: heads of the last tile missing, or lanes beyond the 71st stored.
TEST_F(Faults, SeventyOneHeadsToOne_B59) {
  const AttentionSpec spec = decode_spec(71, 1, 64, 16);
  HostProblem problem({.spec = spec, .lens = {50}});
  problem.fill_q([](int, int head, int dim) { return dim == 0 ? head / 16.0 : 0; });
  const Outputs outputs = expect_right(device(), problem);
  std::vector<float> sorted = outputs.lse;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end()) << "two heads share a result";
}

TEST_F(Faults, GroupsPaddedToPowersOfTwo_B62) {
  std::vector<ProblemShape> shapes;
  for (const int g : {3, 5, 9, 12, 14, 15}) shapes.push_back({.spec = decode_spec(8 * g, 8, 64, 16), .lens = {77, 3}});
  expect_all_right(shapes);
}

// ---- head dims

TEST_F(Faults, HeadDimsOtherThan128_B64_B68_B70) {
  std::vector<ProblemShape> shapes;
  for (const int dim : {64, 80, 96, 112, 120, 160, 192, 256}) shapes.push_back({.spec = decode_spec(32, 8, dim, 16), .lens = {100, 1}});
  expect_all_right(shapes);
}

// Only the first 32 or 64 dims computed.
TEST_F(Faults, EveryDimIsComputed_B71) {
  for (const int dim : {64, 128, 256}) {
    const AttentionSpec spec = decode_spec(4, 2, dim, 16);
    HostProblem problem({.spec = spec, .lens = {40}});
    problem.fill_v([](int64_t, int, int, int d) { return d; });
    const Outputs outputs = expect_right(device(), problem);
    for (int d = 0; d < dim; ++d) ASSERT_NEAR(out_at(spec, outputs, 0, 3, d), d, d * 0x1p-7);
  }
}

// A workspace sized with another layer's head dim or head count: the guard behind the exact size of each would break.
TEST_F(Faults, WorkspaceFollowsTheLayer_B73_B112) {
  const AttentionSpec narrow = decode_spec(32, 8, 128, 16);
  const AttentionSpec wide = decode_spec(32, 2, 256, 16);
  EXPECT_GT(workspace_bytes(wide, 3, 8), workspace_bytes(narrow, 3, 8));
  for (const AttentionSpec& spec : {narrow, wide}) expect_right(device(), {.spec = spec, .lens = {700, 700, 700}});
}

// ---- strides and layout

// Page stride / token stride as an integer; K and V of one layer in a cache of pages across layers.
TEST_F(Faults, PageStrideThatIsNoMultipleOfTheTokenStride_B76) {
  const AttentionSpec spec = decode_spec(8, 4, 256, 64);
  expect_right(device(), {.spec = spec, .lens = {100, 64, 1}, .placement = Placement::interleaved, .num_pages = 1233, .page_ids = {1232, 7, 616, 0}, .sparse = true});
  expect_right(device(), {.spec = spec, .lens = {100, 64, 1}, .num_pages = 1233, .page_ids = {1232, 7, 616, 0}, .page_stride = 131072 + 8, .sparse = true});
}

// Only the page stride of a transposed and split view forwarded.
TEST_F(Faults, TransposedAndSplitView_B77) {
  AttentionSpec spec = decode_spec(8, 4, 64, 16);
  spec.layout = Layout::hnd;
  expect_right(device(), {.spec = spec, .lens = {1, 16, 50, 200}, .placement = Placement::sliced});
}

// The layout guessed from the dims: here both orders have the same.
TEST_F(Faults, AsManyHeadsAsTokens_B80) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    for (const int heads : {8, 16}) {
      AttentionSpec spec = decode_spec(heads, heads, 64, 16);
      spec.layout = layout;
      expect_right(device(), {.spec = spec, .lens = {1, 15, 40}});
    }
  }
}

TEST_F(Faults, QueryIsASliceOfFusedQkv_B82) {
  expect_right(device(), {.spec = decode_spec(8, 2, 64, 16), .lens = {1, 15, 40}, .q_stride_seq = int64_t{8 + 2 * 2} * 64});
}

// ---- split and merge

// Rows after the first never written by the merge; the maximum length used in place of the sequence's own.
TEST_F(Faults, RaggedRowsUnderSplits_B98_B100) {
  expect_right(device(), {.spec = decode_spec(4, 4, 64, 256), .lens = {300, 700}});
  expect_right(device(), {.spec = decode_spec(4, 4, 64, 16), .lens = {16, 1024}});
}

// LSE permuted when the merge writes another order of heads.
TEST_F(Faults, LseOfEveryHeadEqualsThatOfV1_B101) {
  const AttentionSpec spec = decode_spec(8, 2, 64, 16);
  const HostProblem problem({.spec = spec, .lens = {300, 70, 150}});
  const Outputs v1 = expect_right(device(), problem);
  const Outputs v2 = outputs_of(device(), problem, 2, 2);
  for (size_t i = 0; i < v1.lse.size(); ++i) EXPECT_NEAR(v1.lse[i], v2.lse[i], 1e-4) << i;
}

// Partitions from a capacity and not from the row: with a table as narrow as the length.
TEST_F(Faults, MoreSplitsThanTheTableHasPages_B103) { expect_right(device(), {.spec = decode_spec(4, 2, 64, 16), .lens = {40, 48, 33}, .table_width = 3}); }

// A flag for "length divisible by the tile" that stays from another length.
TEST_F(Faults, EveryLengthFrom128To227_B106) {
  std::vector<int> lens;
  for (int i = 0; i < 100; ++i) lens.push_back(128 + i);
  lens = sampled(lens);
  AttentionSpec spec = decode_spec(16, 16, 64, 16);
  spec.layout = Layout::hnd;
  expect_right(device(), {.spec = spec, .lens = lens});
}

// Every split reads the same prefix, or the remainder is dropped.
TEST_F(Faults, TenTokensOverFourSplits_B107) {
  const AttentionSpec spec = decode_spec(1, 1, 64, 1);
  HostProblem problem({.spec = spec, .lens = {10}});
  fill_mean_probe(problem, [](int64_t t) { return t; });
  expect_right(device(), problem);
  EXPECT_EQ(out_at(spec, outputs_of(device(), problem, 2, 4), 0, 0, 0), 4.5);
}

TEST_F(Faults, LseIsNaturalLogarithm_B109) {
  const AttentionSpec spec = decode_spec(2, 1, 64, 16);
  HostProblem problem({.spec = spec, .lens = {4}});
  fill_mean_probe(problem, [](int64_t t) { return t; });
  EXPECT_NEAR(expect_right(device(), problem).lse[1], 1.386294F, 1e-5);
}

// The merge reads slots that no split wrote: here poison.
TEST_F(Faults, RowsWithoutPartialsAreNotMerged_B110) {
  const AttentionSpec spec = decode_spec(8, 2, 64, 16);
  const HostProblem all({.spec = spec, .lens = {20, 600, 0}});
  expect_empty(spec, expect_right(device(), all), 2);
  expect_empty(spec, outputs_of(device(), all, 2, 4), 2);
}

// ---- long sequences

// Logits kept per token: shared memory grows with the length until a launch fails.
TEST_F(Faults, OnePassOverLongSequences_B122) {
  const AttentionSpec spec = decode_spec(4, 1, 64, 64);
  if (sanitized()) expect_right(device(), {.spec = spec, .lens = {1176, 1177, 4121, 8192}});
  else expect_right(device(), {.spec = spec, .lens = {11776, 11777, 41216, 41217, 57600, 57601, 65536, 131072}});
}

// A sum in bf16 sticks at 256.
TEST_F(Faults, ManyEqualLogits_B121) {
  const AttentionSpec spec = decode_spec(2, 1, 64, 16);
  for (const int len : {512, 4096, sanitized() ? 8192 : 131072}) {
    HostProblem problem({.spec = spec, .lens = {len}});
    fill_mean_probe(problem, [len](int64_t t) { return t < len / 2 ? 0 : 1; });
    EXPECT_EQ(out_at(spec, expect_right(device(), problem), 0, 0, 0), 0.5) << len;
  }
}

}  // namespace
}  // namespace pagetune::testing_support
