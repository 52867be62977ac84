// Results against the fp64 loop, with poison wherever a kernel may not read.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu_problem.hpp"

namespace pagetune::test {
namespace {

constexpr int kDims[] = {8, 64, 80, 96, 112, 120, 128, 256};
constexpr int kGroups[] = {1, 2, 3, 5, 7, 8, 16, 24, 71};
constexpr int kPages[] = {1, 7, 16, 64};

// Each split count of one problem, or the single pass.
void run_all(Shape shape) {
  const auto module = module_of(device(), shape);
  Problem problem(shape, 7, 70);
  for (int splits : shape.variant == 2 ? std::vector<int>{1, 2, 3, 8, 70} : std::vector<int>{1}) {
    problem.run(*module, splits);
    EXPECT_EQ(problem.check(), "") << shape.text() << " splits " << splits;
  }
}

class OverDims : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Dims, OverDims, testing::ValuesIn(kDims));

// Fault: a head dim, group, page size, dtype, layout, tile or vector width for which a tail, a remainder of heads or a page crossing is
// done wrong. The other parameters rotate so that each pair of neighbours is met.
TEST_P(OverDims, EveryGroupWithRotatingRest) {
  const int at = static_cast<int>(std::find(std::begin(kDims), std::end(kDims), GetParam()) - std::begin(kDims));
  int turn = at;
  for (int group : kGroups) {
    Shape shape;
    shape.dim = GetParam();
    shape.group = group;
    shape.kv_heads = 1 + turn % 3;
    shape.page = kPages[turn % 4];
    shape.dtype = turn % 3;
    shape.hnd = turn / 2 % 2 != 0;
    shape.variant = 1 + turn % 2;
    shape.tile = 16 << (turn / 3 % 3);
    shape.bits = 128 << ((turn / 2 + at) % 3);
    const int p = shape.page;
    shape.lens = {0, 1, p - 1, p, p + 1, shape.tile, shape.tile + 1, 3 * shape.tile + 5};
    run_all(shape);
    turn += 5;
  }
}

// Fault: a vector width, dtype or variant that is wrong on its own, at the most common head dim.
TEST(Numerics, EveryWidthDtypeAndVariant) {
  for (int bits : {128, 256, 512})
    for (int dtype : {0, 1, 2})
      for (int variant : {1, 2}) {
        Shape shape;
        shape.dim = 128;
        shape.group = 4;
        shape.bits = bits;
        shape.dtype = dtype;
        shape.variant = variant;
        shape.lens = {100, 17, 1, 0, 64};
        run_all(shape);
      }
}

// Fault: lengths around a page, a tile and a split boundary off by one.
TEST(Numerics, EveryLengthUpToTwoTiles) {
  Shape shape;
  shape.page = 7;
  shape.tile = 16;
  shape.variant = 2;
  shape.dim = 8;
  shape.group = 2;
  shape.lens.clear();
  for (int len = 0; len <= 40; ++len) shape.lens.push_back(len);
  run_all(shape);
}

// Fault: weights of a sharp softmax lost or overflowing; a maximum that is not carried from tile to tile.
TEST(Numerics, SharpSoftmax) {
  for (int variant : {1, 2}) {
    Shape shape;
    shape.dtype = 2;
    shape.dim = 64;
    shape.variant = variant;
    shape.lens = {200, 3};
    const auto module = module_of(device(), shape);
    // Logits to about +-3,000: exp() of them is out of fp32's range both ways.
    Problem problem(shape, 3, 8);
    problem.scale_queries(512.0f);
    problem.run(*module, variant == 2 ? 8 : 1);
    EXPECT_EQ(problem.check(), "") << "variant " << variant;
  }
}

// Fault: the LSE is in base 2, lacks the maximum, or counts masked tokens: with q = 0 it is exactly ln(visible tokens).
TEST(Numerics, LseOfEqualLogitsIsTheLogOfTheCount) {
  Shape shape;
  shape.lens = {1, 2, 1000};
  for (int variant : {1, 2}) {
    shape.variant = variant;
    const auto module = module_of(device(), shape);
    Problem problem(shape, 3, 3);
    problem.params().scale_log2 = 0;
    problem.params().scale = 0;
    problem.run(*module, variant == 2 ? 3 : 1);
    EXPECT_NEAR(problem.lse(0, 0), 0.0, 1e-6);
    EXPECT_NEAR(problem.lse(1, 0), std::log(2.0), 1e-6);
    EXPECT_NEAR(problem.lse(2, 1), std::log(1000.0), 2e-6);
  }
}

// Fault: a NaN that is visible is hidden (it must reach its own sequence) or leaks into another sequence of the batch.
TEST(Numerics, AVisibleNanStaysInItsSequence) {
  Shape shape;
  shape.lens = {20, 20};
  const auto module = module_of(device(), shape);
  Problem problem(shape);
  problem.params().seq_lens = &problem.length(0);
  problem.length(0) = 21;  // its page's next token is poison
  problem.run(*module);
  EXPECT_TRUE(std::isnan(problem.out(0, 0, 0)));
  EXPECT_FALSE(std::isnan(problem.out(1, 0, 0)));
  EXPECT_FALSE(std::isnan(problem.lse(1, 1)));
}

}  // namespace
}  // namespace pagetune::test
