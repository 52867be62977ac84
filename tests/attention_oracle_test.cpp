// The fp64 oracle against closed forms. Everything else in these tests is measured against the oracle, so it has to be right by itself.
#include <gtest/gtest.h>

#include <cmath>

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
    const double logit = (h + 1) * (1 + h / 2) / std::sqrt(8.0);
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
  spec.window = true;
  try {
    reference(spec, problem.params());
    FAIL() << "a window was ignored";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("window"), std::string::npos);
  }
}

}  // namespace
}  // namespace pagetune
