// Sessions on a workbench that pretends: times, verdicts and the clock are the test's. Store and config space are the real ones.
#include "tuner/session.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "cache_db/blocklist.hpp"
#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "codegen/launch_plan.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

struct World {
  explicit World(const std::string& name) {
    context.target = Target::by_name("sm_90a");
    context.environment.backend = "cuda";
    context.environment.device = name;  // each test has a device of its own: a store in memory is shared by the process
    context.environment.arch = "sm_90a";
    store = Store::open(":memory:");
    context.store = store.get();
    context.now_s = [this] { return clock(); };
    context.interrupted = [this] { return stop && stop(); };
    context.workbench = [this](const AttentionSpec& spec) { return make(spec); };
    for (int batch_log2 : {0, 3, 6}) works.push_back({AttentionSpec{}, Bucket{batch_log2, 12}, {0, 1}});
  }

  SessionReport run() { return run_session(context, options, works); }
  std::vector<Winner> stored() const { return store->winners(context.environment.key(), spec_key(AttentionSpec{})); }

  double clock() {
    std::lock_guard lock(mutex);
    return now;
  }
  void spend(double seconds) {
    std::lock_guard lock(mutex);
    now += seconds;
  }

  std::unique_ptr<Workbench> make(const AttentionSpec&);

  // What the pretended device does.
  std::function<double(const KernelConfig&)> time_us = [](const KernelConfig& config) {
    return 20 + config.at("NUM_WARPS") + std::abs(std::log2(config.num_splits() / 4.0)) + (config.variant() == 1 ? 10 : 0);
  };
  std::function<bool(const KernelConfig&)> is_right = [](const KernelConfig&) { return true; };
  std::function<LaunchFacts(const KernelConfig&)> facts = [](const KernelConfig&) { return LaunchFacts{}; };
  std::function<void(Bucket)> on_open = [](Bucket) {};
  std::function<bool()> stop;
  double noise = 0.003;
  double build_s = 0.01, verify_s = 0.01, sample_s = 0.001;

  // What was seen.
  int workbenches = 0;
  std::set<KernelConfig> verified, timed;
  std::vector<std::string> opened;

  SessionContext context;
  SessionOptions options;
  std::shared_ptr<Store> store;
  std::vector<Work> works;
  std::mutex mutex;
  double now = 1000;
  std::mt19937_64 random{5};
};

class PretendedBench final : public Workbench {
 public:
  explicit PretendedBench(World& world) : world_(world) {}
  LaunchFacts build(const KernelConfig& config) override {
    world_.spend(world_.build_s);
    return world_.facts(config);
  }
  Verdict verify(const KernelConfig& config) override {
    world_.spend(world_.verify_s);
    world_.verified.insert(shape_of(config));
    if (world_.is_right(config)) return {true, 1e-3, ""};
    return {false, 0.5, "half of the output is missing"};
  }
  void open(Bucket bucket, const std::vector<KernelConfig>& configs) override {
    EXPECT_FALSE(configs.empty());
    world_.on_open(bucket);
    world_.opened.push_back(bucket.text());
    ++open_;
    EXPECT_EQ(open_, 1) << "two problems in memory at a time";
  }
  void close() override { --open_; }
  double sample_us(const KernelConfig& config) override {
    EXPECT_TRUE(world_.verified.count(shape_of(config))) << "timed before it was verified";
    world_.spend(world_.sample_s);
    world_.timed.insert(config);
    return world_.time_us(config) * std::exp(world_.noise * std::normal_distribution<double>()(world_.random));
  }

 private:
  World& world_;
  int open_ = 0;
};

std::unique_ptr<Workbench> World::make(const AttentionSpec&) {
  ++workbenches;
  return std::make_unique<PretendedBench>(*this);
}

