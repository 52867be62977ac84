// Each feature of the spec alone, and random combinations of them, against the fp64 loop: tokens that no row sees are poison, their
// table entries point outside the memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cpu_problem.hpp"

namespace pagetune::test {
namespace {

struct Feature {
  const char* name;
  std::function<void(Shape&)> set;
};

void block_sparse(Shape& shape, int block, int vert_stride, int local_blocks, int head_step) {
  shape.sparse_block = block;
  shape.vert_stride = vert_stride;
  shape.local_blocks = local_blocks;
  shape.head_step = head_step;
}

// Fault of each: the feature is read from the wrong row, head or token, is off by one at a boundary, or is not there.
const Feature kFeatures[] = {
    {"plain", [](Shape&) {}},
    {"query tokens", [](Shape& s) { s.q_len = 4; }},
    {"sixteen query tokens", [](Shape& s) { s.q_len = 16; }},
    {"ragged query tokens", [](Shape& s) { s.q_len = 5, s.tokens = {5, 0, 1, 3, 2, 0}; }},
    {"one token or none", [](Shape& s) { s.tokens = {1, 0, 1, 1, 0, 1}; }},
    {"window", [](Shape& s) { s.windows = {7, 0, 40}; }},
    {"window of one", [](Shape& s) { s.windows = {1, 1, 16}; }},
    {"window and query tokens", [](Shape& s) { s.windows = {3, 33, 0}, s.q_len = 6; }},
    {"window and sink tokens", [](Shape& s) { s.windows = {20, 0, 5}, s.sink_tokens = 4; }},
    {"window, sink tokens, query tokens", [](Shape& s) { s.windows = {20, 64, 5}, s.sink_tokens = 19, s.q_len = 7; }},
    {"chunk", [](Shape& s) { s.chunk = 24; }},
    {"chunk and query tokens", [](Shape& s) { s.chunk = 10, s.q_len = 8; }},
    {"sinks", [](Shape& s) { s.sinks = true; }},
    {"soft cap", [](Shape& s) { s.soft_cap = 0.7f; }},
    {"wide soft cap", [](Shape& s) { s.soft_cap = 30; }},
    {"alibi", [](Shape& s) { s.alibi = true; }},
    {"alibi and query tokens", [](Shape& s) { s.alibi = true, s.q_len = 3; }},
    {"tree", [](Shape& s) { s.mask = 1, s.q_len = 9; }},
    {"tree of one", [](Shape& s) { s.mask = 1; }},
    {"offsets", [](Shape& s) { s.mask = 2, s.q_len = 5; }},
    {"offsets, window, sink tokens", [](Shape& s) { s.mask = 2, s.q_len = 4, s.windows = {9, 0, 30}, s.sink_tokens = 3; }},
    {"block-sparse", [](Shape& s) { block_sparse(s, 16, 3, 2, 0); }},
    {"block-sparse by head", [](Shape& s) { block_sparse(s, 8, 4, 1, 1), s.head_offset = 5; }},
    {"block-sparse by KV head", [](Shape& s) { block_sparse(s, 64, 2, 1, -2), s.kv_head_offset = 3; }},
    {"block-sparse without local blocks", [](Shape& s) { block_sparse(s, 4, 9, 0, 2), s.q_len = 5; }},
    {"head-wise", [](Shape& s) { s.headwise = true; }},
    {"head-wise lengths", [](Shape& s) { s.headwise = s.head_lens = true; }},
    {"head-wise flat ids, window", [](Shape& s) { s.headwise = s.flat = true, s.windows = {12, 0, 50}; }},
    {"short values", [](Shape& s) { s.dim = 96, s.dim_v = 40; }},
    {"long values", [](Shape& s) { s.dim = 24, s.dim_v = 128; }},
    {"fp32 output", [](Shape& s) { s.out_dtype = 2; }},
    {"fp16 output", [](Shape& s) { s.out_dtype = 1; }},
    {"bf16 output of fp32", [](Shape& s) { s.dtype = 2, s.out_dtype = 0; }},
};

Shape shape_with(const Feature& feature, int turn) {
  constexpr int kGroups[] = {1, 4, 3, 7};
  Shape shape;
  shape.kv_heads = 3;
  shape.group = kGroups[turn % 4];
  shape.dim = turn % 3 == 0 ? 40 : 64;
  shape.page = turn % 2 == 0 ? 16 : 7;
  shape.tile = 16 << (turn % 3);
  shape.hnd = turn % 5 < 2;
  shape.lens = {150, 0, 1, 65, 64, 200};
  shape.checked = turn % 2 == 0;
  feature.set(shape);
  return shape;
}

// One launch per split count; then one with another poison, which must not change a bit.
void run_all(const Shape& shape, uint32_t seed) {
  const auto module = module_of(device(), shape);
  Problem problem(shape, seed, 5);
  const int most_splits = shape.variant == 2 ? 5 : 1;
  for (int splits : shape.variant == 2 ? std::vector<int>{1, 2, most_splits} : std::vector<int>{1}) {
    problem.run(*module, splits);
    EXPECT_EQ(problem.check(), "") << shape.text() << " splits " << splits << " seed " << seed;
    const bool cut = std::any_of(shape.tokens.begin(), shape.tokens.end(), [&](int tokens) { return tokens > shape.q_len; });
    // A record here is of an entry that no row sees, and that was read all the same.
    if (cut) continue;
    EXPECT_EQ(problem.error().kind, 0) << shape.text() << " slot " << problem.error().slot;
  }
  const std::string bits = problem.out_bytes() + problem.lse_bytes();
  problem.set_poison(0x45);
  problem.run(*module, most_splits);
  EXPECT_EQ(problem.out_bytes() + problem.lse_bytes(), bits) << shape.text();
}

class Alone : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Features, Alone, testing::Range(size_t{0}, std::size(kFeatures)));

TEST_P(Alone, EveryWidthAndVariant) {
  const Feature& feature = kFeatures[GetParam()];
  int turn = static_cast<int>(GetParam());
  for (int bits : {128, 256, 512})
    for (int variant : {1, 2}) {
      Shape shape = shape_with(feature, turn++);
      shape.bits = bits;
      shape.variant = variant;
      SCOPED_TRACE(feature.name);
      run_all(shape, 11);
    }
}

Shape random_shape(std::mt19937& random) {
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  Shape shape;
  shape.kv_heads = pick(1, 3);
  shape.group = pick(0, 3) == 0 ? pick(9, 20) : pick(1, 5);
  shape.dim = 8 * pick(1, 10);
  shape.dim_v = chance(30) ? 8 * pick(1, 10) : 0;
  shape.page = std::vector<int>{1, 5, 16, 33}[static_cast<size_t>(pick(0, 3))];
  shape.dtype = pick(0, 2);
  shape.out_dtype = chance(40) ? pick(0, 2) : -1;
  shape.hnd = chance(50);
  shape.lse = chance(80);
  shape.checked = chance(50);
  shape.variant = pick(1, 2);
  shape.tile = 16 << pick(0, 2);
  shape.bits = 128 << pick(0, 2);
  shape.q_len = chance(60) ? pick(1, 16) : 1;
  shape.lens = {pick(0, 260), pick(0, 40), pick(60, 70), 0, pick(1, 130)};
  if (chance(40))
    for (size_t i = 0; i < shape.lens.size(); ++i) shape.tokens.push_back(pick(0, shape.q_len + (chance(10) ? 2 : 0)));
  shape.headwise = chance(40);
  shape.flat = shape.headwise && chance(50);
  shape.head_lens = shape.headwise && chance(50);
  if (chance(50))
    for (int h = 0; h < shape.kv_heads; ++h) shape.windows.push_back(chance(25) ? 0 : pick(1, 80));
  shape.sink_tokens = !shape.windows.empty() && chance(50) ? pick(1, 40) : 0;
  shape.chunk = chance(20) ? pick(1, 90) : 0;
  shape.sinks = chance(30);
  shape.soft_cap = chance(30) ? static_cast<float>(pick(1, 40)) / 4.0f : 0.0f;
  shape.alibi = chance(30);
  shape.mask = chance(50) ? pick(0, 2) : 0;
  if (chance(25)) {
    block_sparse(shape, pick(1, 40), pick(1, 9), pick(0, 4), pick(-2, 2));
    shape.head_offset = pick(0, 20);
    shape.kv_head_offset = pick(0, 20);
  }
  return shape;
}

// Fault: two features that are right alone get in each other's way.
class Combinations : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Random, Combinations, testing::Range(0u, 8u));

