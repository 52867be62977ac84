// The harness against kernels that are wrong on purpose: each must be caught, and the right one must pass.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "attention_fake.hpp"
#include "tuner/problem.hpp"

namespace pagetune {
namespace {

using testing_support::Defects;
using testing_support::FakeDevice;
using testing_support::FakeModule;
using testing_support::feature_specs;
using testing_support::plain_kernel;
using testing_support::small_spec;

Check verify_fake(const AttentionSpec& spec, FakeModule::Body body) {
  FakeDevice device;
  return verify(device, FakeModule(std::move(body)), spec, 1);
}

TEST(Verify, AcceptsARightKernelOfEveryType) {
  for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
    const Check check = verify_fake(small_spec(type), plain_kernel(small_spec(type)));
    EXPECT_TRUE(check.ok) << check.what;
    EXPECT_GT(check.error, 0) << "rounding must be visible: else nothing was compared";
    EXPECT_LT(check.error, tolerance_of(type).error);
  }
}

TEST(Verify, AcceptsARightKernelOfAnOddPageAndTheOtherLayout) {
  AttentionSpec spec = small_spec();
  spec.page_size = 7;
  spec.layout = Layout::hnd;
  const Check check = verify_fake(spec, plain_kernel(spec));
  EXPECT_TRUE(check.ok) << check.what;
}

struct Wrong {
  const char* name;
  Defects defects;
};

class VerifyDefect : public ::testing::TestWithParam<Wrong> {};

TEST_P(VerifyDefect, IsCaught) {
  const Check check = verify_fake(small_spec(), plain_kernel(small_spec(), GetParam().defects));
  EXPECT_FALSE(check.ok);
  EXPECT_FALSE(check.what.empty());
}

INSTANTIATE_TEST_SUITE_P(All, VerifyDefect,
                         ::testing::Values(Wrong{"reads_page_tails", {.reads_page_tails = true}}, Wrong{"takes_absent_for_page_0", {.ignores_absent = true}},
                                           Wrong{"leaves_padding_rows", {.leaves_pad_rows = true}}, Wrong{"drops_the_last_token", {.drops_last_token = true}},
                                           Wrong{"lse_in_base_two", {.lse_base_two = true}}, Wrong{"masks_by_adding", {.adds_mask = true}}),
                         [](const auto& info) { return info.param.name; });

TEST(Verify, AcceptsARightKernelOfEveryFeature) {
  for (const AttentionSpec& spec : feature_specs()) {
    const Check check = verify_fake(spec, plain_kernel(spec));
    EXPECT_TRUE(check.ok) << check.what << "\n" << canonical_json(spec);
    EXPECT_GT(check.error, 0);
  }
}

struct WrongFeature {
  const char* name;
  Defects defects;
  std::function<void(AttentionSpec&)> change;
};

// Fault: a problem of the verifier does not reach the edge on which a feature goes wrong.
TEST(Verify, CatchesDefectsOfFeatures) {
  const WrongFeature wrong[] = {
      {"window_is_distance", {.window_is_distance = true}, [](AttentionSpec& s) { s.window = true; }},
      {"window_of_last_row", {.window_of_last_row = true}, [](AttentionSpec& s) { s.window = true, s.q_len = 2; }},
      {"causal_from_the_start", {.causal_from_the_start = true}, [](AttentionSpec& s) { s.q_len = 2; }},
      {"steps_are_full", {.steps_are_full = true}, [](AttentionSpec& s) { s.q_len = 2; }},
      {"length_of_first_head", {.length_of_first_head = true}, [](AttentionSpec& s) { s.headwise = true; }},
      {"table_of_first_head", {.table_of_first_head = true}, [](AttentionSpec& s) { s.headwise = true; }},
      {"sink_of_first_head", {.sink_of_first_head = true}, [](AttentionSpec& s) { s.sinks = true; }},
      {"caps_before_scale", {.caps_before_scale = true}, [](AttentionSpec& s) { s.soft_cap = true; }},
      {"reads_unseen_pages", {.ignores_absent = true}, [](AttentionSpec& s) { s.headwise = s.window = true; }},
  };
  for (const WrongFeature& one : wrong) {
    AttentionSpec spec = small_spec(DType::fp32);
    one.change(spec);
    EXPECT_FALSE(verify_fake(spec, plain_kernel(spec, one.defects)).ok) << one.name;
  }
}

// Fault: a kernel writes rows beyond the tokens that it was built for.
TEST(Verify, CatchesRowsThatAreNobodys) {
  AttentionSpec spec = small_spec(DType::fp32);
  spec.q_len = 2;
  FakeDevice device;
  const HostProblem problem({.spec = spec, .lens = {9, 9}, .q_lens = {4, 1}});
  DeviceProblem on_device(device, problem);
  on_device.run(FakeModule(plain_kernel(spec)), 1);
  EXPECT_TRUE(on_device.check(reference(spec, problem.params())).ok);
  on_device.run(FakeModule(plain_kernel(spec, {.computes_surplus_rows = true})), 1);
  EXPECT_FALSE(on_device.check(reference(spec, problem.params())).ok);
}

// Fault: another candidate's result in the same buffer passes for this one's: two that write a half each make a whole.
TEST(Verify, CatchesKernelsThatWriteHalfOfTheOutput_B172) {
  const AttentionSpec spec = small_spec();
  FakeDevice device;
  const Verifier verifier(device, spec);
  const auto right = plain_kernel(spec);
  const auto half = [&](size_t kept) {
    return FakeModule([&, kept](const pt_decode_params& p) {
      const size_t used = static_cast<size_t>((p.batch - 1) * p.out_stride_seq + spec.q_heads * spec.head_dim_v) * 2;
      std::vector<char> before(used);
      std::memcpy(before.data(), p.out, used);
      right(p);
      for (size_t i = 0; i < used / 2; ++i) {
        if (i % 2 != kept) std::memcpy(static_cast<char*>(p.out) + 2 * i, before.data() + 2 * i, 2);
      }
    });
  };
  ASSERT_TRUE(verifier.check(FakeModule(right), 1).ok);
  for (const size_t kept : {0, 1, 0, 1}) {
    const Check check = verifier.check(half(kept), 1);
    EXPECT_FALSE(check.ok);
    EXPECT_NE(check.what.find("not written"), std::string::npos) << check.what;
  }
}

// Fault: a kernel that does not reset its counters is right once, and wrong from its second launch on, when an engine runs it.
TEST(Verify, CatchesWhatALaunchLeavesInTheWorkspace_B173) {
  const AttentionSpec spec = small_spec(DType::fp32);
  const auto right = plain_kernel(spec);
  FakeDevice device;
  const FakeModule accumulates([&](const pt_decode_params& p) {
    constexpr uint64_t kMine = 0x70745f6d6572ull;  // anything else is garbage, and counts as zero
    uint64_t state = 0;
    std::memcpy(&state, p.workspace, sizeof state);
    right(p);
    if (state == kMine) static_cast<float*>(p.out)[16 * 4 + 3] += 1;
    std::memcpy(p.workspace, &kMine, sizeof kMine);
  });
  const Check check = verify(device, accumulates, spec, 4);
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.what.find("in the workspace that the first left"), std::string::npos) << check.what;
}