// Fault: a winner is stored without what makes it comparable, or the wrong one is.
TEST(Session, StoresAWinnerOfEveryBucket) {
  World world("stores");
  world.options.id = "somebody";
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 3);
  ASSERT_EQ(world.stored().size(), 3u);
  for (const Winner& winner : world.stored()) {
    double best = 1e9;
    for (const KernelConfig& config : world.timed) {
      if (ConfigSpace::builtin().refusal(AttentionSpec{}, config, world.context.target, winner.bucket).empty()) best = std::min(best, world.time_us(config));
    }
    EXPECT_LE(world.time_us(winner.config), best * 1.025);
    EXPECT_NEAR(winner.median_us, world.time_us(winner.config), 0.2);
    EXPECT_LE(winner.ci_low_us, winner.median_us);
    EXPECT_GE(winner.ci_high_us, winner.median_us);
    EXPECT_GT(winner.default_us, 0);
    EXPECT_GT(winner.runner_up_us, 0);
    EXPECT_GE(winner.tied, 1);
    EXPECT_EQ(winner.error, 1e-3);
    EXPECT_EQ(winner.floor_us, 0) << "nobody has measured this device";
    EXPECT_EQ(winner.policy_hash, world.options.policy.hash());
    EXPECT_EQ(winner.generator_hash, generator_hash());
    EXPECT_EQ(winner.space_hash.size(), 64u);
    EXPECT_EQ(winner.session, "somebody");
    EXPECT_FALSE(winner.reason.empty());
  }
}

// Fault: a second run compiles, opens memory or measures although everything is stored; or it measures although only the id changed.
TEST(Session, ASecondRunDoesNothing_B182) {
  World world("second");
  world.run();
  world.workbenches = 0;
  double before = world.now;
  world.options.id = "another";
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::stored_before), 3);
  EXPECT_EQ(world.workbenches, 0);
  EXPECT_EQ(world.now, before);
  for (const WorkResult& work : report.works) EXPECT_TRUE(work.winner);
}

// Fault: --retune does nothing; a changed policy or a changed generator's winners count as current.
TEST(Session, MeasuresAgainWhenAskedOrWhenThePolicyOrTheGeneratorChanged_B185) {
  World world("again");
  world.run();
  world.options.retune = true;
  EXPECT_EQ(world.run().count(Outcome::tuned), 3);
  world.options.retune = false;
  world.options.policy.final_rounds = 21;
  EXPECT_EQ(world.run().count(Outcome::tuned), 3);
  Winner stale = world.stored().front();
  stale.generator_hash = "0";
  world.store->put_winner(stale, world.context.environment, AttentionSpec{});
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  EXPECT_EQ(report.count(Outcome::stored_before), 2);
}

// Fault: a re-tune flips between equals. The winner stored before is within the tie band of the new best: it stays.
TEST(Session, TheIncumbentStaysAmongEquals) {
  World world("incumbent");
  world.works.resize(1);
  world.run();
  KernelConfig first = world.stored().front().config;
  KernelConfig fallback = default_config(AttentionSpec{}, world.context.target, world.works[0].bucket);
  ASSERT_NE(first, fallback);
  auto honest = world.time_us;
  world.time_us = [&](const KernelConfig& config) { return config == fallback ? 40.0 : config == first ? 20.1 : 20.0; };
  world.options.retune = true;
  world.run();
  EXPECT_EQ(world.stored().front().config, first);
}

// Fault: a wrong candidate wins, is timed, stops the session, or comes back next time.
TEST(Session, AWrongCandidateIsReportedBlockedAndNeverTimed) {
  World world("wrong");
  world.works.resize(1);
  world.run();
  const KernelConfig best = shape_of(world.stored().front().config);
  world.verified.clear();
  world.timed.clear();
  world.is_right = [&](const KernelConfig& config) { return shape_of(config) != best; };
  world.options.retune = true;
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  ASSERT_EQ(report.wrong.size(), 1u);
  EXPECT_NE(report.wrong[0].find("half of the output is missing"), std::string::npos);
  for (const KernelConfig& config : world.timed) EXPECT_NE(shape_of(config), best);
  EXPECT_NE(shape_of(world.stored().front().config), best);
  auto blocked = world.store->blocked(world.context.environment.key(), spec_key(AttentionSpec{}));
  ASSERT_EQ(blocked.size(), 1u);

  world.verified.clear();
  world.run();
  EXPECT_EQ(world.verified.count(best), 0u) << "a blocked shape is not even verified";
}

