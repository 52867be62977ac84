// The fp64 oracle against closed forms. Everything else in these tests is measured against the oracle, so it has to be right by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "pagetune/error.hpp"
#include "tuner/host_problem.hpp"
#include "tuner/oracle.hpp"
#include "specs.hpp"

namespace pagetune {
namespace {

AttentionSpec spec_of(int q_heads, int kv_heads, int dim, int page, DType type = DType::fp32) {
  return uniform_spec(q_heads, kv_heads, dim, page, type, true);
}

// K = 0, q = 1, V[t] = t: out is the mean of the attended positions, LSE the logarithm of their number.
void fill_mean_probe(HostProblem& problem) {
  problem.fill_q([](int, int, int) { return 1; });
  problem.fill_k([](int64_t, int, int, int) { return 0; });
  problem.fill_v([](int64_t position, int, int, int) { return static_cast<double>(position); });
}

// Fault: a token too many or too few, a wrong page, or a head that reads another head's keys, in any placement of the cache.
TEST(Oracle, MeanProbeInEveryPlacement) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    for (const Placement placement : {Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced}) {
      AttentionSpec spec = spec_of(6, 2, 8, 4);
      spec.layout = layout;
      HostProblem problem({.spec = spec, .lens = {1, 3, 4, 5, 33}, .placement = placement});
      fill_mean_probe(problem);
      const Reference result = reference(spec, problem.params());
      for (int b = 0; b < 5; ++b) {
        const double count = problem.shape().lens[b];
        for (int h = 0; h < 6; ++h) {
          EXPECT_NEAR(result.lse[b * 6 + h], std::log(count), 1e-12) << name_of(placement);
          for (int d = 0; d < 8; ++d) EXPECT_NEAR(result.out[(b * 6 + h) * 8 + d], (count - 1) / 2, 1e-12) << name_of(placement);
        }
      }
    }
  }
}

// Fault: positions computed as first page + i, not through the table.
TEST(Oracle, PageProbeShowsTheShareOfEachPage) {
  const AttentionSpec spec = spec_of(1, 1, 16, 4);
  HostProblem problem({.spec = spec, .lens = {10}, .num_pages = 16, .page_ids = {9, 2, 13}});
  fill_mean_probe(problem);
  problem.fill_v([](int64_t, int page, int, int dim) { return page == dim ? 1 : 0; });
  const Reference result = reference(spec, problem.params());
  for (int d = 0; d < 16; ++d) EXPECT_NEAR(result.out[d], d == 9 || d == 2 ? 0.4 : d == 13 ? 0.2 : 0.0, 1e-12);
}

// Fault: head h of a group reads the keys of another KV head, or the scale is applied twice.
TEST(Oracle, TwoKeysGiveTheLogisticFunction) {
  const AttentionSpec spec = spec_of(4, 2, 8, 16);
  HostProblem problem({.spec = spec, .lens = {2}});
  problem.fill_q([](int, int head, int dim) { return dim == 0 ? head + 1 : 0; });
  problem.fill_k([](int64_t position, int, int head, int dim) { return dim == 0 && position == 1 ? 1 + head : 0; });
  problem.fill_v([](int64_t position, int, int, int) { return static_cast<double>(position); });
  const Reference result = reference(spec, problem.params());
  for (int h = 0; h < 4; ++h) {
    const int kv_head = h / 2;
    const double logit = (h + 1) * (1 + kv_head) / std::sqrt(8.0);
    EXPECT_NEAR(result.out[h * 8], 1 / (1 + std::exp(-logit)), 1e-12);
    EXPECT_NEAR(result.lse[h], std::log1p(std::exp(logit)), 1e-12);
  }
}

TEST(Oracle, RuntimeScaleReplacesTheDefault) {
  const AttentionSpec spec = spec_of(1, 1, 8, 16);
  HostProblem problem({.spec = spec, .lens = {1}, .scale = 0.125F});
  problem.fill_q([](int, int, int) { return 1; });
  problem.fill_k([](int64_t, int, int, int) { return 1; });
  EXPECT_NEAR(reference(spec, problem.params()).lse[0], 1.0, 1e-12);
}

