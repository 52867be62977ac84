// The same oracle through get_kernel(): dispatch, workspace, checked builds, batch invariance.
#include <algorithm>
#include <map>
#include <set>

#include "attention_support.hpp"
#include "cache_db/store.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"
#include "pagetune/pagetune.hpp"
#include "tuner/workbench.hpp"

namespace pagetune::testing_support {
namespace {

class KernelOnDevice : public DeviceTest {
 protected:
  std::shared_ptr<Kernel> kernel_of(const AttentionSpec& spec) { return get_kernel(spec, {.device = device().id(), .cache_dir = ":memory:"}); }

  // Runs a checked kernel and returns the message of Kernel::check(), empty if it found nothing. The outputs must be right all the same.
  std::string checked_message(HostProblem& problem) {
    const auto kernel = kernel_of(problem.spec());
    DeviceProblem on_device(device(), problem);
    on_device.run(*kernel);
    const Check check = on_device.check(reference(problem.spec(), problem.params()));
    EXPECT_TRUE(check.ok) << check.what;
    std::string message;
    try {
      kernel->check(on_device.params().workspace, device().stream());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_table);
      message = error.what();
    }
    EXPECT_NO_THROW(kernel->check(on_device.params().workspace, device().stream())) << "the record was not cleared";
    return message;
  }
};

void expect_mentions(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is missing in: " << message;
}

// Fault: the workspace query, the choice of config and the launch disagree for some shape.
TEST_F(KernelOnDevice, IsRightForEveryChoiceOfItsDispatch) {
  const auto kernel = kernel_of(decode_spec(8, 2, 128, 16));
  for (const std::vector<int>& lens : {std::vector<int>{1}, {4000}, {0}, {300, 5, 0}, std::vector<int>(64, 100), {9000, 1, 1, 1, 1, 1, 1, 1}}) {
    const HostProblem problem({.spec = kernel->spec(), .lens = lens});
    DeviceProblem on_device(device(), problem);
    on_device.run(*kernel);
    const Check check = on_device.check(reference(problem.spec(), problem.params()));
    EXPECT_TRUE(check.ok) << check.what << " with " << kernel->config_json(kernel->select(static_cast<int>(lens.size()), problem.params().max_len));
  }
}

AttentionSpec checked_spec() {
  AttentionSpec spec = decode_spec(8, 2, 64, 16);
  spec.checked = true;
  return spec;
}

// Fault: a checked build cries wolf: over garbage past the row's need, over padding rows, over an uninitialised workspace.
TEST_F(KernelOnDevice, CheckedBuildIsSilentOverAGoodTable) {
  HostProblem problem({.spec = checked_spec(), .lens = {0, 1, 16, 33, 500}});
  EXPECT_EQ(checked_message(problem), "");
}

// Fault (B35): ids are checked for being negative but not for being too large.
TEST_F(KernelOnDevice, CheckedBuildNamesAnIdBeyondTheCache) {
  HostProblem problem({.spec = checked_spec(), .lens = {32}, .num_pages = 4, .page_ids = {0, 2}});
  problem.table_entry(0, 1) = 4;
  expect_mentions(checked_message(problem), {"sequence 0", "slot 1", "4"});
}

TEST_F(KernelOnDevice, CheckedBuildNamesAnAbsentPageInTheVisibleRange) {
  HostProblem problem({.spec = checked_spec(), .lens = {20, 100, 40}});
  problem.table_entry(1, 3) = -7;
  expect_mentions(checked_message(problem), {"sequence 1", "slot 3", "-7"});
}

// Fault (B34): the table is read up to the length and not up to its width.
TEST_F(KernelOnDevice, CheckedBuildNamesALengthBeyondTheRow) {
  HostProblem problem({.spec = checked_spec(), .lens = {5, 33}, .table_width = 2});
  expect_mentions(checked_message(problem), {"sequence 1", "33 > 32"});
}

// Fault: entries outside every row's window are taken for bad ones; an absent page inside is not.
TEST_F(KernelOnDevice, CheckedBuildKnowsWhatIsVisible) {
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    AttentionSpec spec = checked_spec();
    spec.window = spec.headwise = true;
    spec.q_len = 3;
    spec.address_map = map;
    require_supported(spec);
    HostProblem problem({.spec = spec, .lens = {0, 1, 16, 100, 500}, .q_lens = {3, 1, 0, 3, 2}, .windows = {20, 0}});
    EXPECT_EQ(checked_message(problem), "");
    problem.table_entry(3, 0, 5) = -9;  // tokens 80 to 95; the first row is at 97 and sees 78 to 97
    expect_mentions(checked_message(problem), {"sequence 3", "KV head 0", "slot 5", "-9"});
  }
}

