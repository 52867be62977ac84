// What holds for every plan alike: head-wise tables, the workspace's state and replays of a recorded launch change no bit.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "attention_support.hpp"
#include "codegen/space.hpp"
#include "runtime/launch.hpp"
#include "tuner/numeric.hpp"

namespace pagetune::testing_support {
namespace {

// A launch whose workspace and inputs are the test's own.
class Launcher {
 public:
  Launcher(Device& device, const HostProblem& problem) : device_(device), problem_(problem), on_device_(device, problem) {}
  ~Launcher() {
    if (workspace_ != nullptr) device_.release(workspace_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Room for any of the plans, so that all can use one memory.
  void make_workspace(const std::vector<NamedPlan>& plans) {
    for (const NamedPlan& plan : plans) bytes_ = std::max(bytes_, workspace_bytes(problem_.spec(), problem_.params().batch, plan.plan));
    workspace_ = device_.allocate(std::max<size_t>(bytes_, 1));
    std::vector<char> poison(bytes_);
    fill_poison(poison.data(), bytes_);
    fill_workspace(poison);
  }
  void fill_workspace(const std::vector<char>& content) { device_.upload(workspace_, content.data(), bytes_); }
  size_t workspace_size() const { return bytes_; }

  pt_decode_params params(const NamedPlan& plan) const {
    pt_decode_params p = on_device_.params();
    p.workspace = workspace_;
    p.workspace_bytes = static_cast<long long>(bytes_);
    check_params(problem_.spec(), plan.plan, p);
    return complete(problem_.spec(), plan.plan, p);
  }
  void poison_outputs() {
    std::vector<char> poison(std::max(problem_.out_bytes(), static_cast<size_t>(problem_.rows()) * static_cast<size_t>(problem_.spec().q_heads) * 4));
    fill_poison(poison.data(), poison.size());
    device_.upload(on_device_.params().out, poison.data(), problem_.out_bytes());
    device_.upload(on_device_.params().lse, poison.data(), static_cast<size_t>(problem_.rows()) * static_cast<size_t>(problem_.spec().q_heads) * 4);
  }
  Outputs run(const NamedPlan& plan) {
    poison_outputs();
    module_of(device_, problem_.spec(), plan)->launch(params(plan), device_.stream());
    device_.synchronize();
    return on_device_.outputs();
  }
  Outputs outputs() const { return on_device_.outputs(); }

 private:
  Device& device_;
  const HostProblem& problem_;
  DeviceProblem on_device_;
  void* workspace_ = nullptr;
  size_t bytes_ = 0;
};

using WayKey = std::tuple<int, bool, int, int>;  // variant, even share, merge, loader
WayKey key_of(const KernelConfig& config) { return {config.variant(), config.even_share(), config.get("MERGE", 0), config.get("LOADER", 0)}; }

class EveryPlan : public DeviceTest {
 protected:
  std::vector<NamedPlan> all_plans(const AttentionSpec& spec) {
    build_all(device(), {spec}, Plans::all);
    return plans_of(device(), spec, Plans::all);
  }
  // Plans with a state in the workspace.
  std::vector<NamedPlan> merging_plans(const AttentionSpec& spec) {
    std::vector<NamedPlan> plans = all_plans(spec);
    std::erase_if(plans, [](const NamedPlan& plan) { return !plan.plan.merges(); });
    return plans;
  }
};

// Fault: the tests' list of plans lags behind the config space, and a schedule, a merge or a loader is met by no test.
TEST_F(EveryPlan, IsAnyScheduleMergeAndLoaderOfTheSpace) {
  const AttentionSpec spec = decode_spec(8, 2, 64, 16);
  std::set<WayKey> tried, admitted;
  for (const NamedPlan& plan : plans_of(device(), spec, Plans::all)) tried.insert(key_of(plan.values));
  for (const KernelConfig& config : ConfigSpace::builtin().candidates(spec, device().target()).configs) admitted.insert(key_of(config));
  EXPECT_EQ(tried, admitted);
}

// Fault: a head-wise table orders tiles, pages or the merge in another way: uniform, slot and flat tables that name the same tokens.
TEST_F(EveryPlan, TablesOfTheSameTokensGiveTheSameBits) {
  for (const bool window : {false, true}) {
    AttentionSpec uniform = decode_spec(8, 4, 128, 16);
    uniform.window = window;
    AttentionSpec slot = uniform, flat = uniform;
    slot.headwise = flat.headwise = true;
    flat.address_map = AddressMap::flat;
    for (const AttentionSpec& spec : {uniform, slot, flat}) require_supported(spec);
    build_all(device(), {uniform, slot, flat}, Plans::all);
    ProblemShape shape{.spec = uniform, .lens = {300, 17, 0, 1000}};
    if (window) shape.windows = {64, 0, 200, 1};
    HostProblem a(shape);
    shape.spec = slot;
    HostProblem b(shape);
    shape.spec = flat;
    HostProblem c(shape);
    for (HostProblem* problem : {&a, &b, &c}) fill_by_position(*problem);
    const Reference expected = reference(uniform, a.params());
    DeviceProblem on_a(device(), a), on_b(device(), b), on_c(device(), c);
    for (const NamedPlan& plan : plans_of(device(), uniform, Plans::all)) {
      on_a.run(*module_of(device(), uniform, plan), plan.plan);
      EXPECT_TRUE(on_a.check(expected).ok) << plan.name << ": " << on_a.check(expected).what;
      on_b.run(*module_of(device(), slot, plan), plan.plan);
      EXPECT_TRUE(on_b.outputs() == on_a.outputs()) << "slot, " << plan.name;
      on_c.run(*module_of(device(), flat, plan), plan.plan);
      EXPECT_TRUE(on_c.outputs() == on_a.outputs()) << "flat, " << plan.name;
    }
  }
}

// Fault: a merge that takes its parts in several goes loses or repeats one between two, or forgets to weigh the sums of those before anew: later keys score higher.
TEST_F(EveryPlan, MergesMorePartsThanSharedMemoryHolds) {
  HostProblem problem({.spec = decode_spec(16, 1, 128, 16), .lens = {11000, 0, 5, 3000}});  // a part is 8 KiB; stages of 64 to 104 KiB hold 7 to 12 of 40
  problem.fill_k([](int64_t position, int, int head, int dim) { return hashed(position, head, dim) * (0.5 + static_cast<double>(position) / 20000); });
  expect_right(device(), problem, "", Plans::all);
}

// Fault: counters or partial results that count on what the workspace held: anything, or what a launch of the same or of another plan left.
TEST_F(EveryPlan, NeedsNoInitialisedWorkspace) {
  AttentionSpec drafts = decode_spec(12, 2, 128, 16);
  drafts.q_len = 3;
  for (const AttentionSpec& spec : {decode_spec(14, 2, 64, 16), drafts}) {
    require_supported(spec);
    const std::vector<NamedPlan> plans = merging_plans(spec);
    const HostProblem problem({.spec = spec, .lens = {sanitized() ? 300 : 1000, 0, 33, sanitized() ? 64 : 512, 1, 130}});
    const Reference expected = reference(spec, problem.params());
    Launcher launcher(device(), problem);
    launcher.make_workspace(plans);
    const size_t bytes = launcher.workspace_size();
    Random random(7);
    std::vector<char> noise(bytes);
    for (char& c : noise) c = static_cast<char>(random.below(256));
    // Small counts in every counter's place, as if merges had been left half done by a kernel without tags.
    std::vector<char> ones(bytes, 0);
    for (size_t at = 0; at < bytes; at += 8) ones[at] = 1;
    const std::pair<const char*, std::vector<char>> contents[] = {{"zeros", std::vector<char>(bytes, 0)}, {"all ones", std::vector<char>(bytes, static_cast<char>(0xff))}, {"noise", noise}, {"counts of one", ones}};

    std::map<std::string, Outputs> bits;
    for (const NamedPlan& plan : plans) {
      for (const auto& [name, content] : contents) {
        launcher.fill_workspace(content);
        for (int repeat = 0; repeat < (sanitized() ? 1 : 3); ++repeat) {
          const Outputs outputs = launcher.run(plan);
          const auto [known, first] = bits.try_emplace(plan.name, outputs);
          if (first) {
            const Check check = compare(spec, problem.rows(), outputs, expected);
            EXPECT_TRUE(check.ok) << plan.name << ": " << check.what;
          }
          EXPECT_TRUE(outputs == known->second) << plan.name << " after " << name << ", launch " << repeat;
        }
      }
    }
    // Each plan after each other, twice round, with nothing in between.
    for (size_t step = 1; step < plans.size(); step += sanitized() ? plans.size() : plans.size() > 12 ? 3 : 1) {
      for (size_t i = 0; i < plans.size(); ++i) {
        const NamedPlan& plan = plans[i * step % plans.size()];
        EXPECT_TRUE(launcher.run(plan) == bits[plan.name]) << plan.name << ", every " << step << "th plan in turn";
      }
    }
  }
}

// Faults: a merge in two steps that loses a part between them, counts in a place that another merge or the launch before left as it likes, or reads neighbours before all have arrived. Few
// heads and many CTAs: 49 parts and more of one result, ends of others beside them; later keys score higher.
TEST_F(EveryPlan, MergesManyPartsInTwoSteps) {
  AttentionSpec windowed = decode_spec(10, 2, 128, 16);
  windowed.window = windowed.headwise = true;
  const int longest = sanitized() ? 13000 : 27000;
  for (const ProblemShape& shape : {ProblemShape{.spec = decode_spec(16, 1, 128, 16), .lens = {longest, 0, 5, sanitized() ? 600 : 20000, 900}}, ProblemShape{.spec = decode_spec(8, 1, 64, 64), .lens = {longest}},
                                    ProblemShape{.spec = windowed, .lens = {longest, 700}, .windows = {64, 0}}}) {
    require_supported(shape.spec);
    HostProblem problem(shape);
    problem.fill_k([](int64_t position, int, int head, int dim) { return hashed(position, head, dim) * (0.5 + static_cast<double>(position) / 20000); });
    const Reference expected = reference(shape.spec, problem.params());
    std::vector<NamedPlan> plans = merging_plans(shape.spec);
    std::erase_if(plans, [](const NamedPlan& plan) { return plan.plan.num_ctas != 40; });
    if (plans.empty()) GTEST_SKIP() << "the backend has no even share";
    const std::vector<NamedPlan> others = plans;
    for (NamedPlan& plan : plans) plan.plan.num_ctas = 140;
    Launcher launcher(device(), problem);
    launcher.make_workspace(plans);
    for (size_t i = 0; i < plans.size(); ++i) {
      const Outputs first = launcher.run(plans[i]);
      const Check check = compare(shape.spec, problem.rows(), first, expected);
      EXPECT_TRUE(check.ok) << plans[i].name << " as 140: " << check.what;
      launcher.run(others[i]);  // leaves its own counters and parts there
      for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(launcher.run(plans[i]) == first) << plans[i].name << " as 140, launch " << repeat;
    }
  }
}

// Fault: a recorded launch keeps what it was recorded with: lengths, the share of the tiles, the batch. Rows come, go and move between replays.
TEST_F(EveryPlan, ReplaysFollowLengthsAndRowsUpToThePreparedMaximum) {
  AttentionSpec drafts = decode_spec(8, 2, 64, 16), headwise = decode_spec(8, 2, 128, 16);
  drafts.q_len = 3;
  headwise.headwise = true;
  for (const AttentionSpec& spec : {decode_spec(14, 2, 64, 16), drafts, headwise}) {
    require_supported(spec);
    const std::vector<int> most = {700, 400, 64, 1000, 33};
    const HostProblem problem({.spec = spec, .lens = most});
    const std::vector<NamedPlan> plans = all_plans(spec);
    Launcher launcher(device(), problem);
    launcher.make_workspace(plans);

    // A state of the batch: for each row the sequence whose pages it has, and its length.
    struct State {
      std::vector<int> pages_of, lens;
    };
    const std::vector<State> states = {
        {{0, 1, 2, 3, 4}, {1, 0, 0, 0, 0}}, {{0, 1, 2, 3, 4}, {700, 400, 64, 1000, 33}}, {{3, 0, 4, 1, 2}, {999, 16, 0, 399, 64}}, {{2, 4, 0, 3, 1}, {0, 0, 0, 0, 0}}, {{1, 3, 0, 2, 4}, {17, 1, 650, 0, 33}},
    };
    const int rows_each = spec.headwise ? spec.kv_heads : 1;
    const auto width = static_cast<size_t>(problem.params().block_table_stride);
    const int* tables = problem.params().block_tables;
    struct Step {
      std::vector<int> tables, lens;
      Reference expected;
    };
    std::vector<Step> steps;
    for (const State& state : states) {
      Step step{.tables = {}, .lens = state.lens, .expected = {}};
      for (const int source : state.pages_of) {
        const int* row = tables + static_cast<size_t>(source) * static_cast<size_t>(rows_each) * width;
        step.tables.insert(step.tables.end(), row, row + static_cast<size_t>(rows_each) * width);
      }
      pt_decode_params params = problem.params();
      params.block_tables = step.tables.data();
      params.seq_lens = step.lens.data();
      step.expected = reference(spec, params);
      steps.push_back(std::move(step));
    }
    for (const NamedPlan& plan : plans) {
      const auto module = module_of(device(), spec, plan);
      const pt_decode_params params = launcher.params(plan);
      ASSERT_EQ(params.seq_lens_stride_head, 0);
      launcher.run(plan);
      const auto recording = device().record([&](void* stream) { module->launch(params, stream); });
      for (size_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        device().upload(const_cast<int*>(params.block_tables), step.tables.data(), step.tables.size() * sizeof(int));
        device().upload(const_cast<int*>(params.seq_lens), step.lens.data(), step.lens.size() * sizeof(int));
        launcher.poison_outputs();
        recording->replay_us();
        const Outputs replayed = launcher.outputs();
        const Check check = compare(spec, problem.rows(), replayed, step.expected);
        EXPECT_TRUE(check.ok) << plan.name << ", state " << i << ": " << check.what;
        EXPECT_TRUE(replayed == launcher.run(plan)) << plan.name << ", state " << i;
      }
    }
  }
}

}  // namespace
}  // namespace pagetune::testing_support