TEST_P(Combinations, AreRight) {
  std::mt19937 random(GetParam() + 1000);
  for (int i = 0; i < 12; ++i) run_all(random_shape(random), GetParam());
}

// Fault: the table's form reaches the numbers. The same keys under a uniform table, head-wise slots and head-wise flat ids give the same
// bits, whatever is windowed, and the split is the same.
TEST(Tables, UniformAndHeadwiseAgreeToTheBit) {
  for (int variant : {1, 2})
    for (int windowed : {0, 1})
      for (int q_len : {1, 6}) {
        Shape shape;
        shape.kv_heads = 3;
        shape.group = 5;
        shape.variant = variant;
        shape.q_len = q_len;
        shape.lens = {0, 3, 170, 64, 333};
        if (windowed != 0) shape.windows = {30, 0, 100};
        const auto run = [variant](const Shape& s) {
          Problem problem(s, 5, 4);
          problem.run(*module_of(device(), s), variant == 2 ? 4 : 1);
          EXPECT_EQ(problem.check(), "") << s.text();
          return problem.out_bytes() + problem.lse_bytes();
        };
        const std::string uniform = run(shape);
        shape.headwise = true;
        EXPECT_EQ(run(shape), uniform) << shape.text();
        shape.flat = true;
        EXPECT_EQ(run(shape), uniform) << shape.text();
      }
}