// Fault: an empty row is NaN, or a finite sentinel makes it look alive.
TEST(Oracle, RowWithoutVisibleKeyIsZeroAndMinusInfinity) {
  const AttentionSpec spec = spec_of(2, 1, 8, 4);
  HostProblem problem({.spec = spec, .lens = {0, 6}});
  problem.table_entry(1, 0) = problem.table_entry(1, 1) = -1;
  const Reference result = reference(spec, problem.params());
  for (const double lse : result.lse) EXPECT_EQ(lse, -INFINITY);
  for (const double out : result.out) EXPECT_EQ(out, 0);
}

// Fault: an absent page shifts the positions behind it, or an id that is no page is read.
TEST(Oracle, AbsentAndImpossiblePagesAreMasked) {
  const AttentionSpec spec = spec_of(1, 1, 8, 4);
  HostProblem problem({.spec = spec, .lens = {16}});
  fill_mean_probe(problem);
  problem.table_entry(0, 1) = -1;
  problem.table_entry(0, 2) = problem.params().num_pages;
  const Reference result = reference(spec, problem.params());
  EXPECT_NEAR(result.out[0], (0 + 1 + 2 + 3 + 12 + 13 + 14 + 15) / 8.0, 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(8.0), 1e-12);
}

// Fault: a length beyond the row reads the neighbour's table.
TEST(Oracle, LengthIsClampedToTheRow) {
  const AttentionSpec spec = spec_of(1, 1, 8, 16);
  HostProblem problem({.spec = spec, .lens = {33}, .table_width = 2});
  fill_mean_probe(problem);
  EXPECT_NEAR(reference(spec, problem.params()).lse[0], std::log(32.0), 1e-12);
}

// Fault: a running maximum that starts at a finite sentinel loses keys with very negative logits.
TEST(Oracle, VeryNegativeLogitIsStillTheOnlyKey) {
  const AttentionSpec spec = spec_of(1, 1, 128, 16);
  HostProblem problem({.spec = spec, .lens = {1}});
  problem.fill_q([](int, int, int) { return 64; });
  problem.fill_k([](int64_t, int, int, int) { return -64; });
  problem.fill_v([](int64_t, int, int, int) { return 1; });
  const Reference result = reference(spec, problem.params());
  EXPECT_NEAR(result.out[0], 1.0, 1e-12);
  EXPECT_NEAR(result.lse[0], -46340.950, 1e-2);
}

// Fault: the oracle itself depends on poison, and every comparison with it would be NaN.
TEST(Oracle, PoisonDoesNotReachIt) {
  const AttentionSpec spec = spec_of(4, 2, 24, 7, DType::bf16);
  const ProblemShape shape{.spec = spec, .lens = {1, 6, 7, 8, 40}, .placement = Placement::padded};
  ProblemShape clean = shape;
  clean.poison = false;
  const Reference a = reference(spec, HostProblem(shape).params());
  const Reference b = reference(spec, HostProblem(clean).params());
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
}

// Fault: a feature is ignored silently and kernels are compared with the wrong answer.
TEST(Oracle, RefusesFeaturesThatItDoesNotKnow) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  const HostProblem problem({.spec = spec, .lens = {4}});
  spec.kv_scale = ScaleGranularity::tensor;
  try {
    reference(spec, problem.params());
    FAIL() << "a scale was ignored";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("tensor"), std::string::npos);
  }
}

// ---- features. The mean probe shows which keys a row sees: out is their mean, exp(LSE) their number.

struct Seen {
  double mean;
  int count;
};

Reference probe(const ProblemShape& shape) {
  HostProblem problem(shape);
  fill_mean_probe(problem);
  return reference(shape.spec, problem.params());
}

void expect_seen(const AttentionSpec& spec, const Reference& result, int row, int head, Seen seen) {
  const auto at = static_cast<size_t>(row) * static_cast<size_t>(spec.q_heads) + static_cast<size_t>(head);
  SCOPED_TRACE("row " + std::to_string(row) + ", head " + std::to_string(head));
  EXPECT_NEAR(result.lse[at], std::log(seen.count), 1e-12);
  EXPECT_NEAR(result.out[at * static_cast<size_t>(spec.head_dim_v)], seen.mean, 1e-12);
}

// Fault: top-left instead of bottom-right causality; B19: rows without keys.
TEST(Oracle, QueryTokensAreCausalFromTheEnd) {
  AttentionSpec spec = spec_of(2, 1, 8, 4);
  spec.q_len = 4;
  const Reference result = probe({.spec = spec, .lens = {10, 2}});
  for (int i = 0; i < 4; ++i)
    for (int h = 0; h < 2; ++h) expect_seen(spec, result, i, h, {(6 + i) / 2.0, 7 + i});
  const double out[] = {0, 0, 0, 0.5}, lse[] = {-INFINITY, -INFINITY, 0, std::log(2)};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(result.out[static_cast<size_t>(4 + i) * 2 * 8], out[i]);
    EXPECT_DOUBLE_EQ(result.lse[static_cast<size_t>(4 + i) * 2], lse[i]) << i;
  }
}

