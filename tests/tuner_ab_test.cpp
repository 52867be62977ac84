// Comparing two configs on synthetic times: no device, no real time.
#include "tuner/ab.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Two configs with true times, log-normal noise of each sample, and a clock that the samples move.
struct Pair {
  double a_us = 10, b_us = 10;
  double noise = 0.02;
  double first_us = 0;  // what the first sample of a round takes beside its own time
  double drift = 0;     // of both, for each sample: a clock that slows down
  double budget_s = 20;
  uint64_t seed = 1;
  int stop_after = 0;  // rounds; 0: never
  MeasurePolicy policy;

  AbResult run() {
    std::mt19937_64 random(seed);
    int samples = 0;
    const auto sample = [&](double us) {
      const double first = samples % 2 == 0 ? first_us : 0;
      return (us + first) * (1 + drift * samples++) * std::exp(noise * std::normal_distribution<double>()(random));
    };
    AbHooks hooks;
    hooks.a_us = [&] { return sample(a_us); };
    hooks.b_us = [&] { return sample(b_us); };
    hooks.seconds_left = [&] { return budget_s - 0.005 * samples; };
    hooks.interrupted = [&] { return stop_after > 0 && samples >= 2 * stop_after; };
    return run_ab(policy, hooks);
  }
};

// Fault: one config against itself "is faster", since an interval that is looked at often enough lies on one side now and then.
TEST(Ab, AConfigIsRarelyFasterThanItself) {
  for (const double noise : {0.005, 0.02, 0.1, 0.5}) {
    int wrong = 0, same = 0;
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      Pair pair;
      pair.noise = noise;
      pair.seed = seed;
      const AbVerdict verdict = pair.run().verdict;
      wrong += verdict == AbVerdict::a_faster || verdict == AbVerdict::b_faster;
      same += verdict == AbVerdict::same;
    }
    EXPECT_LT(wrong, 10) << "noise " << noise;
    if (noise <= 0.02) {
      EXPECT_EQ(same, 1000) << "noise " << noise;
    }
  }
}

// Fault: a real difference is called none, or is never found, or is the other one's.
TEST(Ab, FivePercentUnderTwoPercentNoiseAreFound) {
  int found = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Pair pair;
    pair.seed = seed;
    pair.b_us = pair.a_us / 1.05;
    const AbResult result = pair.run();
    ASSERT_NE(result.verdict, AbVerdict::a_faster) << seed;
    ASSERT_NE(result.verdict, AbVerdict::same) << seed;
    found += result.verdict == AbVerdict::b_faster;
    EXPECT_LT(result.interval.high, 1 / 1.02);
  }
  EXPECT_GE(found, 999);
  Pair other;
  other.a_us = other.b_us / 1.05;
  EXPECT_EQ(other.run().verdict, AbVerdict::a_faster);
}

// Fault: what is common to both samples of a round, as a clock that slows down, counts as a difference; or their order does.
TEST(Ab, NeitherDriftNorOrderIsADifference) {
  Pair drifting;
  drifting.drift = 1e-3;
  EXPECT_EQ(drifting.run().verdict, AbVerdict::same);
  Pair ordered;
  ordered.noise = 0.001;
  ordered.first_us = 0.5;  // 5 % of the first sample, whoever has it
  const AbVerdict verdict = ordered.run().verdict;
  EXPECT_TRUE(verdict == AbVerdict::undecided || verdict == AbVerdict::same) << name_of(verdict);
}

// Fault: a verdict where there is none yet, a budget that is overrun, or an interrupt that waits for it.
TEST(Ab, EndsWithTheBudgetOrOnRequest) {
  Pair noisy;
  noisy.noise = 0.3;
  noisy.budget_s = 0.5;
  const AbResult result = noisy.run();
  EXPECT_EQ(result.verdict, AbVerdict::undecided);
  EXPECT_EQ(result.rounds, 50);
  EXPECT_EQ(sentence(result, noisy.policy, 20).rfind("not decided within 20 s", 0), 0U) << sentence(result, noisy.policy, 20);
  noisy.budget_s = -1;
  EXPECT_EQ(noisy.run().rounds, 1) << "something is measured whatever the budget";
  noisy.budget_s = 20;
  noisy.stop_after = 7;
  const AbResult stopped = noisy.run();
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.rounds, 7);
  EXPECT_EQ(sentence(stopped, noisy.policy, 20), "not decided: stopped after 7 rounds");
}