// Fault: surplus query tokens are dropped without a word.
TEST_F(KernelOnDevice, CheckedBuildNamesSurplusQueryTokens) {
  AttentionSpec spec = checked_spec();
  spec.q_len = 3;
  require_supported(spec);
  HostProblem problem({.spec = spec, .lens = {40, 40}, .q_lens = {2, 5}});
  expect_mentions(checked_message(problem), {"sequence 1", "5 query tokens", "5 > 3"});
}

// Fault: the split of a sequence follows the batch, and its bits change with its neighbours.
TEST_F(KernelOnDevice, BatchInvariantBitsDoNotDependOnNeighbours) {
  AttentionSpec uniform = decode_spec(8, 2, 128, 16), headwise = uniform;
  headwise.window = headwise.headwise = true;
  for (AttentionSpec& spec : std::vector{uniform, headwise}) {
    spec.batch_invariant = true;
    const auto kernel = kernel_of(spec);
    const auto run = [&](std::vector<int> lens) {
      ProblemShape shape{.spec = spec, .lens = std::move(lens)};
      if (spec.window) shape.windows = {0, 200};
      HostProblem problem(shape);
      problem.fill_q([](int, int head, int dim) { return hashed(head, dim, 7); });
      fill_by_position(problem);
      DeviceProblem on_device(device(), problem);
      on_device.run(*kernel);
      const Check check = on_device.check(reference(spec, problem.params()));
      EXPECT_TRUE(check.ok) << check.what;
      return on_device.outputs();
    };
    // Every sequence of a batch against itself alone.
    std::map<int, Outputs> alone;
    const auto row_bytes = static_cast<std::ptrdiff_t>(spec.q_heads) * spec.head_dim_v * 2;
    for (std::vector<int> lens : {std::vector<int>{1, 63}, {8000, 64}, {0, 5, 16, 700}, std::vector<int>(100, 50), {3000, 3000, 1}}) {
      for (const int turn : {0, 1}) {
        std::rotate(lens.begin(), lens.begin() + turn, lens.end());
        const Outputs together = run(lens);
        for (size_t i = 0; i < lens.size(); ++i) {
          if (!alone.contains(lens[i])) alone[lens[i]] = run({lens[i]});
          const Outputs& expected = alone[lens[i]];
          const auto row = static_cast<std::ptrdiff_t>(i);
          ASSERT_TRUE(std::equal(expected.out.begin(), expected.out.end(), together.out.begin() + row * row_bytes)) << lens[i] << " as sequence " << i << " of " << lens.size();
          ASSERT_TRUE(std::equal(expected.lse.begin(), expected.lse.end(), together.lse.begin() + row * spec.q_heads)) << lens[i] << " as sequence " << i << " of " << lens.size();
        }
      }
    }
  }
}

// Fault: verify() needs more than the tuner gives it, or passes on fakes only.
TEST_F(KernelOnDevice, VerifierAcceptsTheDefaultKernels) {
  for (const AttentionSpec& spec : {decode_spec(8, 2, 128, 16), decode_spec(7, 1, 96, 7, DType::fp16), checked_spec()}) {
    const Verifier verifier(device(), spec);
    for (const auto& [variant, splits] : {std::pair{1, 1}, {2, 2}, {2, 16}}) {
      const Check check = verifier.check(*module_of(device(), spec, variant), splits);
      EXPECT_TRUE(check.ok) << "V" << variant << " with " << splits << " splits: " << check.what;
      EXPECT_GT(check.error, 0);
    }
  }
}

// Fault: the tuner verifies a kernel with a number of splits that it does not take, and blocks all of its kind.
TEST_F(KernelOnDevice, WorkbenchAcceptsEveryCandidateOfTheSpace) {
  const auto store = Store::open(":memory:");
  const AttentionSpec spec = decode_spec(8, 2, 64, 16);
  const auto workbench = make_workbench(device(), *store, spec, MeasurePolicy::for_backend(device().target().backend));
  std::set<KernelConfig> seen;
  for (const Bucket bucket : {Bucket{0, 12}, Bucket{6, 10}}) {
    for (const KernelConfig& config : ConfigSpace::builtin().candidates(spec, device().target(), bucket).configs) {
      if (!seen.insert(shape_of(config)).second) continue;
      workbench->build(config);
      const Verdict verdict = workbench->verify(config);
      EXPECT_TRUE(verdict.ok) << config.canonical_json() << ": " << verdict.what;
    }
  }
  EXPECT_GT(seen.size(), 3U);
}

