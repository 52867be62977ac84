// Recorded races, replays of them, and what the tuner's decisions are worth on recorded noise.
#include "tuner/recording.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

KernelConfig config(int splits) { return KernelConfig({{"VARIANT", splits == 1 ? 1 : 2}, {"NUM_SPLITS", splits}}); }

RecordedRace made_up_race() {
  RecordedRace race;
  race.device = "a device with \"quotes\"";
  race.problem = "32/8 heads, 8x1024";
  for (const int splits : {1, 2, 4}) {
    Entrant entrant;
    entrant.config = config(splits);
    entrant.shared_bytes = 1024 * splits;
    entrant.is_default = splits == 1;
    race.entrants.push_back(entrant);
  }
  return race;
}

// Fault: what was recorded is not what happened: a sample missing, under another's name, or of another cost.
TEST(Recording, NotesEverySampleAndComesBackFromItsLine) {
  RecordedRace race = made_up_race();
  double clock_s = 0;
  std::vector<double> given;
  RaceHooks hooks;
  hooks.admit = [&](size_t i) { clock_s += 0.25 * static_cast<double>(i + 1); };
  hooks.sample_us = [&](size_t i) {
    clock_s += 0.5;
    given.push_back(10.0 - static_cast<double>(i) + 0.001 * static_cast<double>(given.size()));
    return given.back();
  };
  hooks.seconds_left = [&] { return 1e6 - clock_s; };
  hooks.interrupted = [] { return false; };
  const RaceResult result = run_race(race.policy, race.entrants, recorded(hooks, race));
  size_t count = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(race.us[i], result.lanes[i].samples);
    EXPECT_NEAR(race.admit_s[i], 0.25 * static_cast<double>(i + 1), 1e-6);
    for (const double s : race.seconds[i]) EXPECT_NEAR(s, 0.5, 1e-6);
    count += race.us[i].size();
  }
  EXPECT_EQ(count, given.size());

  const std::string line = to_json(race);
  const std::vector<RecordedRace> read = recorded_races(line + "\n\n" + line + "\n");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(to_json(read[1]), line);
  EXPECT_EQ(read[0].policy, race.policy);
  EXPECT_EQ(read[0].entrants[2].config, race.entrants[2].config);
  EXPECT_TRUE(read[0].entrants[0].is_default);
  for (size_t k = 0; k < race.us[0].size(); ++k) EXPECT_NEAR(read[0].us[0][k] / race.us[0][k], 1, 1e-5);
}

// Fault: a damaged recording is replayed as far as it goes, or ends the program.
TEST(Recording, DamagedLinesAreNamed) {
  RecordedRace race = made_up_race();
  race.admit_s = {0.1, 0.1, 0.1};
  race.us = race.seconds = {{1, 2}, {1}, {}};
  const std::string line = to_json(race);
  std::string negative = line, uneven = line;
  negative.replace(negative.find("[1.0,2.0]"), 9, "[1.0,-2.]");
  uneven.replace(uneven.find("[1.0,2.0]"), 9, "[1.0]    ");
  for (const std::string& bad : {line.substr(0, line.size() / 2), std::string("{}"), std::string("[1]"), negative, uneven}) {
    try {
      recorded_races(line + "\n" + bad);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("line 2 is no recorded race"), std::string::npos) << error.what();
    }
  }
}

// Fault: a replay invents times, or its clock does not move.
TEST(Recording, AReplayTakesRecordedTimesAndTheirCost) {
  RecordedRace race = made_up_race();
  race.admit_s = {1, 1, 1};
  std::mt19937_64 random(1);
  for (const double truth : {10.0, 8.0, 7.0}) {
    race.us.emplace_back();
    race.seconds.emplace_back();
    for (int k = 0; k < 50; ++k) {
      race.us.back().push_back(truth * (1 + 0.01 * std::normal_distribution<double>()(random)));
      race.seconds.back().push_back(0.5);
    }
  }
  const auto outcome = Replay{race, 7}.run();
  EXPECT_EQ(outcome.winner, 2u);
  size_t samples = 0;
  for (size_t i = 0; i < 3; ++i)
    for (const double us : outcome.result.lanes[i].samples) {
      ++samples;
      EXPECT_NE(std::find(race.us[i].begin(), race.us[i].end(), us), race.us[i].end());
    }
  EXPECT_NEAR(outcome.seconds, 3 + 0.5 * static_cast<double>(samples), 1e-9);

  const auto copies = Replay{.race = race, .seed = 7, .entrants = {1, 1}}.run();
  EXPECT_EQ(copies.result.lanes.size(), 2u);
  EXPECT_EQ(copies.winner, 1u);
}

// What the tuner's decisions are worth, on noise that was recorded with every candidate measured to the end (`pagetune tune --search exhaustive --record`).
// Faults: tables that differ between two sessions; winners that are slower than they need be; a kernel that beats its own copy. The recordings are of two cores
// of a CPU, alone and with other programs, and of H200s (39 races of buckets of Llama-3.1-8B).
TEST(Gates, HoldOnRecordedNoise) {
  struct Limits {
    const char* file;
    double flips, regret;
  };
  for (const Limits& limits : {Limits{"cpu.jsonl", 0.15, 0.025}, Limits{"cpu_shared.jsonl", 0.20, 0.03}, Limits{"h200.jsonl", 0.05, 0.005}}) {
    const std::string path = std::string(PAGETUNE_RECORDINGS "/") + limits.file;
    std::ifstream file(path);
    ASSERT_TRUE(file) << path;
    std::stringstream text;
    text << file.rdbuf();
    const std::vector<RecordedRace> races = recorded_races(text.str());
    ASSERT_GE(races.size(), 4u);
    for (const Search search : {Search::racing, Search::model}) {
      double flips = 0, regret = 0, false_wins = 0;
      for (const RecordedRace& race : races) {
        const Gates gates = gates_of(race, search, 1e9, 100, 1);
        flips += gates.flips / static_cast<double>(races.size());
        regret += gates.regret / static_cast<double>(races.size());
        false_wins = std::max(false_wins, gates.false_wins);
      }
      EXPECT_LE(flips, limits.flips) << limits.file << ", " << name_of(search);
      EXPECT_LE(regret, limits.regret) << limits.file << ", " << name_of(search);
      EXPECT_LE(false_wins, 0.01) << limits.file << ", " << name_of(search);
    }
  }
}

}  // namespace
}  // namespace pagetune