// Fault (B113): row offsets of packed queries; a sequence without query tokens, and one with more than q_len.
TEST(Oracle, PackedQueriesOfAnyLength) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  spec.q_len = 3;
  const HostProblem problem({.spec = spec, .lens = {5, 9, 4, 7, 0}, .q_lens = {1, 0, 3, 5, 2}});
  EXPECT_EQ(rows_of(spec, problem.params()), 11);
  const Reference result = probe(problem.shape());
  expect_seen(spec, result, 0, 0, {2, 5});
  for (int i = 0; i < 3; ++i) expect_seen(spec, result, 1 + i, 0, {(1 + i) / 2.0, 2 + i});
  for (int i = 0; i < 3; ++i) expect_seen(spec, result, 4 + i, 0, {(4 + i) / 2.0, 5 + i});
  for (int row = 7; row < 9; ++row) EXPECT_TRUE(std::isnan(result.lse[static_cast<size_t>(row)])) << row;
  for (int row = 9; row < 11; ++row) EXPECT_EQ(result.lse[static_cast<size_t>(row)], -INFINITY) << row;
}

// B83: count or distance. W = 4 of 9 tokens: 5 to 8, mean 6.5.
TEST(Oracle, WindowCountsAttendedTokensAndSelf_B83) {
  AttentionSpec spec = spec_of(4, 2, 8, 4);
  spec.window = true;
  const Reference result = probe({.spec = spec, .lens = {9}, .windows = {4, 0}});
  for (int h = 0; h < 2; ++h) expect_seen(spec, result, 0, h, {6.5, 4});
  for (int h = 2; h < 4; ++h) expect_seen(spec, result, 0, h, {4, 9});
}

// Fault: the window is taken from the last position for every row.
TEST(Oracle, EachQueryTokenHasItsOwnWindow) {
  AttentionSpec spec = spec_of(2, 1, 8, 4);
  spec.window = true;
  spec.q_len = 3;
  const Reference result = probe({.spec = spec, .lens = {20}, .windows = {5}});
  for (int i = 0; i < 3; ++i) expect_seen(spec, result, i, 1, {15.0 + i, 5});
}

TEST(Oracle, SinkTokensStayVisibleToWindowedHeadsOnly) {
  AttentionSpec spec = spec_of(2, 2, 8, 4);
  spec.window = spec.sink_tokens = true;
  const Reference result = probe({.spec = spec, .lens = {20}, .windows = {3, 0}, .sink_tokens = 2});
  expect_seen(spec, result, 0, 0, {(0 + 1 + 17 + 18 + 19) / 5.0, 5});
  expect_seen(spec, result, 0, 1, {9.5, 20});
}

// B37: chunks of 8 that do not divide the length; B94: a chunk beyond it.
TEST(Oracle, ChunksBeginAtMultiples_B37_B94) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  spec.chunk = true;
  spec.q_len = 3;
  const Reference result = probe({.spec = spec, .lens = {18}, .chunk = 8});
  expect_seen(spec, result, 0, 0, {11.5, 8});
  expect_seen(spec, result, 1, 0, {16, 1});
  expect_seen(spec, result, 2, 0, {16.5, 2});
  expect_seen(spec, probe({.spec = spec, .lens = {18}, .chunk = 64}), 2, 0, {8.5, 18});
}

// Sink tokens are exempt from the window, not from the chunk.
TEST(Oracle, ChunkHidesSinkTokens) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  spec.chunk = spec.window = spec.sink_tokens = true;
  expect_seen(spec, probe({.spec = spec, .lens = {20}, .windows = {2}, .chunk = 8, .sink_tokens = 3}), 0, 0, {18.5, 2});
}