// A right kernel that also does something forbidden; `what` must name the place.
void expect_caught(const char* what, const std::function<void(const pt_decode_params&)>& misdeed) {
  const AttentionSpec spec = small_spec();
  const auto right = plain_kernel(spec);
  const Check check = verify_fake(spec, [&](const pt_decode_params& p) {
    right(p);
    misdeed(p);
  });
  EXPECT_FALSE(check.ok) << what;
  EXPECT_NE(check.what.find(what), std::string::npos) << check.what;
}

size_t out_elements(const pt_decode_params& p) { return static_cast<size_t>((p.batch - 1) * p.out_stride_seq + 4 * 16); }

TEST(Verify, CatchesAWriteBeforeTheOutput) {
  expect_caught("out", [](const pt_decode_params& p) { static_cast<uint16_t*>(p.out)[-1] = 0; });
}
TEST(Verify, CatchesAWriteBehindTheOutput) {
  expect_caught("out", [](const pt_decode_params& p) { static_cast<uint16_t*>(p.out)[out_elements(p)] = 0; });
}
TEST(Verify, CatchesAWriteBehindTheLse) {
  expect_caught("LSE", [](const pt_decode_params& p) { p.lse[p.batch * 4] = 0; });
}
TEST(Verify, CatchesAWriteIntoTheCache) {
  expect_caught("K cache", [](const pt_decode_params& p) { static_cast<uint16_t*>(const_cast<void*>(p.k_cache))[5] ^= 1; });
}
TEST(Verify, CatchesAWriteIntoTheQuery) {
  expect_caught("q", [](const pt_decode_params& p) { static_cast<uint16_t*>(const_cast<void*>(p.q))[5] ^= 1; });
}
TEST(Verify, CatchesAWriteIntoTheBlockTable) {
  expect_caught("block table", [](const pt_decode_params& p) { const_cast<int*>(p.block_tables)[p.block_table_width] = 0; });
}
TEST(Verify, CatchesAWriteBehindTheLengths) {
  expect_caught("lengths", [](const pt_decode_params& p) { const_cast<int*>(p.seq_lens)[p.batch] = 0; });
}
// Fault: the row stride of the output is taken for dense, or a vector store runs past the row.
TEST(Verify, CatchesAWriteBetweenOutputRows) {
  expect_caught("gap", [](const pt_decode_params& p) {
    if (p.out_stride_seq > 4 * 16) static_cast<uint16_t*>(p.out)[4 * 16] = 0;
  });
}