// Fault: the ratio's direction is turned round on its way into words, or its interval.
TEST(Ab, SentencesSayWhoIsFasterByHowMuch) {
  AbResult result;
  result.ratio = 1 / 1.032;
  result.interval = {1 / 1.036, 1 / 1.029};
  result.verdict = AbVerdict::b_faster;
  EXPECT_EQ(sentence(result, {}, 20), "B is 3.2 % faster (95 % interval 2.9 to 3.6 %)");
  result.ratio = 1.5;
  result.interval = {1.4, 1.625};
  result.verdict = AbVerdict::a_faster;
  EXPECT_EQ(sentence(result, {}, 20), "A is 50.0 % faster (95 % interval 40.0 to 62.5 %)");
  result.verdict = AbVerdict::same;
  EXPECT_EQ(sentence(result, {}, 20), "no difference: within 2 %");
}

// A workbench that counts what it is asked.
struct CountingBench final : Workbench {
  std::set<KernelConfig> wrong;
  int timed = 0, opened = 0, verified = 0;
  double now_s = 0;
  LaunchFacts build(const KernelConfig&) override {
    now_s += 100;  // compiling is no part of the budget
    return {};
  }
  Verdict verify(const KernelConfig& config) override {
    ++verified;
    if (wrong.contains(config)) return {false, 0.5, "half of the output is missing"};
    return {true, 1e-3, ""};
  }
  void open(Bucket, const std::vector<KernelConfig>&) override { ++opened; }
  void close() override { --opened; }
  double sample_us(const KernelConfig& config) override {
    ++timed;
    now_s += 0.01;
    return config.variant() == 1 ? 10 : 8;
  }
};

// Fault: a wrong config is timed and found fast; it is not said which one is wrong; a compile eats the budget.
TEST(Ab, AWrongConfigIsNamedAndNeverTimed) {
  const KernelConfig one({{"VARIANT", 1}}), two({{"VARIANT", 2}});
  const auto run = [&](CountingBench& bench) { return compare(bench, {3, 12}, one, two, {}, 1, 20, [&] { return bench.now_s; }, [] { return false; }).at(0); };
  CountingBench right;
  const AbResult good = run(right);
  EXPECT_EQ(good.verdict, AbVerdict::b_faster);
  EXPECT_EQ(sentence(good, {}, 20), "B is 25.0 % faster (95 % interval 25.0 to 25.0 %)");
  EXPECT_EQ(right.opened, 0);
  CountingBench broken;
  broken.wrong = {two};
  const AbResult bad = run(broken);
  EXPECT_EQ(bad.verdict, AbVerdict::wrong);
  EXPECT_EQ(broken.timed, 0);
  EXPECT_EQ(sentence(bad, {}, 20), "B gives a wrong result: half of the output is missing");
  broken.wrong = {one, two};
  EXPECT_NE(sentence(run(broken), {}, 20).find("A gives a wrong result: half of the output is missing; B gives"), std::string::npos);
}

// Faults: a repeated comparison verifies or opens its problem each time, shares one budget among all times, or goes on after an interrupt.
TEST(Ab, RepeatsOnOneProblem) {
  const KernelConfig one({{"VARIANT", 1}}), two({{"VARIANT", 2}});
  const auto run = [&](CountingBench& bench, int stop_after) {
    return compare(bench, {3, 12}, one, two, {}, 5, 0.005, [&] { return bench.now_s; }, [&] { return bench.timed >= stop_after; });
  };
  CountingBench bench;
  const std::vector<AbResult> results = run(bench, 1000);
  ASSERT_EQ(results.size(), 5u);
  for (const AbResult& result : results) {
    EXPECT_EQ(result.rounds, 1) << "a budget of half a sample";
    EXPECT_TRUE(result.a_check.ok && result.b_check.ok);
  }
  EXPECT_EQ(bench.timed, 10);
  EXPECT_EQ(bench.verified, 2);
  EXPECT_EQ(bench.opened, 0);
  CountingBench stopped;
  EXPECT_EQ(run(stopped, 5).size(), 3u);
}

// Fault: a clock that jumped gives a ratio of nonsense.
TEST(Ab, ATimeThatCannotBeIsAnError) {
  for (const double us : {0.0, -1.0, std::nan("")}) {
    Pair pair;
    pair.b_us = us;
    EXPECT_THROW(pair.run(), Error) << us;
  }
}

}  // namespace
}  // namespace pagetune
