#include "codegen/bucket.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace pagetune {
namespace {

// Catches a boundary that is off by one anywhere, and rounding in the wrong direction.
TEST(Bucket, NearestLog2TurnsAtSqrt2) {
  EXPECT_EQ(nearest_log2(-5), 0);
  EXPECT_EQ(nearest_log2(0), 0);
  EXPECT_EQ(nearest_log2(1), 0);
  EXPECT_EQ(nearest_log2(2), 1);
  EXPECT_EQ(nearest_log2(22), 4);  // 16 * sqrt(2) = 22.63
  EXPECT_EQ(nearest_log2(23), 5);
  EXPECT_EQ(nearest_log2(181), 7);  // 128 * sqrt(2) = 181.02
  EXPECT_EQ(nearest_log2(182), 8);
  for (int64_t x = 2; x < 1'000'000; ++x) {
    ASSERT_EQ(nearest_log2(x), std::lround(std::log2(static_cast<long double>(x)))) << x;
  }
}

// Catches overflow of a squared length.
TEST(Bucket, NearestLog2OfTheLargest) {
  EXPECT_EQ(nearest_log2(std::numeric_limits<int64_t>::max()), 63);
  EXPECT_EQ(nearest_log2(int64_t{1} << 62), 62);
  EXPECT_EQ(nearest_log2(6521908912666391106), 62);  // floor(sqrt(2) * 2^62)
  EXPECT_EQ(nearest_log2(6521908912666391107), 63);
}

// Catches a cell outside the table: an index used without a check at launch.
TEST(Bucket, ClampsToTheTable) {
  EXPECT_EQ(bucket_of(1, 1, 0), (Bucket{0, 4}));
  EXPECT_EQ(bucket_of(0, 0, 0), (Bucket{0, 4}));
  EXPECT_EQ(bucket_of(1, 22, 0), (Bucket{0, 4}));
  EXPECT_EQ(bucket_of(1, 23, 0), (Bucket{0, 5}));
  const int most = std::numeric_limits<int>::max();
  const Bucket last = bucket_of(most, most, 0);
  EXPECT_EQ(last, (Bucket{Bucket::kBatchCells - 1, Bucket::kMinLenLog2 + Bucket::kLenCells - 1}));
  EXPECT_EQ(last.index(), Bucket::kCells - 1);
  std::set<int> indices;
  for (int b = 0; b < Bucket::kBatchCells; ++b) {
    for (int l = 0; l < Bucket::kLenCells; ++l) {
      const Bucket bucket{b, Bucket::kMinLenLog2 + l};
      EXPECT_TRUE(indices.insert(bucket.index()).second);
      EXPECT_EQ(bucket_of(bucket.batch(), bucket.len(), 0), bucket) << bucket.text();  // a cell's centre is in the cell
    }
  }
  EXPECT_EQ(static_cast<int>(indices.size()), Bucket::kCells);
}

// Catches the sum of the lengths being ignored, or making a batch larger than it is or smaller than its bound.
TEST(Bucket, TotalLengthShrinksTheBatchAxisOnly) {
  EXPECT_EQ(bucket_of(64, 4096, 0), (Bucket{6, 12}));
  EXPECT_EQ(bucket_of(64, 4096, int64_t{64} * 4096), (Bucket{6, 12}));
  EXPECT_EQ(bucket_of(64, 4096, int64_t{32} * 4096), (Bucket{5, 12}));
  EXPECT_EQ(bucket_of(64, 4096, int64_t{1000} * 4096), (Bucket{6, 12}));
  EXPECT_EQ(bucket_of(64, 4096, 4096 + 63), bucket_of(64 / kMaxRaggedness, 4096, 0));
  EXPECT_EQ(bucket_of(4, 4096, 4096), (Bucket{0, 12}));
}

}  // namespace
}  // namespace pagetune
