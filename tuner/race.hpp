// The race that picks a bucket's winner. Pure: times, the clock and the stop request come in as callbacks.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/config.hpp"
#include "tuner/policy.hpp"
#include "tuner/search.hpp"

namespace pagetune {

struct RaceHooks {
  // Called once before an entrant's first sample; an exception takes the entrant out. This is where a candidate is verified: a wrong one is
  // never timed. Its time is no part of a sample's cost.
  std::function<void(size_t entrant)> admit;
  // One sample of an entrant in microseconds per launch. An exception, a value that is not finite or not positive takes the entrant out.
  std::function<double(size_t entrant)> sample_us;
  std::function<double()> seconds_left;  // of the bucket's budget
  std::function<bool()> interrupted;     // asked between rounds: the user wants to stop
  std::function<void(double)> pause = [](double) {};  // waits so many seconds: the device runs slower than it did
};

enum class Standing : unsigned char {
  racing,      // in the race to its end
  slow,        // dropped after the first samples
  worse,       // dropped when its interval lay above the best's
  failed,      // threw or gave a time that cannot be
  not_reached  // the budget did not allow a sample
};
const char* name_of(Standing);

struct Lane {
  Standing standing = Standing::not_reached;
  std::vector<double> samples;  // microseconds
  std::string note;             // why it failed
  bool threw = false;           // it failed with an exception, not with a time
};

struct RaceResult {
  std::optional<size_t> winner;  // absent: interrupted, or no entrant has a time (see lanes)
  bool interrupted = false;
  double median_us = 0, ci_low_us = 0, ci_high_us = 0;  // from the final rounds only: free of the winner's curse
  int samples = 0;
  double default_us = 0;         // 0: the default is not among the entrants or failed
  std::optional<size_t> runner_up;
  double runner_up_us = 0;
  int tied = 0;
  int rounds = 0;                // interleaved and final ones that count
  int disturbed = 0;             // rounds that were thrown away: the device had slowed down
  bool throttled = false;        // it stayed slow: the times are of a device that does not run as it did at first
  std::string reason;
  std::vector<Lane> lanes;       // one per entrant
};

// 1. First samples of whom the searcher asks for. Those slower than drop_ratio x the best leave.
// 2. Interleaved rounds. A candidate leaves when its paired ratio to the best is above the tie band and the ratio's 95 % interval lies
//    above 1. Ends with one left, all left known to half a tie band, max_rounds or the budget. A round in which those who were in the one before took
//    1 / throttle_ratio as long as they used to, all together, is thrown away and, after a pause, taken anew.
// 3. Among those within three quarters of the band, or noise: the incumbent, then fewest splits, least shared memory, smallest canonical JSON.
// 4. Final rounds of that pick, the default and the best other, and as many again, up to three times, while it is not certain whether one gains. The pick wins if it beats
//    the default by min_gain with a 99.75 % interval that excludes 0, else the other if that does, but the pick where the two are equal, else the default.
// With Search::exhaustive nobody leaves for being slow, and all take all rounds.
RaceResult run_race(const MeasurePolicy&, const std::vector<Entrant>&, const RaceHooks&, Search = Search::racing);

// The order among tied entrants, best first.
bool preferred(const Entrant& a, const Entrant& b);

}  // namespace pagetune
