// Offsets beyond 2^31 elements and page ids beyond 16 bits. A GPU gives the memory for real; the CPU reserves address space and touches
// only the pages that are listed, so the same cases run there on any machine.
#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

class Addresses : public DeviceTest {
 protected:
  // V of a page says which page it is, so that an aliased page shows; K and q stay random.
  void expect_pages(const ProblemShape& shape, Plans which = Plans::some) {
    const HostProblem problem(shape);
    const size_t needed = problem.k_memory().size() + problem.v_memory().size() + problem.out_bytes() + problem.q_memory().size();
    if (!on_cpu() && needed > device().free_bytes() / 10 * 9) {
      GTEST_SKIP() << needed << " bytes of device memory are needed, " << device().free_bytes() << " are free";
    }
    expect_right(device(), problem, "", which);
  }
};

TEST_F(Addresses, EveryPlan) {
  expect_pages({.spec = decode_spec(32, 8, 128, 16), .lens = {1, 1, 16, 40}, .page_ids = {131072, 131071, 131073, 0, 131074, 65536}, .sparse = true}, Plans::all);
}

// token_index * stride in 32 bits. Pages of 16384 elements: 131071 is the last whose offset fits.
TEST_F(Addresses, ElementOffsetOver2To31_B01) {
  const AttentionSpec spec = decode_spec(32, 8, 128, 16);
  ProblemShape shape{.spec = spec, .lens = {1, 1, 16, 40}, .page_ids = {131072, 131071, 131073, 0, 131074, 65536}, .sparse = true};
  expect_pages(shape);
}

// K and V in one array halve the limit.
TEST_F(Addresses, ElementOffsetOver2To31Interleaved_B01) {
  const AttentionSpec spec = decode_spec(32, 8, 128, 16);
  expect_pages({.spec = spec, .lens = {1, 1, 33}, .placement = Placement::interleaved, .page_ids = {65536, 65535, 65537, 32768, 0}, .sparse = true});
  expect_pages({.spec = spec, .lens = {1, 1, 33}, .placement = Placement::sliced, .page_ids = {65536, 65535, 65537, 32768, 0}, .sparse = true});
}

// Page number * page stride in 32 bits with pages that are no power of two: 2^31 / (480 * 256) = 17476.3.
TEST_F(Addresses, LargeOddPages_B02) {
  expect_pages({.spec = decode_spec(4, 1, 256, 480), .lens = {1, 480, 481}, .page_ids = {17477, 17476, 17478, 0}, .sparse = true});
}

// Page ids cut to 16 bits: 65536 reads page 0.
TEST_F(Addresses, PageIdsOver16Bits_B04) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  HostProblem problem({.spec = spec, .lens = {16, 16}, .page_ids = {65536, 0}, .sparse = true});
  problem.fill_v([](int64_t, int page, int, int) { return page == 0 ? 1.0 : 2.0; });
  const Outputs outputs = expect_right(device(), problem);
  EXPECT_EQ(out_at(spec, outputs, 0, 0, 0), 2.0);
  EXPECT_EQ(out_at(spec, outputs, 1, 0, 0), 1.0);
}

// (num_pages - 1) * stride checked against 32 bits inside a library, which then ends the process.
TEST_F(Addresses, SixMillionPagesOfOneToken_B05) {
  expect_pages({.spec = decode_spec(32, 8, 64, 1), .lens = {4, 1}, .num_pages = 6'300'000, .page_ids = {6'299'999, 4'194'304, 0, 4'194'303, 6'299'998}, .sparse = true});
}

// A stride of 2^31 elements does not fit a 32-bit kernel argument.
TEST_F(Addresses, PageStrideOf2To31Elements_B07) {
  expect_pages({.spec = decode_spec(4, 2, 64, 16), .lens = {20, 3}, .page_ids = {1, 0, 2}, .page_stride = int64_t{1} << 31, .sparse = true});
}

// Sequence strides of 2^30 elements for q and out: rows 2 to 4 lie beyond 2^31.
TEST_F(Addresses, SequenceStridesOf2To30Elements_B08) {
  ProblemShape shape{.spec = decode_spec(8, 2, 64, 16), .lens = {20, 3, 0, 50, 17}, .sparse = true};
  shape.q_stride_seq = shape.out_stride_seq = int64_t{1} << 30;
  expect_pages(shape);
}

}  // namespace
}  // namespace pagetune::testing_support