// Fault: an evicted page is followed, counted, or moves those behind it; a checked kernel does not report it, or reports one that no row
// sees.
TEST(Tables, AbsentHeadwisePagesAreSkipped) {
  for (int variant : {1, 2}) {
    Shape shape;
    shape.variant = variant;
    shape.kv_heads = 2;
    shape.group = 3;
    shape.page = 8;
    shape.tile = 16;
    shape.headwise = shape.checked = true;
    shape.windows = {0, 20};
    shape.lens = {100, 45};
    const auto module = module_of(device(), shape);
    Problem problem(shape, 5, 3);
    // Outside the window of (sequence 0, head 1), which sees tokens 80 to 99.
    for (int slot = 0; slot < 10; ++slot) problem.table(1, slot) = -1;
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_EQ(problem.check(), "");
    EXPECT_EQ(problem.error().kind, 0);
    problem.table(1, 11) = -1;  // inside
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_EQ(problem.check(), "");
    EXPECT_EQ(problem.error().kind, PT_ERROR_TAG + 2);
    EXPECT_EQ(problem.error().sequence, 0);
    EXPECT_EQ(problem.error().head, 1);
    EXPECT_EQ(problem.error().slot, 11);
    problem.clear_error();
    for (int slot = 0; slot < 6; ++slot) problem.table(2, slot) = -1;  // all that (sequence 1, head 0) has
    problem.table(1, 11) = problem.table(1, 10);
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_EQ(problem.check(), "");
    EXPECT_EQ(problem.error().sequence, 1);
    EXPECT_EQ(problem.error().head, 0);
    EXPECT_EQ(problem.lse(1, 0), -INFINITY);
  }
}

// Fault: a row without keys is left as it was, or the sink is counted as a value, scaled, or once per split.
TEST(Sinks, EmptyRowsHoldTheSinkAlone) {
  for (int variant : {1, 2}) {
    Shape shape;
    shape.variant = variant;
    shape.group = 2;
    shape.sinks = true;
    shape.q_len = 3;
    shape.lens = {0, 2, 90};  // the second sequence has fewer keys than query tokens
    const auto module = module_of(device(), shape);
    Problem problem(shape, 5, 3);
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_EQ(problem.check(), "");
    for (int h = 0; h < shape.q_heads(); ++h)
      for (const auto& [sequence, token] : {std::pair{0, 2}, std::pair{1, 0}}) {
        EXPECT_EQ(problem.out(sequence, h, 0, token), 0.0);
        EXPECT_NEAR(problem.lse(sequence, h, token), problem.sink(h), 1e-6);
      }
  }
}

