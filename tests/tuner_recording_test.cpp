// Recorded races, replays of them, and what the tuner's decisions are worth on recorded noise.
#include "tuner/recording.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>

#include "codegen/default_config.hpp"
#include "pagetune/error.hpp"
#include "tuner/statistics.hpp"

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
  std::string negative = line, uneven = line, cut = line, before = line;
  negative.replace(negative.find("[1.0,2.0]"), 9, "[1.0,-2.]");
  uneven.replace(uneven.find("[1.0,2.0]"), 9, "[1.0]    ");
  cut.replace(cut.find("\"shared_bytes\":1024"), 19, "\"shared_bytes\":4294968320");
  before.replace(before.find("\"admit_s\":0.1"), 13, "\"admit_s\":-0.1");
  const std::string deep = "{\"policy\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";  // which copies and text of it walk recursively
  for (const std::string& bad : {line.substr(0, line.size() / 2), std::string("{}"), std::string("[1]"), negative, uneven, cut, before, deep}) {
    try {
      recorded_races(line + "\n" + bad);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("line 2 is no recorded race"), std::string::npos) << error.what();
    }
  }
}

// Fault: a time too small for a normal number cannot be written.
TEST(Recording, TheSmallestTimesAreKept) {
  RecordedRace race = made_up_race();
  race.admit_s = {5e-324, 2.3e-308, 0};
  race.us = race.seconds = {{1e-310}, {}, {1.7976931348623157e308}};
  const RecordedRace read = recorded_races(to_json(race)).at(0);
  EXPECT_EQ(read.admit_s, race.admit_s);
  EXPECT_EQ(read.us[0], race.us[0]);
  EXPECT_EQ(read.us[2][0], 1.79769e308);
}

// Three entrants of 10, 8 and 7 us, samples with 1 % of noise that cost half a second each.
RecordedRace race_with_noise() {
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
  return race;
}

// Fault: a replay invents times, or its clock does not move.
TEST(Recording, AReplayTakesRecordedTimesAndTheirCost) {
  const RecordedRace race = race_with_noise();
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

std::vector<RecordedRace> recording(const std::string& name) {
  const std::string path = PAGETUNE_RECORDINGS "/" + name;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return recorded_races(text.str());
}

// What the tuner's decisions are worth, on noise that was recorded with every candidate measured to the end (`pagetune tune --search exhaustive --record`).
// Faults: tables that differ between two sessions; winners that are slower than they need be; a kernel that beats its own copy. The recordings are of two cores
// of a CPU, alone and with other programs, and of H200s (49 races of buckets of Llama-3.1-8B, the default that of today).
TEST(Gates, HoldOnRecordedNoise) {
  struct Limits {
    const char* file;
    double flips, regret;
  };
  for (const Limits& limits : {Limits{"cpu.jsonl", 0.15, 0.025}, Limits{"cpu_shared.jsonl", 0.20, 0.03}, Limits{"h200.jsonl", 0.05, 0.005}}) {
    const std::vector<RecordedRace> races = recording(limits.file);
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

// Faults: rules that one session's noise satisfies and another's does not (pages lie elsewhere, another GPU of the kind): ten buckets on four H200s.
TEST(Gates, HoldFromOneSessionToAnother) {
  const std::vector<RecordedRace> races = recording("h200.jsonl");
  for (const Search search : {Search::racing, Search::model}) {
    const GatesBetween gates = gates_between(races, search, 1e9, 50, 1);
    EXPECT_EQ(gates.problems, 10);
    EXPECT_EQ(gates.pairs, 60);
    EXPECT_LE(gates.flips, 0.05) << name_of(search);
    EXPECT_LE(gates.regret, 0.005) << name_of(search);
    EXPECT_LE(gates.worst_regret, 0.02) << name_of(search);
  }
}

// A table that is sure in each session, and different: what one recording alone cannot show.
TEST(Gates, CountFlipsBetweenRecordings) {
  RecordedRace race = race_with_noise();
  RecordedRace other = race;
  std::swap(other.us[1], other.us[2]);
  RecordedRace elsewhere = other;
  elsewhere.device = "another";
  const GatesBetween between = gates_between({race, other, elsewhere}, Search::racing, 1e9, 4, 1);
  EXPECT_EQ(between.problems, 1);
  EXPECT_EQ(between.pairs, 1);
  EXPECT_DOUBLE_EQ(between.flips, 1);
  EXPECT_NEAR(between.regret, between.worst_regret, 1e-12) << "both winners lose as much in the other";
  EXPECT_GT(between.regret, 0.05);
  EXPECT_DOUBLE_EQ(gates_of(race, Search::racing, 1e9, 4, 1).flips, 0);
  EXPECT_EQ(gates_between({race, elsewhere}, Search::racing, 1e9, 4, 1).pairs, 0);
}

// Faults: a default that is far behind what the tuner would find, on the very buckets where all were measured to the end (targets: each within 15 %, 1 % in the mean); recordings whose
// default is no longer the one that engines get, so that the gates above say nothing about it.
TEST(Recordings, TodaysDefaultIsNearTheFastest) {
  const Target target = Target::by_name("sm_90a");
  double sum = 0;
  int count = 0;
  for (const char* file : {"h200.jsonl", "h200_shapes.jsonl"}) {
    for (const RecordedRace& race : recording(file)) {
      AttentionSpec spec;
      int batch = 0, len = 0;
      ASSERT_EQ(std::sscanf(race.problem.c_str(), "%d/%d heads, dim %d, page %d, bf16, nhd, %dx%d", &spec.q_heads, &spec.kv_heads, &spec.head_dim_k, &spec.page_size, &batch, &len), 6) << race.problem;
      spec.head_dim_v = spec.head_dim_k;
      const KernelConfig config = default_config(spec, target, bucket_of(batch, len, int64_t{batch} * len));
      double ours = 0, best = INFINITY;
      for (size_t i = 0; i < race.entrants.size(); ++i) {
        if (race.us[i].empty()) continue;
        const double us = median(race.us[i]);
        best = std::min(best, us);
        EXPECT_EQ(race.entrants[i].is_default, race.entrants[i].config == config) << file << ", " << race.problem << ": the default is now " << config.canonical_json() << "; move \"default\" there";
        if (race.entrants[i].config == config) ours = us;
      }
      EXPECT_GT(ours, 0) << race.problem << ": the default is none of the candidates";
      EXPECT_LE(ours / best, 1.15) << race.problem;
      sum += ours / best - 1;
      ++count;
    }
  }
  EXPECT_EQ(count, 84);
  EXPECT_LE(sum / count, 0.01);
}

}  // namespace
}  // namespace pagetune