TEST(Verify, CatchesAWriteBehindTheWorkspace) {
  const AttentionSpec spec = small_spec();
  const auto right = plain_kernel(spec);
  FakeDevice device;
  const FakeModule module([&](const pt_decode_params& p) {
    right(p);
    static_cast<char*>(p.workspace)[p.workspace_bytes] = 0;
  });
  const Check check = verify(device, module, spec, 4);
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.what.find("workspace"), std::string::npos) << check.what;
}

// Fault: a sum whose order depends on a race.
TEST(Verify, CatchesOtherBitsInTheSecondRun) {
  int run = 0;
  const AttentionSpec spec = small_spec(DType::fp32);
  const auto right = plain_kernel(spec);
  const Check check = verify_fake(spec, [&](const pt_decode_params& p) {
    right(p);
    if (run++ % 2 == 1) static_cast<float*>(p.out)[16 * 4 + 3] = std::nextafter(static_cast<float*>(p.out)[16 * 4 + 3], 9.0F);
  });
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.what.find("second run"), std::string::npos) << check.what;
}

// Fault: one wrong row of many disappears in the norm over all.
TEST(Compare, OneWrongRowAmongThousandsIsSeen) {
  AttentionSpec spec = small_spec();
  spec.lse = false;
  const int batch = 2000;
  const size_t count = static_cast<size_t>(batch) * 4 * 16;
  Reference reference{std::vector<double>(count, 1.0), std::vector<double>(static_cast<size_t>(batch) * 4, 0.0)};
  Outputs outputs;
  outputs.out.resize(count * 2);
  for (size_t i = 0; i < count; ++i) store_element(DType::bf16, outputs.out.data(), static_cast<int64_t>(i), 1.0);
  EXPECT_TRUE(compare(spec, batch, outputs, reference).ok);
  for (int d = 0; d < 16; ++d) store_element(DType::bf16, outputs.out.data(), 5000 * 16 + d, 1.05);
  const Check check = compare(spec, batch, outputs, reference);
  EXPECT_LT(check.error, 8e-3);
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.what.find("sequence 1250, head 0"), std::string::npos) << check.what;
}

// Fault: the harness leaks device memory, and a tuning session of thousands of checks runs out of it.
TEST(Verify, GivesItsMemoryBack) {
  FakeDevice device;
  const AttentionSpec spec = small_spec();
  EXPECT_TRUE(verify(device, FakeModule(plain_kernel(spec)), spec, 3).ok);
  EXPECT_EQ(device.live_allocations(), 0U);
}

// Fault: the poison is not NaN in some type, so that reading it would go unnoticed.
TEST(Poison, IsNaNInEveryTypeAndANegativeId) {
  std::vector<char> memory(4096);
  fill_poison(memory.data(), memory.size(), 6);
  for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
    const int64_t count = static_cast<int64_t>(memory.size()) / (bits_of(type) / 8);
    for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(std::isnan(load_element(type, memory.data(), i))) << name_of(type) << " " << i;
  }
  for (size_t i = 0; i < memory.size() / 4; ++i) ASSERT_LT(reinterpret_cast<int*>(memory.data())[i], 0);
  EXPECT_EQ(first_difference_from_poison(memory.data(), memory.size(), 6), memory.size());
  memory[1001] = 3;
  EXPECT_EQ(first_difference_from_poison(memory.data(), memory.size(), 6), 1001U);
}

// Fault: a placement's K and V overlap, or leave a byte of the cache that is neither poisoned nor visible.
TEST(HostProblem, ExactlyTheVisibleElementsAreNumbers) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    for (const Placement placement : {Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced}) {
      AttentionSpec spec = small_spec();
      spec.layout = layout;
      spec.page_size = 7;
      const HostProblem problem({.spec = spec, .lens = {0, 1, 7, 8, 20}, .placement = placement});
      int64_t numbers = 0;
      for (const HostBytes* memory : {&problem.k_memory(), &problem.v_memory()}) {
        for (size_t i = 0; i < memory->size() / 2; ++i) numbers += std::isnan(load_element(DType::bf16, memory->data(), static_cast<int64_t>(i))) ? 0 : 1;
      }
      EXPECT_EQ(numbers, 2 * 36 * spec.kv_heads * spec.head_dim_k) << name_of(placement);
    }
  }
}