// Fault: a bucket whose winner another bucket's session found wrong counts as tuned for ever.
TEST(Session, ABucketWhoseWinnerIsBlockedSinceIsTunedAgain) {
  World world("blocked since");
  world.works.resize(1);
  world.run();
  const KernelConfig best = world.stored().front().config;
  EXPECT_EQ(world.run().count(Outcome::stored_before), 1);
  world.store->block(world.context.environment.key(), spec_key(AttentionSpec{}), best, Blocklist::text("wrong result"));
  EXPECT_EQ(world.run().count(Outcome::tuned), 1);
  EXPECT_NE(shape_of(world.stored().front().config), shape_of(best));
  EXPECT_EQ(world.run().count(Outcome::stored_before), 1);
}

// Fault: '0 valid' ends as success, or leaves a row.
TEST(Session, NothingValidIsAFailureWithItsReasonsAndNoRow) {
  World world("nothing");
  world.is_right = [](const KernelConfig&) { return false; };
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::failed), 3);
  EXPECT_TRUE(world.stored().empty());
  EXPECT_TRUE(world.timed.empty());
  EXPECT_EQ(report.works[0].message.rfind("0 of ", 0), 0u) << report.works[0].message;
  EXPECT_NE(report.works[0].message.find("candidates valid: "), std::string::npos);
  EXPECT_NE(report.works[0].message.find("wrong result"), std::string::npos) << report.works[0].message;

  World broken("broken");
  broken.facts = [](const KernelConfig&) -> LaunchFacts { throw Error(ErrorCode::compile_failed, "no such instruction"); };
  SessionReport none = broken.run();
  EXPECT_EQ(none.count(Outcome::failed), 3);
  EXPECT_NE(none.works[0].message.find("no such instruction"), std::string::npos) << none.works[0].message;
}

// Fault: one kernel that does not build, spills or does not fit takes the others with it, or is raced.
TEST(Session, MisfitsAreCountedAndTheOthersRaced) {
  World world("misfits");
  world.works.resize(1);
  const KernelConfig fallback = shape_of(default_config(AttentionSpec{}, world.context.target, world.works[0].bucket));
  // Each fault has a ring of its own; the others are good.
  const auto ring_of = [](const KernelConfig& config) { return std::pair(config.at("NUM_WARPS"), config.at("NUM_STAGES")); };
  std::set<std::pair<int, int>> rings;
  for (const KernelConfig& config : ConfigSpace::builtin().candidates(AttentionSpec{}, world.context.target, world.works[0].bucket).configs) rings.insert(ring_of(config));
  ASSERT_GE(rings.size(), 4U);
  const auto unbuilt = *rings.begin(), spilling = *std::next(rings.begin()), large = *rings.rbegin();
  world.facts = [&](const KernelConfig& config) {
    LaunchFacts made;
    if (shape_of(config) == fallback) return made;
    const auto ring = ring_of(config);
    if (ring == unbuilt) throw Error(ErrorCode::compile_failed, "out of registers");
    if (ring == spilling) made.local_bytes = 512;
    if (ring == large) made.shared_bytes = 1 << 20;
    return made;
  };
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  std::set<std::string> reasons;
  for (const auto& [reason, count] : report.works[0].rejected) {
    reasons.insert(reason.substr(0, 10));
    EXPECT_GT(count, 0);
  }
  EXPECT_TRUE(reasons.count("does not b"));
  EXPECT_TRUE(reasons.count("spills reg"));
  EXPECT_TRUE(reasons.count("needs more"));
  EXPECT_GT(world.timed.size(), 1U);
  for (const KernelConfig& config : world.timed) {
    const auto ring = ring_of(config);
    EXPECT_TRUE((ring != unbuilt && ring != spilling && ring != large) || shape_of(config) == fallback) << config.canonical_json();
  }
}

// Fault: Ctrl-C loses finished buckets, stores a half-measured one, or the next run starts from the beginning.
TEST(Session, AnInterruptKeepsWhatIsDoneAndTheNextRunGoesOn_B181) {
  World world("interrupt");
  world.stop = [&] { return world.stored().size() == 1; };
  SessionReport report = world.run();
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  EXPECT_EQ(report.count(Outcome::not_reached), 2);
  for (const WorkResult& work : report.works) EXPECT_EQ(work.message.empty(), work.outcome == Outcome::tuned);
  EXPECT_EQ(world.stored().size(), 1u);

  world.stop = nullptr;
  world.opened.clear();
  SessionReport rest = world.run();
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(rest.count(Outcome::stored_before), 1);
  EXPECT_EQ(rest.count(Outcome::tuned), 2);
  EXPECT_EQ(world.opened.size(), 2u);
}

