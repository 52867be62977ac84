// Searchers and the model behind one of them, on made-up spaces.
#include "tuner/search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "pagetune/error.hpp"
#include "tuner/race.hpp"
#include "tuner/surrogate.hpp"

namespace pagetune {
namespace {

// Times with a best split count that depends on the shape, a preferred merge, and kinks.
double made_up_us(const KernelConfig& config) {
  const double splits = std::log2(config.num_splits()), warps = std::log2(config.at("NUM_WARPS")), stages = std::log2(config.at("NUM_STAGES"));
  double us = 20 + 2.0 * std::pow(splits - 3 - 0.5 * (warps - 2), 2) + 1.5 * std::abs(warps - 2) + std::pow(stages - 3, 2);
  if (config.at("MERGE") == 1) us *= 1.1;
  if (config.at("NUM_STAGES") * config.at("NUM_WARPS") > 64) us *= 1.3;
  return us;
}

std::vector<Entrant> made_up_space() {
  std::vector<Entrant> entrants;
  for (const int merge : {0, 1})
    for (const int warps : {1, 2, 4, 8})
      for (const int stages : {2, 4, 8, 12, 16})
        for (const int splits : {2, 4, 8, 16, 32, 64}) {
          Entrant entrant;
          entrant.config = KernelConfig({{"VARIANT", 2}, {"MERGE", merge}, {"NUM_WARPS", warps}, {"NUM_STAGES", stages}, {"NUM_SPLITS", splits}});
          entrants.push_back(entrant);
        }
  entrants[100].is_default = true;
  entrants[17].is_incumbent = true;
  return entrants;
}

struct Raced {
  RaceResult result;
  int timed = 0;
  double regret = 0;
};
Raced race_of(const std::vector<Entrant>& entrants, Search search, uint64_t seed, double noise = 0.01) {
  std::mt19937_64 random(seed);
  double clock_s = 0;
  RaceHooks hooks;
  hooks.admit = [](size_t) {};
  hooks.sample_us = [&](size_t i) {
    clock_s += 0.001;
    return made_up_us(entrants[i].config) * std::exp(noise * std::normal_distribution<double>()(random));
  };
  hooks.seconds_left = [&] { return 1e6 - clock_s; };
  hooks.interrupted = [] { return false; };
  Raced made{run_race(MeasurePolicy{}, entrants, hooks, search)};
  double best = 1e9;
  for (const Entrant& entrant : entrants) best = std::min(best, made_up_us(entrant.config));
  for (const Lane& lane : made.result.lanes) made.timed += lane.samples.empty() ? 0 : 1;
  made.regret = made_up_us(entrants[made.result.winner.value()].config) / best - 1;
  return made;
}

// Fault: the model's search asks for nearly everybody, or for too few to be near the best.
TEST(Search, TheModelFindsAGoodOneAmongFewTimed) {
  const std::vector<Entrant> entrants = made_up_space();
  int beyond = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Raced made = race_of(entrants, Search::model, seed);
    EXPECT_LE(made.timed, static_cast<int>(entrants.size()) / 3) << "seed " << seed;
    beyond += made.regret > 0.03 ? 1 : 0;
  }
  EXPECT_LE(beyond, 1);
}

// Fault: a searcher forgets the default or the incumbent, so that a winner has nothing to be compared with, or flaps.
TEST(Search, EverySearcherAsksForTheDefaultFirstAndForTheIncumbent) {
  const std::vector<Entrant> entrants = made_up_space();
  for (const Search search : {Search::racing, Search::exhaustive, Search::model}) {
    const auto searcher = make_searcher(search, entrants);
    Standings at;
    at.median_us.assign(entrants.size(), std::nan(""));
    at.seconds_left = 1;
    at.sample_s = 0.01;
    at.first_samples = 3;
    std::vector<size_t> asked;
    for (std::vector<size_t> group; !(group = searcher->next(at)).empty();) {
      asked.insert(asked.end(), group.begin(), group.end());
      for (const size_t i : group) at.median_us[i] = made_up_us(entrants[i].config);
      at.seconds_left -= 0.03 * static_cast<double>(group.size());
    }
    ASSERT_FALSE(asked.empty());
    EXPECT_EQ(asked.front(), 100u) << name_of(search);
    EXPECT_TRUE(std::set<size_t>(asked.begin(), asked.end()).contains(17)) << name_of(search);
  }
}

// Fault: candidates that failed or an empty field end the search in a crash, or a failed one is asked for again and again.
TEST(Search, FailedCandidatesAndNoneAtAllAreNoTrouble) {
  for (const Search search : {Search::racing, Search::exhaustive, Search::model}) {
    EXPECT_TRUE(make_searcher(search, {})->next({}).empty());
    std::vector<Entrant> entrants = made_up_space();
    entrants.resize(40);
    const auto searcher = make_searcher(search, entrants);
    Standings at;
    at.median_us.assign(entrants.size(), std::nan(""));
    at.seconds_left = 1e6;
    at.first_samples = 3;
    int groups = 0;
    for (std::vector<size_t> group; !(group = searcher->next(at)).empty(); ++groups)
      for (const size_t i : group) at.median_us[i] = std::numeric_limits<double>::infinity();
    EXPECT_LE(groups, 40) << name_of(search);
  }
}

TEST(Search, NamesGoBothWays) {
  for (const Search search : {Search::racing, Search::exhaustive, Search::model}) EXPECT_EQ(search_from(name_of(search)), search);
  EXPECT_THROW(search_from("genetic"), Error);
}

// Fault: the model does not pass near what it was told, is as sure far away as near, or expects gains where it has measured.
TEST(Surrogate, KnowsWhatItWasToldAndDoubtsTheRest) {
  std::vector<KernelConfig> configs;
  for (const Entrant& entrant : made_up_space()) configs.push_back(entrant.config);
  Surrogate surrogate(configs);
  std::vector<size_t> known;
  std::vector<double> us;
  std::mt19937_64 random(5);
  std::vector<bool> told(configs.size());
  for (size_t i = 0; i < configs.size(); ++i) {
    if (random() % 3 != 0) continue;
    told[i] = true;
    known.push_back(i);
    us.push_back(made_up_us(configs[i]));
  }
  surrogate.fit(known, us);
  const double best = std::log(*std::min_element(us.begin(), us.end()));
  double error = 0;
  for (size_t i = 0; i < configs.size(); ++i) {
    const Surrogate::Prediction at = surrogate.predict(i);
    const double off = std::abs(at.log_us - std::log(made_up_us(configs[i])));
    if (told[i]) {
      EXPECT_LT(off, 0.03);
      EXPECT_LT(at.deviation, 0.03);
      EXPECT_LT(surrogate.expected_gain(i, best), 0.01);
    } else {
      error += off / static_cast<double>(configs.size());
    }
  }
  EXPECT_LT(error, 0.06) << "6 % on average where nothing was measured";

  surrogate.fit({0}, {10});
  EXPECT_NEAR(surrogate.predict(0).log_us, std::log(10), 0.02);
  EXPECT_EQ(surrogate.distance(5, 5), 0);
}

}  // namespace
}  // namespace pagetune
