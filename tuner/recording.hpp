// Recorded races: every sample of a session with what it cost, one JSON line a race, and races replayed from them. With a recording a searcher or a rule of
// decision is tested on real noise, without a device and in no time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tuner/race.hpp"

namespace pagetune {

struct RecordedRace {
  std::string device;            // "NVIDIA H200"
  std::string problem;           // "32/8 heads, dim 128, page 16, bf16, nhd, 8x1024"
  MeasurePolicy policy;
  std::vector<Entrant> entrants;
  std::vector<double> admit_s;                 // of each entrant; 0: it was not admitted
  std::vector<std::vector<double>> us, seconds;  // of each entrant's samples, in the order in which they were taken
};

// The same hooks, which note what passes through them. `into` has its entrants and outlives the hooks.
RaceHooks recorded(RaceHooks, RecordedRace& into);

// A line without its end. Times are kept to six digits.
std::string to_json(const RecordedRace&);
// The races of a file's text; Error invalid_argument with the line's number and what is wrong with it.
std::vector<RecordedRace> recorded_races(const std::string& text);

// A race whose samples are those of a recording: an entrant's sample is the next of its recorded ones, round and round, from a moment that the seed chooses for all
// of them alike, so that what disturbed neighbours in time still does. The clock moves by what they cost.
struct Replay {
  const RecordedRace& race;
  uint64_t seed = 1;
  double budget_s = 1e9;
  Search search = Search::racing;
  // Entrants to race, by their index in the recording; empty: all. One that is named twice races its copy.
  std::vector<size_t> entrants;

  struct Outcome {
    RaceResult result;
    double seconds = 0;              // on the recording's clock
    size_t winner = 0;               // index in the recording
  };
  Outcome run() const;
};

// What decisions on a recording are worth, over `runs` pairs of independent replays.
struct Gates {
  int runs = 0;
  double flips = 0;       // share of pairs whose winners differ
  double regret = 0;      // mean of a winner's recorded median over the lowest, less 1
  double worst_regret = 0;
  double seconds = 0;     // mean of a race
  int timed = 0;          // mean of the entrants that got a sample, rounded
  double false_wins = 0;  // share of replays of the default against its copy that the copy wins
};
Gates gates_of(const RecordedRace&, Search, double budget_s, int runs, uint64_t seed);

// The same from one session to another: of each problem that was recorded several times, on one device or several of a kind, all pairs of recordings, each replayed on its own.
struct GatesBetween {
  int problems = 0;       // recorded more than once
  int pairs = 0;          // of recordings
  double flips = 0;       // share of pairs and runs whose winners differ, mean of the problems
  double regret = 0;      // of one recording's winner on the other's medians; recordings without that config do not count
  double worst_regret = 0;
};
GatesBetween gates_between(const std::vector<RecordedRace>&, Search, double budget_s, int runs, uint64_t seed);

}  // namespace pagetune
