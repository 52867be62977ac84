// The problems that are timed: their pages, their chain of launches, and the check at its end.
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "attention_fake.hpp"
#include "tuner/problem.hpp"

namespace pagetune {
namespace {

using testing_support::FakeDevice;
using testing_support::FakeModule;
using testing_support::feature_specs;
using testing_support::plain_kernel;
using testing_support::small_spec;

// Fault: launches of a bench read the same pages, or do not depend on each other: both flatter the time.
TEST(BenchProblem, RotatesItsPagesAndChainsItsLaunches) {
  FakeDevice device;
  const AttentionSpec spec = small_spec();
  const BenchProblem problem(device, spec, {100, 7, 64}, {.plans = {1, 4}, .rotation_bytes = 100'000});
  EXPECT_EQ(problem.kv_bytes(), 171 * 2 * 2 * 16 * 2);
  EXPECT_GE(problem.sets() * problem.kv_bytes(), 100'000);
  std::set<int> seen;
  for (int launch = 0; launch < problem.sets(); ++launch) {
    const pt_decode_params params = problem.params(launch);
    EXPECT_EQ(params.out, problem.params(launch + 1).q);
    for (int b = 0; b < 3; ++b) {
      for (int slot = 0; slot < (params.seq_lens[b] + 15) / 16; ++slot) {
        const int id = params.block_tables[b * params.block_table_stride + slot];
        EXPECT_LT(id, params.num_pages);
        EXPECT_TRUE(seen.insert(id).second) << "page " << id << " twice";
      }
    }
  }
}

TEST(BenchProblem, KeepsToItsMemoryOrSaysWhatItNeeds) {
  FakeDevice device;
  const AttentionSpec spec = small_spec();
  const std::vector<int> lens = {512, 512};
  const size_t one = BenchProblem::bytes_needed(spec, lens, {LaunchPlan(2)});
  const BenchProblem tight(device, spec, lens, {.plans = {2}, .memory_limit = one, .rotation_bytes = 1 << 30});
  EXPECT_EQ(tight.sets(), 1);
  EXPECT_LE(tight.memory_bytes(), one);
  const BenchProblem wide(device, spec, lens, {.plans = {2}, .memory_limit = 3 * one, .rotation_bytes = 1 << 30});
  EXPECT_GE(wide.sets(), 3);
  EXPECT_LE(wide.memory_bytes(), 3 * one);
  try {
    const BenchProblem none(device, spec, lens, {.plans = {2}, .memory_limit = one - 1});
    FAIL() << "a problem over its limit was made";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(one)), std::string::npos) << error.what();
  }
}

TEST(BenchProblem, ChecksTheEndOfTheChain) {
  FakeDevice device;
  const AttentionSpec spec = small_spec();
  const BenchProblem problem(device, spec, {100, 7, 64}, {.rotation_bytes = 100'000});
  const Check right = problem.check(FakeModule(plain_kernel(spec)), 1);
  EXPECT_TRUE(right.ok) << right.what;
  EXPECT_GT(right.error, 0);
  EXPECT_FALSE(problem.check(FakeModule(plain_kernel(spec, {.drops_last_token = true})), 1).ok);
  EXPECT_FALSE(problem.check(FakeModule([](const pt_decode_params&) {}), 1).ok);
}

// Fault: a bench counts tokens that no head reads, spends memory on them, or gives a launch other flags than were asked for.
TEST(BenchProblem, WindowsAndHeadwiseTables) {
  FakeDevice device;
  AttentionSpec spec = small_spec();
  spec.window = true;
  const BenchFeatures features{.windows = {0, 20}};
  const int64_t tokens = 100 + 20 + 7 + 7;
  size_t uniform_bytes = 0;
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    for (const bool headwise : {false, true}) {
      spec.headwise = headwise;
      spec.address_map = headwise ? map : AddressMap::slot;
      const BenchProblem problem(device, spec, {100, 7}, {.features = features, .flags = PT_LAUNCH_OVERLAP, .rotation_bytes = 50'000});
      EXPECT_EQ(problem.kv_bytes(), tokens * 2 * 16 * 2);
      const pt_decode_params params = problem.params(1);
      EXPECT_EQ(params.flags, PT_LAUNCH_OVERLAP);
      if (headwise) {
        for (int slot = 0; slot < 7; ++slot) {
          EXPECT_GE(params.block_tables[slot], 0);
          EXPECT_EQ(params.block_tables[params.block_table_stride + slot] >= 0, slot >= 5) << slot;
        }
      }
      const size_t bytes = BenchProblem::bytes_needed(spec, {100, 7}, {1}, features);
      if (!headwise) uniform_bytes = bytes;
      if (headwise && map == AddressMap::flat) {
        EXPECT_LT(bytes, uniform_bytes);
      }
      const Check check = problem.check(FakeModule(plain_kernel(spec)), 1);
      EXPECT_TRUE(check.ok) << check.what;
      // One key more is in a page that a head-wise table does not list.
      EXPECT_EQ(problem.check(FakeModule(plain_kernel(spec, {.window_is_distance = true})), 1).ok, headwise);
    }
  }
}

// Fault: a chain whose next q does not come from the output, where their dims or types differ.
TEST(BenchProblem, ChainsOutputsOfOtherDimsAndTypes) {
  FakeDevice device;
  for (const auto& [q, v, q_type, out_type] : {std::tuple{32, 16, DType::bf16, DType::bf16}, {16, 32, DType::bf16, DType::bf16}, {16, 16, DType::fp32, DType::bf16}, {24, 8, DType::fp16, DType::bf16}}) {
    AttentionSpec spec = small_spec(q_type);
    spec.head_dim_k = q;
    spec.head_dim_v = v;
    spec.out_dtype = out_type;
    spec.q_len = 2;
    const BenchProblem problem(device, spec, {100, 7, 64}, {.rotation_bytes = 100'000});
    EXPECT_EQ(problem.params(0).out, problem.params(1).q);
    const Check check = problem.check(FakeModule(plain_kernel(spec)), 1);
    EXPECT_TRUE(check.ok) << check.what;
  }
  AttentionSpec wider = small_spec();
  wider.out_dtype = DType::fp32;
  EXPECT_THROW(BenchProblem(device, wider, {100}), Error);
}

TEST(BenchProblem, TakesEveryFeature) {
  FakeDevice device;
  for (const AttentionSpec& spec : feature_specs()) {
    const BenchProblem problem(device, spec, {100, 7, 64}, {.rotation_bytes = 100'000});
    const Check check = problem.check(FakeModule(plain_kernel(spec)), 1);
    EXPECT_TRUE(check.ok) << check.what << canonical_json(spec);
    EXPECT_LE(problem.kv_bytes(), kv_bytes(spec, 171));
  }
}

}  // namespace
}  // namespace pagetune