// B115: sink 0 -> 1.2; ln 4 -> 0.75; 2 -> 0.5268 over keys 0 to 3: one sink for each query head.
TEST(Oracle, SinkLogitsJoinTheDenominatorOnce_B115) {
  AttentionSpec spec = spec_of(3, 1, 8, 4);
  spec.sinks = true;
  const float sinks[] = {0, std::log(4.0F), 2};
  const Reference result = probe({.spec = spec, .lens = {4, 0}, .scale = 0.5F, .sinks = {sinks[0], sinks[1], sinks[2]}});
  const double expected[] = {1.2, 0.75, 0.52682};
  for (size_t h = 0; h < 3; ++h) {
    EXPECT_NEAR(result.out[h * 8], expected[h], 1e-5);
    EXPECT_NEAR(result.lse[h], std::log(4 + std::exp(static_cast<double>(sinks[h]))), 1e-7);
    EXPECT_EQ(result.out[(3 + h) * 8], 0);
    EXPECT_EQ(result.lse[3 + h], static_cast<double>(sinks[h]));
  }
}

// B116, B118: after the scale, and finite for any score.
TEST(Oracle, SoftCapComesAfterTheScale_B116_B118) {
  AttentionSpec spec = spec_of(1, 1, 64, 16);
  spec.soft_cap = true;
  HostProblem problem({.spec = spec, .lens = {1}, .soft_cap = 50});
  problem.fill_q([](int, int, int) { return 2.5; });
  problem.fill_k([](int64_t, int, int, int) { return 2.5; });
  EXPECT_NEAR(reference(spec, problem.params()).lse[0], 38.0797, 1e-4);
  problem.fill_q([](int, int, int) { return 1e4; });
  EXPECT_NEAR(reference(spec, problem.params()).lse[0], 50, 1e-9);
}

// B119: the anchor is the query's position.
TEST(Oracle, AlibiIsAnchoredAtTheQuery_B119) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  spec.alibi = true;
  const Reference result = probe({.spec = spec, .lens = {3}, .alibi_slopes = {0.5F}});
  EXPECT_NEAR(result.out[0], 1.32017, 2e-5);
  EXPECT_NEAR(result.lse[0], 0.68027, 1e-5);
}

TEST(Oracle, TreeMaskHidesNewTokensOnly) {
  AttentionSpec spec = spec_of(1, 1, 8, 4);
  spec.q_len = 3;
  spec.mask = MaskKind::tree;
  // Rows of 4 bytes; the second sequence has two query tokens. Beyond the diagonal and the size nothing is looked at.
  const std::vector<unsigned char> tree = {0, 9, 9, 9, /**/ 1, 0, 9, 9, /**/ 0, 1, 0, 9, /**/ 9, 9, 9, 9,
                                           1, 9, 9, 9, /**/ 0, 1, 9, 9, /**/ 9, 9, 9, 9, /**/ 9, 9, 9, 9};
  const Reference result = probe({.spec = spec, .lens = {10, 2}, .q_lens = {3, 2}, .tree_mask_size = 4, .tree_mask = tree});
  expect_seen(spec, result, 0, 0, {3.5, 8});
  expect_seen(spec, result, 1, 0, {(21 + 8) / 8.0, 8});
  expect_seen(spec, result, 2, 0, {(21 + 7 + 9) / 9.0, 9});
  EXPECT_EQ(result.lse[3], -INFINITY);
  expect_seen(spec, result, 4, 0, {0, 1});
}

// Rule 5: the window counts from hi, sink tokens from lo; causality stays.
TEST(Oracle, MaskOffsetsBoundEveryRow) {
  AttentionSpec spec = spec_of(2, 2, 8, 4);
  spec.q_len = 2;
  spec.mask = MaskKind::offset;
  spec.window = spec.sink_tokens = true;
  const Reference result = probe({.spec = spec, .lens = {20, 20}, .windows = {0, 3}, .sink_tokens = 2, .mask_offset = {4, 15, 6, 40, 7, 7, 0, 1}});
  expect_seen(spec, result, 0, 0, {9, 11});
  expect_seen(spec, result, 0, 1, {(4 + 5 + 12 + 13 + 14) / 5.0, 5});
  expect_seen(spec, result, 1, 0, {12.5, 14});
  expect_seen(spec, result, 1, 1, {6.5, 2});
  EXPECT_EQ(result.lse[4], -INFINITY);
  EXPECT_EQ(result.lse[5], -INFINITY);
  expect_seen(spec, result, 3, 0, {0, 1});
}