TEST_F(KernelOnDevice, VerifierAcceptsKernelsOfFeatures) {
  AttentionSpec windowed = decode_spec(8, 2, 64, 16);
  windowed.window = windowed.sink_tokens = windowed.headwise = true;
  AttentionSpec drafts = decode_spec(8, 2, 64, 16);
  drafts.q_len = 4;
  drafts.mask = MaskKind::tree;
  drafts.sinks = drafts.soft_cap = drafts.alibi = true;
  for (const AttentionSpec& spec : {windowed, drafts}) {
    require_supported(spec);
    const Verifier verifier(device(), spec);
    build_all(device(), {spec}, Plans::all);
    std::set<KernelConfig> seen;
    for (const NamedPlan& plan : plans_of(device(), spec, Plans::all)) {
      if (!seen.insert(plan.values).second && !on_cpu()) continue;  // one launch of each binary
      const Check check = verifier.check(*module_of(device(), spec, plan), plan.plan);
      EXPECT_TRUE(check.ok) << plan.name << ": " << check.what;
    }
  }
}

TEST_F(KernelOnDevice, BenchProblemsOfFeaturesAreRight) {
  AttentionSpec windowed = decode_spec(16, 4, 128, 16);
  windowed.window = windowed.headwise = true;
  windowed.address_map = AddressMap::flat;
  AttentionSpec drafts = decode_spec(16, 4, 192, 64);
  drafts.head_dim_v = 128;
  drafts.q_len = 4;
  for (const AttentionSpec& spec : {windowed, drafts}) {
    require_supported(spec);
    const BenchProblem problem(device(), spec, {2000, 33, 512}, {.features = {.windows = spec.window ? std::vector<int>{0, 256, 256, 256} : std::vector<int>()}, .flags = PT_LAUNCH_OVERLAP, .plans = {1, 8}});
    for (const auto& [variant, splits] : {std::pair{1, 1}, {2, 8}}) {
      const Check check = problem.check(*module_of(device(), spec, variant), splits, 4);
      EXPECT_TRUE(check.ok) << "V" << variant << ": " << check.what;
    }
  }
}

// Fault: the chain of a bench computes something else than attention, and its times mean nothing.
TEST_F(KernelOnDevice, BenchProblemIsRightAtTheEndOfItsChain) {
  const AttentionSpec spec = decode_spec(32, 8, 128, 16);
  const int scale = on_cpu() ? 1 : 16;  // a GPU's case is of the size that is really timed
  const std::vector<int> lens = {scale * 512, scale * 100, scale * 256, 33};
  const BenchProblem problem(device(), spec, lens, {.plans = {1, 8}});
  EXPECT_GE(problem.sets() * problem.kv_bytes(), 4LL * device().environment().l2_bytes);
  for (const auto& [variant, splits] : {std::pair{1, 1}, {2, 8}}) {
    const Check check = problem.check(*module_of(device(), spec, variant), splits, 4);
    EXPECT_TRUE(check.ok) << "V" << variant << ": " << check.what;
  }
}

// Fault: a recorded chain reads parameters that have changed since, or leaves out the merge.
TEST_F(KernelOnDevice, ReplayedChainGivesTheBitsOfDirectLaunches) {
  const AttentionSpec spec = decode_spec(32, 8, 128, 16);
  const std::vector<int> lens = {700, 1, 64, 1000};
  const size_t bytes = lens.size() * static_cast<size_t>(spec.q_heads) * spec.head_dim_v * 2;
  constexpr int kLaunches = 4;
  const BenchProblem problem(device(), spec, lens, {.plans = {1, 4}});
  const auto module = module_of(device(), spec, 2);
  const void* start = problem.params(0).q;
  std::vector<char> q(bytes);
  device().download(q.data(), start, bytes);
  const auto result = [&] {
    std::vector<char> out(bytes);
    device().download(out.data(), problem.params(kLaunches).q, bytes);
    return out;
  };
  problem.enqueue(*module, 4, kLaunches, device().stream());
  device().synchronize();
  const std::vector<char> direct = result();
  const auto recording = device().record([&](void* stream) { problem.enqueue(*module, 4, kLaunches, stream); });
  device().upload(const_cast<void*>(start), q.data(), bytes);
  EXPECT_GT(recording->replay_us(), 0);
  EXPECT_EQ(result(), direct);
}

}  // namespace
}  // namespace pagetune::testing_support
