#include "tuner/statistics.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tuner/budget.hpp"
#include "tuner/bandwidth.hpp"
#include "pagetune/error.hpp"
#include "tuner/policy.hpp"

namespace pagetune {
namespace {

// Fault: an off-by-one in the middle of an even sample.
TEST(Statistics, MedianOfOddAndEvenSamples) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

// Fault: ranks that do not have the coverage claimed. The ranks are those of the sign test's tables: n = 6 takes the extremes (96.9 %),
// n = 15 the 4th and 12th (96.5 %), n = 20 the 6th and 15th (95.9 %).
TEST(Statistics, IntervalRanksMatchTheTables) {
  auto ranks = [](int n, double confidence) {
    std::vector<double> sample;
    for (int i = n; i >= 1; --i) sample.push_back(i);
    Interval interval = median_interval(sample, confidence);
    return std::make_pair(static_cast<int>(interval.low), static_cast<int>(interval.high));
  };
  EXPECT_FALSE(interval_exists(5, 0.95));
  EXPECT_TRUE(interval_exists(6, 0.95));
  EXPECT_EQ(ranks(6, 0.95), std::make_pair(1, 6));
  EXPECT_EQ(ranks(15, 0.95), std::make_pair(4, 12));
  EXPECT_EQ(ranks(20, 0.95), std::make_pair(6, 15));
  EXPECT_EQ(ranks(15, 0.99), std::make_pair(3, 13));
}

// Fault: an interval that covers the true median too rarely, whatever the shape of the noise (here skewed, as of times).
TEST(Statistics, IntervalCoversTheMedianOfSkewedNoise) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> noise(1.0);
  const double truth = std::log(2.0);
  int covered = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> sample(15);
    for (double& x : sample) x = noise(random);
    Interval interval = median_interval(sample, 0.95);
    covered += interval.low <= truth && truth <= interval.high;
  }
  EXPECT_GE(covered, kTrials * 0.945);
}

// Fault: a policy whose change goes unnoticed, so that winners of another way of measuring count as current.
TEST(Policy, EveryFieldChangesTheHash) {
  MeasurePolicy base;
  EXPECT_EQ(base.hash(), MeasurePolicy{}.hash());
  EXPECT_EQ(base.hash().size(), 64u);
  ASSERT_EQ(sizeof(MeasurePolicy), MeasurePolicy::fields().size() * sizeof(int)) << "a new field needs its line in MeasurePolicy::fields()";
  for (const auto& [name, field] : MeasurePolicy::fields()) {
    MeasurePolicy changed;
    changed.*field += 1;
    EXPECT_NE(changed.hash(), base.hash()) << name;
  }
}

// Fault: a policy that lacks a field, or whose number does not fit and is cut, is taken for another; malformed text ends the program.
TEST(Policy, OnlyItsOwnTextIsTaken) {
  const std::string good = MeasurePolicy{}.canonical_json();
  EXPECT_EQ(MeasurePolicy::from_json(good), MeasurePolicy{});
  const auto with_eager = [&](const std::string& value) {
    std::string text = good;
    return text.replace(text.find("\"eager\":0"), 9, "\"eager\":" + value);
  };
  EXPECT_EQ(MeasurePolicy::from_json(with_eager("1")).eager, 1);
  for (const std::string& bad : {std::string(), std::string("[]"), std::string("{}"), good.substr(1), with_eager("4294967296"), with_eager("1e300"), with_eager("0.5"), with_eager("true"),
                                 with_eager("0,\"eager\":0"), with_eager("0,\"unknown\":0")}) {
    try {
      MeasurePolicy::from_json(bad);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << bad;
      EXPECT_NE(std::string(error.what()).find("the measure policy"), std::string::npos) << error.what();
    }
  }
}

// Fault: an odd chain leaves q in the buffer that the first launch does not read, so a replay is no longer one dependent chain.
TEST(Policy, ChainsAreEven) {
  for (Backend backend : {Backend::cuda, Backend::cpu})
    for (int sets : {1, 2, 7, 60, 61, 5000}) EXPECT_EQ(MeasurePolicy::for_backend(backend).launches_for(sets) % 2, 0) << sets;
}

// Fault: a recording shorter than the rotation finds its own pages in the L2 when it is replayed.
TEST(Policy, ARecordingCoversTheRotation) {
  const MeasurePolicy policy;
  EXPECT_EQ(policy.launches_for(1), policy.launches_per_sample);
  EXPECT_GE(policy.launches_for(61), 61);
  EXPECT_EQ(policy.launches_for(5000), policy.most_launches);
}

// Fault: a budget that gives what a work left over to nobody, or more than there is.
TEST(Budget, SpreadsByWeightAndPassesOnWhatIsLeft) {
  double now = 100;
  Budget budget(60, {1, 2, 3}, [&] { return now; });
  EXPECT_DOUBLE_EQ(budget.share_s(0), 10);
  now += 4;  // the first took 4 of its 10 seconds
  EXPECT_DOUBLE_EQ(budget.share_s(1), 56 * 2 / 5.0);
  now += 50;
  EXPECT_DOUBLE_EQ(budget.share_s(2), 6);
  now += 10;
  EXPECT_LT(budget.left_s(), 0);
}

// Fault: large problems get as little time as small ones and end with a handful of samples.
TEST(Budget, WeightFollowsTheTimeOfASample) {
  double small = sample_weight(1e6, 20, 4.55e6), large = sample_weight(8.6e9, 20, 4.55e6);
  EXPECT_GT(large / small, 20);
  EXPECT_GT(sample_weight(1e9, 20, 0), large) << "unknown bandwidth counts as a slow machine";
}

// Fault: "3m" read as 3 seconds, or nonsense taken for a number.
TEST(Budget, DurationsParse) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("3m"), 180);
  EXPECT_EQ(parse_duration("1h30m"), 5400);
  EXPECT_EQ(parse_duration("0.5h"), 1800);
  for (const char* bad : {"", "m", "3x", "-3m", " 3", "0", "0x10", "1e3", "inf", "nan", "3 m", "1..5s", "99999999h"})
    EXPECT_THROW(parse_duration(bad), Error) << bad;
  EXPECT_EQ(duration_text(5.04), "5.0 s");
  EXPECT_EQ(duration_text(125), "2m 05s");
  EXPECT_EQ(duration_text(3720), "1h 02m");
}

// Fault: a near relative's name taken for the device that was measured.
TEST(Bandwidth, OnlyTheWholeNameCounts) {
  EXPECT_GT(read_bandwidth("NVIDIA H200"), 4e6);
  for (const char* other : {"NVIDIA H200 NVL", "NVIDIA H20", "NVIDIA GH200 480GB", "H200", ""}) EXPECT_EQ(read_bandwidth(other), 0) << other;
  EXPECT_DOUBLE_EQ(floor_us("NVIDIA H200", 4'550'000), 1.0);
  EXPECT_EQ(floor_us("somebody's CPU", 1000), 0);
}

}  // namespace
}  // namespace pagetune
