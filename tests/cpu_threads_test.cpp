// Same bits whatever runs them: the number of threads, repetition, neighbours in the batch, launches at the same time.
#include <gtest/gtest.h>

#include <thread>

#include "cpu_problem.hpp"
#include "runtime/cpu_provider.hpp"

namespace pagetune::test {
namespace {

// V1 and V2, plain, then with work that differs from head to head.
Shape uneven(int turn) {
  Shape shape;
  shape.variant = 2 - turn % 2;
  shape.group = 5;
  shape.kv_heads = 3;
  shape.dim = 64;
  shape.tile = 16;
  // One long sequence among short ones: ranges of items cut inside of it. Enough tokens for eleven threads to be woken.
  shape.lens = {0, 3, 4001, 0, 17, 250, 1, 0};
  if (turn > 2) {
    shape.windows = {3000, 0, 40};
    shape.sink_tokens = 20;
    shape.headwise = true;
    shape.q_len = 4;
    shape.tokens = {1, 0, 4, 2, 4, 3, 1, 4};
  }
  return shape;
}

class OverVariants : public testing::TestWithParam<int> {
 protected:
  int splits() const { return GetParam() % 2 == 0 ? 8 : 1; }
};
INSTANTIATE_TEST_SUITE_P(Variants, OverVariants, testing::Values(1, 2, 3, 4));

// Fault: an item that no thread does, or sums that depend on how the items are cut.
TEST_P(OverVariants, BitsDoNotDependOnTheNumberOfThreads) {
  const Shape shape = uneven(GetParam());
  Problem problem(shape, 9, 8);
  problem.run(*module_of(*open_cpu_device(1), shape), splits());
  ASSERT_EQ(problem.check(), "");
  const std::string out = problem.out_bytes();
  const std::string lse = problem.lse_bytes();
  for (int threads : {2, 3, 7, 11}) {
    const auto device = open_cpu_device(threads);
    EXPECT_EQ(device->environment().processors, threads);
    const auto module = module_of(*device, shape);
    for (int repeat = 0; repeat < 3; ++repeat) {
      problem.run(*module, splits());
      EXPECT_EQ(problem.out_bytes(), out) << threads << " threads";
      EXPECT_EQ(problem.lse_bytes(), lse) << threads << " threads";
    }
  }
}

// Fault: the split of a sequence depends on its neighbours.
TEST_P(OverVariants, BitsDoNotDependOnNeighbours) {
  const Shape shape = uneven(GetParam());
  const auto module = module_of(device(), shape);
  Problem problem(shape, 9, 8);
  problem.run(*module, splits());
  std::vector<double> before;
  for (int d = 0; d < shape.dim; ++d) before.push_back(problem.out(5, 7, d));
  problem.length(2) = 0;
  problem.length(4) = 5;
  problem.run(*module, splits());
  for (int d = 0; d < shape.dim; ++d) EXPECT_EQ(problem.out(5, 7, d), before[static_cast<size_t>(d)]);
}

// Fault: two launches share the pool's state.
TEST_P(OverVariants, LaunchesFromSeveralThreads) {
  const Shape shape = uneven(GetParam());
  const auto device = open_cpu_device(3);
  const auto module = module_of(*device, shape);
  std::vector<std::string> results(4);
  std::vector<std::jthread> callers;
  for (size_t i = 0; i < results.size(); ++i)
    callers.emplace_back([&, i] {
      Problem problem(shape, static_cast<uint32_t>(20 + i), 8);
      for (int repeat = 0; repeat < 4; ++repeat) problem.run(*module, splits());
      results[i] = problem.check();
    });
  callers.clear();
  for (const std::string& result : results) EXPECT_EQ(result, "");
}

// Fault: a module's code or threads go away with the device that loaded it.
TEST(Lifetime, AModuleOutlivesItsDevice) {
  const Shape shape = uneven(2);
  auto device = open_cpu_device(2);
  const auto module = module_of(*device, shape);
  device.reset();
  Problem problem(shape, 9, 8);
  problem.run(*module, 8);
  EXPECT_EQ(problem.check(), "");
}

}  // namespace
}  // namespace pagetune::test
