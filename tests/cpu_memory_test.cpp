// What a kernel reads, writes and reports: absent pages, poison, rows that are too long, scratch, the checked build's record.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "cpu_problem.hpp"

namespace pagetune::test {
namespace {

Shape small(int variant) {
  Shape shape;
  shape.variant = variant;
  shape.group = 3;
  shape.dim = 80;
  shape.page = 7;
  shape.tile = 16;
  shape.lens = {0, 5, 33, 100, 7};
  return shape;
}

class OverVariants : public testing::TestWithParam<int> {
 protected:
  int splits() const { return GetParam() == 2 ? 3 : 1; }
};
INSTANTIATE_TEST_SUITE_P(Variants, OverVariants, testing::Values(1, 2));

// Fault: a masked or foreign element takes part: the bits differ when the poison is zero, NaN or large.
TEST_P(OverVariants, PoisonDoesNotChangeABit) {
  const Shape shape = small(GetParam());
  const auto module = module_of(device(), shape);
  Problem problem(shape, 5, 3);
  problem.run(*module, splits());
  ASSERT_EQ(problem.check(), "");
  const std::string out = problem.out_bytes();
  const std::string lse = problem.lse_bytes();
  for (int byte : {0x00, 0x7F, 0x45}) {
    problem.set_poison(byte);
    problem.run(*module, splits());
    EXPECT_EQ(problem.out_bytes(), out) << byte;
    EXPECT_EQ(problem.lse_bytes(), lse) << byte;
  }
}

// Fault: a page id < 0 or >= num_pages is dereferenced (the strides take it out of the mapping), or counted in the softmax.
TEST_P(OverVariants, AbsentPagesAreMasked) {
  const Shape shape = small(GetParam());
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 3);
  problem.table(2, 0) = -1;
  problem.table(2, 4) = problem.params().num_pages;
  problem.table(3, 5) = INT_MIN;
  problem.table(3, 14) = INT_MAX;
  for (int slot = 6; slot < 9; ++slot) problem.table(3, slot) = -1;  // a whole tile
  problem.table(1, 0) = -7;  // all of the sequence: O = 0, LSE = -inf
  problem.run(*module, splits());
  EXPECT_EQ(problem.check(), "");
  EXPECT_EQ(problem.out(1, 0, 0), 0.0);
  EXPECT_EQ(problem.lse(1, 0), -INFINITY);
}

// Fault: a pad row is left as it was.
TEST_P(OverVariants, EmptyRowsAreWritten) {
  Shape shape = small(GetParam());
  shape.lens = {0, 0, 0};
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 3);
  problem.length(1) = -5;  // as good as empty
  problem.run(*module, splits());
  for (int b = 0; b < 3; ++b)
    for (int h = 0; h < shape.q_heads(); ++h) {
      EXPECT_EQ(problem.lse(b, h), -INFINITY);
      for (int d = 0; d < shape.dim; ++d) EXPECT_EQ(problem.out(b, h, d), 0.0);
    }
}

// Fault: table entries past the row are read when a length is longer than the row.
TEST_P(OverVariants, LengthsAreClampedToTheRow) {
  Shape shape = small(GetParam());
  shape.lens[3] = 14 * shape.page;
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 3);
  const int width = problem.params().block_table_width;
  for (int slot = 14; slot < width; ++slot) problem.table(3, slot) = -1;
  problem.length(3) = INT_MAX;
  problem.run(*module, splits());
  EXPECT_EQ(problem.check(), "");
}

// Fault: LSE written by a kernel without one (its pointer is null then).
TEST_P(OverVariants, NoLseUnlessTheSpecHasIt) {
  Shape shape = small(GetParam());
  shape.lse = false;
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 3);
  problem.run(*module, splits());
  EXPECT_EQ(problem.check(), "");
}

// Fault: shares beyond the tiles are read in the merge, though nobody wrote them; or a share's LSE is not base 2.
TEST(Splits, ShareOfTheTilesIsWhatTheContractSays) {
  Shape shape = small(2);
  shape.lens = {16 * 5};  // 5 tiles over 4 splits: 2 + 2 + 1, the fourth has none
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 4);
  problem.run(*module, 4);
  EXPECT_EQ(problem.check(), "");
  double sum = 0;
  for (int split = 0; split < 3; ++split) sum += std::exp2(problem.partial_lse(0, 2, split));
  EXPECT_NEAR(std::log(sum), problem.lse(0, 2), 1e-5);
  EXPECT_TRUE(std::isnan(problem.partial_lse(0, 2, 3)));
}

// Fault: a sequence that fits one share takes the way through scratch.
TEST(Splits, OneShareWritesStraightToTheOutput) {
  Shape shape = small(2);
  shape.lens = {16};
  const auto module = module_of(device(), shape);
  Problem problem(shape, 6, 4);
  problem.run(*module, 4);
  EXPECT_EQ(problem.check(), "");
  for (int split = 0; split < 4; ++split) EXPECT_TRUE(std::isnan(problem.partial_lse(0, 0, split)));
}

struct Bad {
  int kind, sequence, slot, value;
};

class Checked : public testing::TestWithParam<int> {
 protected:
  void expect(Problem& problem, const Bad& bad) {
    problem.run(*module_of(device(), problem.shape()), GetParam() == 2 ? 3 : 1);
    EXPECT_EQ(problem.error().kind, bad.kind == 0 ? 0 : PT_ERROR_TAG + bad.kind);
    if (bad.kind == 0) return;
    EXPECT_EQ(problem.error().sequence, bad.sequence);
    EXPECT_EQ(problem.error().slot, bad.slot);
    EXPECT_EQ(problem.error().value, bad.value);
    EXPECT_GE(problem.error().head, 0);
    EXPECT_LT(problem.error().head, problem.shape().kv_heads);
    EXPECT_EQ(problem.check(), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, Checked, testing::Values(1, 2));

// Fault: a bad entry or length goes unreported, a good one is reported, or an entry past the length counts.
TEST_P(Checked, ReportsEachKind) {
  Shape shape = small(GetParam());
  shape.checked = true;
  Problem problem(shape, 8, 3);
  expect(problem, {0, 0, 0, 0});  // entries past each length are garbage, and not met
  const int good = problem.table(3, 4);
  problem.table(3, 4) = problem.params().num_pages + 3;
  expect(problem, {1, 3, 4, problem.params().num_pages + 3});
  problem.clear_error();
  problem.table(3, 4) = -1;
  expect(problem, {2, 3, 4, -1});
  problem.clear_error();
  problem.table(3, 4) = good;
  for (int slot = 1; slot < problem.params().block_table_width; ++slot) problem.table(4, slot) = problem.table(3, 2);
  const int room = problem.params().block_table_width * shape.page;
  problem.length(4) = room + 1;
  expect(problem, {3, 4, room + 1, room});
}

// Fault: a later record overwrites the first, or memory that was never initialised passes for a record.
TEST_P(Checked, TheFirstRecordStays) {
  Shape shape = small(GetParam());
  shape.checked = true;
  Problem problem(shape, 8, 3);
  const int good = problem.table(2, 1);
  problem.table(2, 1) = -4;
  problem.params().error->kind = -1;
  expect(problem, {2, 2, 1, -4});
  problem.table(2, 1) = good;
  problem.table(3, 0) = -9;
  expect(problem, {2, 2, 1, -4});
}

}  // namespace
}  // namespace pagetune::test