// Blocks of 4 of 20 tokens, stride 3: query block 4; local is block 4; head 0 has offset 1 (blocks 2, 5 ...), head 1 offset 2 (1, 4), head 2
// offset 3 (0, 3).
TEST(Oracle, BlockSparseByQueryHead) {
  AttentionSpec spec = spec_of(3, 1, 8, 2);
  spec.block_sparse = true;
  const Reference result = probe({.spec = spec, .lens = {20}, .blocks = {.block_size = 4, .vert_stride = 3, .local_blocks = 1, .head_step = 1}});
  expect_seen(spec, result, 0, 0, {(9.5 + 17.5) / 2, 8});
  expect_seen(spec, result, 0, 1, {(5.5 + 17.5) / 2, 8});
  expect_seen(spec, result, 0, 2, {(1.5 + 13.5 + 17.5) / 3, 12});
  // By KV head: all of a group alike, from the rank's first KV head on.
  const Reference by_kv = probe({.spec = spec, .lens = {20}, .blocks = {.block_size = 4, .vert_stride = 3, .local_blocks = 0, .head_step = -2, .kv_head_offset = 1}});
  for (int h = 0; h < 3; ++h) expect_seen(spec, by_kv, 0, h, {(1.5 + 13.5) / 2, 8});
}

// B40, B41: a row for each KV head, with its own length; both address maps.
TEST(Oracle, HeadwiseRowsAndLengths_B40) {
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    for (const Placement placement : {Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced}) {
      AttentionSpec spec = spec_of(2, 2, 8, 16);
      spec.headwise = true;
      spec.address_map = map;
      const Reference result = probe({.spec = spec, .placement = placement, .head_lens = {5, 33, 0, 16}});
      expect_seen(spec, result, 0, 0, {2, 5});
      expect_seen(spec, result, 0, 1, {16, 33});
      EXPECT_EQ(result.lse[2], -INFINITY);
      expect_seen(spec, result, 1, 1, {7.5, 16});
    }
  }
}

// Fault: ids of the slot map that several heads share are taken for one page.
TEST(Oracle, EqualIdsOfTwoHeadsAreDifferentMemory) {
  AttentionSpec spec = spec_of(2, 2, 8, 4);
  spec.headwise = true;
  HostProblem problem({.spec = spec, .lens = {4}, .num_pages = 3, .page_ids = {2, 2}});
  problem.fill_v([](int64_t, int, int head, int) { return head + 1; });
  const Reference result = reference(spec, problem.params());
  EXPECT_NEAR(result.out[0], 1, 1e-12);
  EXPECT_NEAR(result.out[8], 2, 1e-12);
}

TEST(Oracle, KeysAndValuesOfDifferentDims) {
  AttentionSpec spec = spec_of(2, 1, 24, 4);
  spec.head_dim_v = 8;
  const Reference result = probe({.spec = spec, .lens = {7}});
  ASSERT_EQ(result.out.size(), 2U * 8);
  expect_seen(spec, result, 0, 1, {3, 7});
}

// Fault: a page that no row sees holds numbers, and a kernel that reads it goes unnoticed.
TEST(Oracle, PoisonOutsideEveryMaskDoesNotReachIt) {
  AttentionSpec plain = spec_of(4, 2, 8, 4);
  std::vector<AttentionSpec> specs(6, plain);
  specs[0].window = specs[0].sink_tokens = true;
  specs[1].chunk = true;
  specs[2].block_sparse = true;
  specs[3].mask = MaskKind::offset;
  specs[4].mask = MaskKind::tree;
  specs[4].headwise = specs[4].window = true;
  specs[5].headwise = specs[5].chunk = true;
  specs[5].address_map = AddressMap::flat;
  for (AttentionSpec& spec : specs) {
    for (const int q_len : {1, 5}) {
      for (uint64_t seed = 1; seed < 8; ++seed) {
        spec.q_len = q_len;
        ProblemShape shape{.spec = spec, .lens = {1, 50, 0, 77, 33}, .seed = seed};
        if (q_len > 1 && seed % 2 == 0) shape.q_lens = {1, 5, 0, 0, 3};
        const Reference poisoned = reference(spec, HostProblem(shape).params());
        shape.poison = false;
        shape.unseen = Unseen::recycled;
        const Reference clean = reference(spec, HostProblem(shape).params());
        for (size_t i = 0; i < poisoned.out.size(); ++i) ASSERT_EQ(poisoned.out[i], clean.out[i]) << text_of(shape);
        EXPECT_FALSE(std::any_of(poisoned.out.begin(), poisoned.out.end(), [](double x) { return std::isnan(x); })) << text_of(shape);
      }
    }
  }
}

}  // namespace
}  // namespace pagetune