// Fault: machines of one kind, each with noise far above the gap between the best two, ship tables that differ in every bucket. One bucket in twenty may; a merge settles it.
TEST(Session, MachinesWithNoiseFindTheSameTable_B178) {
  std::vector<std::vector<std::string>> tables;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    World world("noise " + std::to_string(seed));
    world.random.seed(seed);
    world.noise = 0.012;
    world.works.clear();
    for (int batch = 0; batch < 7; ++batch)
      for (int len = 10; len < 13; ++len) world.works.push_back({AttentionSpec{}, Bucket{batch, len}, {0}});
    // Ever fewer splits are ever slightly slower: 0.08 % each.
    world.time_us = [](const KernelConfig& config) { return (config.variant() == 1 ? 30 : 20 * (1 + 0.0008 * std::abs(std::log2(config.num_splits() / 16.0)))) + 4 * (config.at("NUM_WARPS") != 4) + 4 * (config.at("NUM_STAGES") != 4); };
    world.options.budget_s = 1e6;
    EXPECT_EQ(world.run().count(Outcome::tuned), 21);
    std::vector<std::string>& table = tables.emplace_back();
    for (const Winner& winner : world.stored()) table.push_back(winner.bucket.text() + " " + winner.config.canonical_json());
  }
  int differing = 0;
  for (const auto& table : tables)
    for (size_t i = 0; i < table.size(); ++i) differing += table[i] != tables[0][i] ? 1 : 0;
  EXPECT_LE(differing, 3) << "of 63";
}

// Fault: the budget is overrun, or late buckets get nothing since early ones take all.
TEST(Session, TheBudgetIsKeptAndSpread) {
  World world("budget");
  world.options.budget_s = 6;
  world.sample_s = 0.004;
  double before = world.now;
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 3);
  EXPECT_LE(world.now - before, 6 * 1.15);
}

// Fault: works that the budget did not reach count as done, or have no reason.
TEST(Session, WorksBeyondTheBudgetAreNotReached) {
  World world("beyond");
  world.options.budget_s = 0.5;
  world.sample_s = 0.05;
  SessionReport report = world.run();
  EXPECT_GE(report.count(Outcome::tuned), 1);
  EXPECT_GE(report.count(Outcome::not_reached), 1);
  EXPECT_NE(report.works.back().message.find("budget"), std::string::npos);
  EXPECT_EQ(static_cast<int>(world.stored().size()), report.count(Outcome::tuned));
}

// Fault: one bucket whose problem cannot be allocated ends the session.
TEST(Session, ABucketThatCannotBeOpenedFailsAlone) {
  World world("open");
  world.on_open = [](Bucket bucket) {
    if (bucket.batch() == 8) throw Error(ErrorCode::device_error, "out of memory");
  };
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 2);
  EXPECT_EQ(report.works[1].outcome, Outcome::failed);
  EXPECT_EQ(report.works[1].message, "out of memory");
}

// Fault: a candidate that crashes while it is timed is raced again by the next session.
TEST(Session, ACandidateThatCrashesIsBlocked) {
  World calm("calm");
  calm.works.resize(1);
  calm.run();
  const KernelConfig best = calm.stored().front().config;
  ASSERT_NE(best, default_config(AttentionSpec{}, calm.context.target, calm.works[0].bucket));
  World world("crash");
  world.works.resize(1);
  auto honest = world.time_us;
  world.time_us = [&](const KernelConfig& config) -> double {
    if (config == best) throw Error(ErrorCode::device_error, "illegal address");
    return honest(config);
  };
  SessionReport report = world.run();
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  EXPECT_FALSE(world.store->blocked(world.context.environment.key(), spec_key(AttentionSpec{})).empty());
  EXPECT_FALSE(report.wrong.empty());
}

}  // namespace
}  // namespace pagetune