// Fault: more query tokens than the kernel was built for write past its rows, or go unreported.
TEST(Checked, QueryTokensBeyondTheSpecAreCutAndReported) {
  for (int variant : {1, 2}) {
    Shape shape;
    shape.variant = variant;
    shape.q_len = 2;
    shape.tokens = {2, 5, 1};
    shape.lens = {40, 70, 9};
    shape.checked = true;
    const auto module = module_of(device(), shape);
    Problem problem(shape, 5, 3);
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_EQ(problem.check(), "");
    EXPECT_EQ(problem.error().kind, PT_ERROR_TAG + 4);
    EXPECT_EQ(problem.error().sequence, 1);
    EXPECT_EQ(problem.error().value, 5);
  }
}

// Fault: the split follows the length where only a window is read: all but the last share of a windowed head would be empty.
TEST(Walk, SharesAreEvenOverTheTilesThatAreRead) {
  Shape shape;
  shape.variant = 2;
  shape.tile = 16;
  shape.kv_heads = 2;
  shape.windows = {64, 0};
  shape.sink_tokens = 16;
  shape.lens = {640};
  const auto module = module_of(device(), shape);
  Problem problem(shape, 5, 5);
  problem.run(*module, 5);
  EXPECT_EQ(problem.check(), "");
  for (int split = 0; split < 5; ++split) {
    EXPECT_TRUE(std::isfinite(problem.partial_lse(0, 0, split))) << split;  // one tile of sinks, four of the window
    EXPECT_TRUE(std::isfinite(problem.partial_lse(0, 1, split))) << split;
  }
}

// Fault: stripes are shared out as if all between them were read: the last share would have nearly all the work.
TEST(Walk, SharesOfStripesAllHaveWork) {
  Shape shape;
  shape.variant = 2;
  shape.tile = 16;
  shape.kv_heads = 1;
  block_sparse(shape, 16, 4, 8, 0);
  shape.lens = {16 * 40};  // 8 tiles that are local, 8 of 32 on a stripe
  const auto module = module_of(device(), shape);
  Problem problem(shape, 5, 4);
  problem.run(*module, 4);
  EXPECT_EQ(problem.check(), "");
  for (int split = 0; split < 4; ++split) EXPECT_TRUE(std::isfinite(problem.partial_lse(0, 0, split))) << split;
  // Half of the weight is local: with equal logits the third and fourth share would hold ln(64) each.
  problem.params().scale_log2 = problem.params().scale = 0;
  problem.run(*module, 4);
  for (int split = 0; split < 4; ++split) EXPECT_NEAR(problem.partial_lse(0, 0, split), 6.0, 0.01) << split;
}

// Fault: a sequence's split or its bits depend on its neighbours.
TEST(Invariance, BitsDoNotDependOnNeighbours) {
  for (int turn = 0; turn < 3; ++turn) {
    Shape shape;
    shape.variant = 2;
    shape.kv_heads = 2;
    shape.group = 3;
    shape.q_len = 4;
    if (turn == 1) shape.windows = {50, 0}, shape.sink_tokens = 5;
    if (turn == 2) block_sparse(shape, 16, 3, 2, 1);
    shape.lens = {900, 200, 333};
    const auto module = module_of(device(), shape);
    Problem problem(shape, 5, 7);
    const auto bits = [&] {
      std::vector<double> all;
      for (int i = 0; i < shape.q_len; ++i)
        for (int h = 0; h < shape.q_heads(); ++h)
          for (int d = 0; d < shape.dim; ++d) all.push_back(problem.out(1, h, d, i));
      return all;
    };
    problem.run(*module, 7);
    EXPECT_EQ(problem.check(), "");
    const auto before = bits();
    problem.length(0) = 0;
    problem.length(2) = 0;
    problem.run(*module, 7);
    EXPECT_EQ(bits(), before) << shape.text();
  }
}

}  // namespace
}  // namespace pagetune::test