// Fault: what no row sees holds numbers, and reading it goes unnoticed; or a page that one head sees is poison for it.
TEST(HostProblem, PagesThatAHeadDoesNotSeeArePoison) {
  for (const bool headwise : {false, true}) {
    AttentionSpec spec = small_spec();
    spec.window = true;
    spec.headwise = headwise;
    spec.page_size = 4;
    HostProblem problem({.spec = spec, .lens = {40}, .unseen = Unseen::kept, .windows = {6, 0}});
    int64_t numbers = 0;
    for (size_t i = 0; i < problem.k_memory().size() / 2; ++i) numbers += std::isnan(load_element(DType::bf16, problem.k_memory().data(), static_cast<int64_t>(i))) ? 0 : 1;
    EXPECT_EQ(numbers, (8 + 40) * spec.head_dim_k);  // tokens 32 to 39 of the first head: whole pages
    for (int slot = 0; slot < 10; ++slot) EXPECT_GE(headwise ? problem.table_entry(0, 0, slot) : problem.table_entry(0, slot), 0);
  }
  AttentionSpec spec = small_spec();
  spec.window = spec.headwise = true;
  HostProblem recycled({.spec = spec, .lens = {64}, .unseen = Unseen::recycled, .windows = {0, 16}});
  for (int slot = 0; slot < 4; ++slot) {
    EXPECT_GE(recycled.table_entry(0, 0, slot), 0);
    EXPECT_EQ(recycled.table_entry(0, 1, slot) >= 0, slot == 3);
  }
}

TEST(HostProblem, PagesAreDistinctAndInRandomOrder) {
  const HostProblem problem({.spec = small_spec(), .lens = {1600}});
  int ascending = 0;
  std::set<int> seen;
  for (int slot = 0; slot < 100; ++slot) {
    const int id = problem.params().block_tables[slot];
    EXPECT_TRUE(seen.insert(id).second);
    if (slot > 0 && id == problem.params().block_tables[slot - 1] + 1) ++ascending;
  }
  EXPECT_LT(ascending, 20);
}

TEST(HostProblem, SharedPagesStandInEveryRow) {
  const HostProblem problem({.spec = small_spec(), .lens = {33, 48, 5}, .shared_pages = 2});
  const int* table = problem.params().block_tables;
  const long long stride = problem.params().block_table_stride;
  EXPECT_EQ(table[0], table[stride]);
  EXPECT_EQ(table[1], table[stride + 1]);
  EXPECT_NE(table[2], table[stride + 2]);
  EXPECT_EQ(table[0], table[2 * stride]);
}

TEST(HostProblem, ContradictionsAreErrors) {
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {}}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {-1}}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {33}, .page_ids = {1, 2}}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {33}, .num_pages = 2}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {33}, .windows = {1, 2}}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .lens = {33}, .q_lens = {1}}), Error);
  EXPECT_THROW(HostProblem({.spec = small_spec(), .head_lens = {1, 2}}), Error);
  AttentionSpec spec = small_spec();
  spec.window = true;
  EXPECT_THROW(HostProblem({.spec = spec, .lens = {33}, .windows = {1}}), Error);
}

// Fault: half-precision conversion rounds half up, loses subnormals or overflows early; test data would differ from what kernels see.
TEST(Numeric, EveryHalfSurvivesARoundTripAndTiesGoToEven) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (std::isnan(float_from_fp16(half))) {
      EXPECT_TRUE(std::isnan(float_from_fp16(fp16_from_float(float_from_fp16(half)))));
    } else {
      ASSERT_EQ(fp16_from_float(float_from_fp16(half)), half) << bits;
    }
    if (!std::isnan(float_from_bf16(half))) {
      ASSERT_EQ(bf16_from_float(float_from_bf16(half)), half) << bits;
    }
  }
  EXPECT_EQ(fp16_from_float(1.0F + 0x1p-11F), fp16_from_float(1.0F));
  EXPECT_EQ(fp16_from_float(1.0F + 3 * 0x1p-11F), fp16_from_float(1.0F + 0x1p-9F));
  EXPECT_EQ(fp16_from_float(65519.0F), 0x7BFF);
  EXPECT_EQ(fp16_from_float(65520.0F), 0x7C00);
  EXPECT_EQ(fp16_from_float(0x1p-25F), 0);
  EXPECT_EQ(bf16_from_float(1.0F + 0x1p-8F), bf16_from_float(1.0F));
  EXPECT_EQ(bf16_from_float(1.0F + 3 * 0x1p-8F), bf16_from_float(1.0F + 0x1p-6F));
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace pagetune
