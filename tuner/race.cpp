#include "tuner/race.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "codegen/launch_plan.hpp"
#include "tuner/statistics.hpp"

namespace pagetune {
namespace {

constexpr double kConfidence = 0.95;
// Of the decision against the default: up to kMostFinals looks, each a false win in 800 comparisons of equal kernels, fewer with min_gain on top.
constexpr double kWinConfidence = 0.9975;
// Of the tie band, the share within which the first in order wins. The whole of it, and noise, would lose up to 2.9 % on an H200's recordings; half of it makes more winners flip.
constexpr double kOrderShare = 0.75;
// After one sample only what is hopeless leaves: a single sample may be disturbed, not doubled.
constexpr double kHopeless = 2.0;
// A disturbed round is taken anew so often, after pauses that double; then the device counts as throttled and its times as they are.
constexpr int kRetries = 3;
// Final rounds are repeated so often, at most, where their noise hides a gain.
constexpr int kMostFinals = 4;
constexpr double kFirstPauseS = 0.2;

class Race {
 public:
  Race(const MeasurePolicy& policy, const std::vector<Entrant>& entrants, const RaceHooks& hooks, Search search)
      : policy_(policy), entrants_(entrants), hooks_(hooks), search_(search) {
    result_.lanes.resize(entrants.size());
  }

  RaceResult run() {
    if (entrants_.empty()) return std::move(result_);
    first_pass();
    if (!result_.interrupted) rounds();
    if (!result_.interrupted) decide();
    return std::move(result_);
  }

 private:
  using Indices = std::vector<size_t>;

  Lane& lane(size_t i) { return result_.lanes[i]; }

  bool measured(size_t i) const { return !result_.lanes[i].samples.empty() && result_.lanes[i].standing != Standing::failed; }

  Indices racing() const {
    Indices found;
    for (size_t i = 0; i < entrants_.size(); ++i)
      if (result_.lanes[i].standing == Standing::racing) found.push_back(i);
    return found;
  }

  bool stop_requested() {
    if (hooks_.interrupted()) result_.interrupted = true;
    return result_.interrupted;
  }

  // One sample, kept in the lane; nullopt if the entrant failed.
  std::optional<double> sample(size_t i) {
    Lane& at = lane(i);
    double before = hooks_.seconds_left();
    try {
      if (at.samples.empty()) {
        hooks_.admit(i);
        double admitted = hooks_.seconds_left();
        slowest_admit_s_ = std::max(slowest_admit_s_, before - admitted);
        before = admitted;
      }
      double us = hooks_.sample_us(i);
      if (!std::isfinite(us) || us <= 0) {
        at.standing = Standing::failed;
        at.note = fmt::format("a time of {} us cannot be", us);
        return std::nullopt;
      }
      at.samples.push_back(us);
      if (at.standing == Standing::not_reached) at.standing = Standing::racing;
      // The race's first sample raises the clocks: it says nothing about the cost of the others.
      if (warm_) slowest_sample_s_ = std::max(slowest_sample_s_, before - hooks_.seconds_left());
      warm_ = true;
      return us;
    } catch (const std::exception& failure) {
      at.standing = Standing::failed;
      at.note = failure.what();
      at.threw = true;
      return std::nullopt;
    }
  }

  std::optional<size_t> fastest(const Indices& among) const {
    std::optional<size_t> best;
    double best_us = std::numeric_limits<double>::infinity();
    for (size_t i : among) {
      if (!measured(i)) continue;
      double us = median(result_.lanes[i].samples);
      if (us < best_us) best = i, best_us = us;
    }
    return best;
  }

  void drop_slower_than(double ratio) {
    if (search_ == Search::exhaustive) return;
    Indices alive = racing();
    auto best = fastest(alive);
    if (!best) return;
    double limit = ratio * median(lane(*best).samples);
    for (size_t i : alive)
      if (median(lane(i).samples) > limit) lane(i).standing = Standing::slow;
  }

  // first_samples passes over `group`; ends early when the budget is over.
  void heat(const Indices& group) {
    for (int pass = 0; pass < policy_.first_samples; ++pass) {
      for (size_t i : group) {
        Lane& at = lane(i);
        if (at.standing != Standing::racing && at.standing != Standing::not_reached) continue;
        if (static_cast<int>(at.samples.size()) > pass) continue;
        if (hooks_.seconds_left() <= reserve_s() && !at_least_one(i)) return;
        if (stop_requested()) return;
        sample(i);
      }
      if (pass == 0) drop_slower_than(kHopeless);
    }
    drop_slower_than(policy_.drop_ratio());
  }

  // The default is measured whatever the budget; so is somebody if there is no default.
  bool at_least_one(size_t i) const {
    if (entrants_[i].is_default) return true;
    return racing().empty();
  }

  Standings standings() const {
    Standings at;
    for (const Lane& lane : result_.lanes)
      at.median_us.push_back(lane.standing == Standing::failed ? std::numeric_limits<double>::infinity()
                             : lane.samples.empty()            ? std::numeric_limits<double>::quiet_NaN()
                                                               : median(lane.samples));
    at.seconds_left = hooks_.seconds_left();
    at.sample_s = slowest_sample_s_;
    at.admit_s = slowest_admit_s_;
    at.first_samples = policy_.first_samples;
    return at;
  }

  void first_pass() {
    const auto searcher = make_searcher(search_, entrants_);
    for (;;) {
      const Indices group = searcher->next(standings());
      if (group.empty()) return;
      heat(group);
      if (result_.interrupted) return;
    }
  }

  // Time that the final rounds will take.
  double reserve_s() const { return 3.0 * policy_.final_rounds * slowest_racing_s(); }

  double slowest_racing_s() const {
    auto best = fastest(racing());
    if (!best || slowest_sample_s_ == 0) return 0;
    // A sample's cost follows its time; the slowest seen belongs to the slowest lane.
    double slowest_us = 0;
    for (const Lane& at : result_.lanes)
      for (double us : at.samples) slowest_us = std::max(slowest_us, us);
    return slowest_sample_s_ * median(result_.lanes[*best].samples) / slowest_us;
  }

  // Every participant once, starting with another one each time so that no place in the order is favoured. times[i][r] is NaN where
  // entrant i took no part in round r. A disturbed round is taken anew.
  void round(const Indices& participants, std::vector<std::vector<double>>& times) {
    double pause_s = kFirstPauseS;
    for (int attempt = 0;; ++attempt, pause_s *= 2) {
      std::vector<double> fresh(entrants_.size(), std::numeric_limits<double>::quiet_NaN());
      const size_t count = participants.size();
      for (size_t k = 0; k < count; ++k) {
        const size_t i = participants[(k + times.front().size() + 1) % count];
        if (lane(i).standing == Standing::failed) continue;
        if (const auto us = sample(i)) fresh[i] = *us;
      }
      const bool slowed = !result_.throttled && is_slowed(fresh);
      if (!slowed || attempt == kRetries || hooks_.seconds_left() <= pause_s) {
        result_.throttled |= slowed;
        for (size_t i = 0; i < times.size(); ++i) times[i].push_back(fresh[i]);
        ++result_.rounds;
        return;
      }
      ++result_.disturbed;
      for (const size_t i : participants)  // the samples of this round are nobody's
        if (std::isfinite(fresh[i])) lane(i).samples.pop_back();
      hooks_.pause(pause_s);
    }
  }

  // Did all together take longer than they used to? One of them may be disturbed; a device that slows down slows all.
  bool is_slowed(const std::vector<double>& fresh) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < fresh.size(); ++i) {
      const std::vector<double>& before = result_.lanes[i].samples;
      if (!std::isfinite(fresh[i]) || before.size() < 3) continue;
      ratios.push_back(fresh[i] / median({before.begin(), before.end() - 1}));
    }
    return ratios.size() >= 2 && median(ratios) > 1 / policy_.throttle_ratio();
  }

  static std::vector<double> paired_ratios(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (size_t r = 0; r < a.size(); ++r)
      if (std::isfinite(a[r]) && std::isfinite(b[r])) ratios.push_back(a[r] / b[r]);
    return ratios;
  }

  // The entrant with the lowest median over the interleaved rounds.
  std::optional<size_t> leader() const {
    std::optional<size_t> best;
    double best_us = std::numeric_limits<double>::infinity();
    for (size_t i : racing()) {
      std::vector<double> own = paired_own(i);
      double us = own.empty() ? median(result_.lanes[i].samples) : median(own);
      if (us < best_us) best = i, best_us = us;
    }
    return best;
  }

  std::vector<double> paired_own(size_t i) const {
    std::vector<double> own;
    for (double us : times_[i])
      if (std::isfinite(us)) own.push_back(us);
    return own;
  }

  void rounds() {
    times_.assign(entrants_.size(), {});
    int next_look = policy_.min_rounds;
    for (int done = 0; done < policy_.max_rounds; ++done) {
      Indices alive = racing();
      if (alive.size() <= 1 || hooks_.seconds_left() <= reserve_s()) return;
      if (stop_requested()) return;
      round(alive, times_);
      if (done + 1 < next_look) continue;
      // Looks grow apart: each one is a chance to drop somebody by accident.
      next_look = done + 1 + std::max(1, (done + 1) / 2);
      if (!drop_worse()) return;
    }
  }

  // Drops who is worse than the leader; false when all left are known well enough.
  bool drop_worse() {
    auto anchor = leader();
    if (!anchor) return false;
    bool open = false;
    for (size_t i : racing()) {
      if (i == *anchor) continue;
      std::vector<double> ratios = paired_ratios(times_[i], times_[*anchor]);
      if (!interval_exists(static_cast<int>(ratios.size()), kConfidence)) {
        open = true;
        continue;
      }
      Interval interval = median_interval(ratios, kConfidence);
      const bool all_stay = search_ == Search::exhaustive;
      if (!all_stay && interval.low > 1 && median(ratios) > 1 + policy_.tie_band())
        lane(i).standing = Standing::worse;
      else if (all_stay || interval.half_width() > policy_.tie_band() / 2)
        open = true;
    }
    return open;
  }

  Indices tied_with(size_t anchor) const {
    Indices tied;
    for (size_t i : racing()) {
      std::vector<double> ratios = paired_ratios(times_[i], times_[anchor]);
      double ratio = 1, half_width = 0;
      if (i != anchor) {
        if (ratios.empty()) {
          ratio = median(result_.lanes[i].samples) / median(result_.lanes[anchor].samples);
        } else {
          ratio = median(ratios);
          half_width = median_interval(ratios, kConfidence).half_width();
        }
      }
      if (ratio - 1 <= std::max(kOrderShare * policy_.tie_band(), half_width)) tied.push_back(i);
    }
    return tied;
  }

  std::optional<size_t> default_lane() const {
    for (size_t i = 0; i < entrants_.size(); ++i)
      if (entrants_[i].is_default && measured(i)) return i;
    return std::nullopt;
  }

  // Best measured lane but `pick`.
  std::optional<size_t> second_to(size_t pick) const {
    Indices others;
    for (size_t i : racing())
      if (i != pick) others.push_back(i);
    if (auto second = fastest(others)) return second;
    for (size_t i = 0; i < entrants_.size(); ++i)
      if (i != pick && measured(i)) others.push_back(i);
    return fastest(others);
  }

  // All left failed: those that were dropped for their time are candidates again.
  void revive() {
    if (!racing().empty()) return;
    for (Lane& at : result_.lanes)
      if (at.standing == Standing::slow || at.standing == Standing::worse) at.standing = Standing::racing;
  }

  void decide() {
    for (;;) {
      revive();
      auto anchor = leader();
      if (!anchor) return;
      Indices tied = tied_with(*anchor);
      const size_t pick = *std::min_element(tied.begin(), tied.end(), [&](size_t a, size_t b) { return preferred(entrants_[a], entrants_[b]); });
      Indices finalists{pick};
      const auto other = second_to(pick);
      for (auto finalist : {default_lane(), other})
        if (finalist && std::find(finalists.begin(), finalists.end(), *finalist) == finalists.end()) finalists.push_back(*finalist);

      std::vector<std::vector<double>> fresh(entrants_.size());
      for (int k = 0; k < policy_.final_rounds || (k < kMostFinals * policy_.final_rounds && undecided(finalists, fresh)); ++k) {
        if (stop_requested()) return;
        round(finalists, fresh);
      }
      if (lane(pick).standing == Standing::failed) continue;  // it left the race: decide among the others
      result_.tied = static_cast<int>(tied.size());
      finish(pick, other, fresh);
      return;
    }
  }

  // Is it not certain whether a finalist gains on the default, and there is time to find out? Asked after every final_rounds rounds: each look is a chance to be wrong.
  bool undecided(const Indices& finalists, const std::vector<std::vector<double>>& fresh) const {
    const auto fallback = default_lane();
    const size_t done = fresh[finalists.front()].size();
    if (done % static_cast<size_t>(policy_.final_rounds) != 0) return true;
    if (!fallback || hooks_.seconds_left() <= reserve_s()) return false;
    for (const size_t i : finalists) {
      if (i == *fallback || result_.lanes[i].standing == Standing::failed) continue;
      const std::vector<double> ratios = paired_ratios(fresh[i], fresh[*fallback]);
      if (!interval_exists(static_cast<int>(ratios.size()), kWinConfidence)) continue;
      const Interval interval = median_interval(ratios, kWinConfidence);
      const double gained = 1 - policy_.min_gain();
      if ((interval.low < gained && interval.high > gained) || (median(ratios) <= gained && interval.high >= 1)) return true;
    }
    return false;
  }

  static std::vector<double> finite(const std::vector<double>& row) {
    std::vector<double> values;
    for (double us : row)
      if (std::isfinite(us)) values.push_back(us);
    return values;
  }

  // How much less time a finalist takes than another in the final rounds, if that is certain and at least so much; else 0.
  double gain_of(size_t finalist, size_t over, double least, const std::vector<std::vector<double>>& fresh) const {
    if (result_.lanes[finalist].standing == Standing::failed) return 0;
    const std::vector<double> ratios = paired_ratios(fresh[finalist], fresh[over]);
    const double gain = ratios.empty() ? 0 : 1 - median(ratios);
    const bool certain = interval_exists(static_cast<int>(ratios.size()), kWinConfidence) && median_interval(ratios, kWinConfidence).high < 1;
    return certain && gain >= least ? gain : 0;
  }

  // The pick if it gains on the default. Else the other if that does, for a tie would keep a default that is as far behind the fastest as a tie may be; but where the two are equal,
  // still the pick: whether it gains 1.0 or 0.9 % is a matter of noise, its place in the order is none.
  void finish(size_t pick, std::optional<size_t> other, const std::vector<std::vector<double>>& fresh) {
    const auto fallback = default_lane();
    size_t winner = pick;
    if (!fallback) {
      result_.reason = "the default is not a valid candidate";
    } else {
      const auto gain = [&](std::optional<size_t> finalist, double least) { return finalist && finalist != fallback ? gain_of(*finalist, *fallback, least, fresh) : 0; };
      const double enough = policy_.min_gain();
      winner = *fallback;
      const auto equals_other = [&] { return gain(pick, enough / 2) > 0 && gain_of(*other, pick, enough / 2, fresh) == 0; };
      if (gain(pick, enough) > 0) winner = pick;
      else if (gain(other, enough) > 0) winner = equals_other() ? pick : *other;
      result_.reason = winner == *fallback ? "no gain over the default" : fmt::format("{:.1f} % less time than the default", 100 * gain(winner, 0));
    }
    std::vector<double> own = finite(fresh[winner]);
    Interval interval = median_interval(own, kConfidence);
    result_.winner = winner;
    result_.median_us = median(own);
    result_.ci_low_us = interval.low;
    result_.ci_high_us = interval.high;
    result_.samples = static_cast<int>(own.size());
    if (fallback) result_.default_us = median(finite(fresh[*fallback]));
    if (auto second = second_to(winner)) {
      result_.runner_up = second;
      std::vector<double> seen = finite(fresh[*second]);
      result_.runner_up_us = median(seen.empty() ? lane(*second).samples : seen);
    }
  }

  const MeasurePolicy& policy_;
  const std::vector<Entrant>& entrants_;
  const RaceHooks& hooks_;
  const Search search_;
  RaceResult result_;
  std::vector<std::vector<double>> times_;  // of the interleaved rounds, [entrant][round]
  double slowest_sample_s_ = 0, slowest_admit_s_ = 0;
  bool warm_ = false;  // a sample was taken
};

}  // namespace

const char* name_of(Standing standing) {
  switch (standing) {
    case Standing::racing: return "racing";
    case Standing::slow: return "slow";
    case Standing::worse: return "worse";
    case Standing::failed: return "failed";
    case Standing::not_reached: return "not reached";
  }
  return "?";
}

bool preferred(const Entrant& a, const Entrant& b) {
  auto order = [](const Entrant& e) { return std::make_tuple(!e.is_incumbent, spread_of(e.config), e.shared_bytes, e.config.canonical_json()); };
  return order(a) < order(b);
}

RaceResult run_race(const MeasurePolicy& policy, const std::vector<Entrant>& entrants, const RaceHooks& hooks, Search search) {
  return Race(policy, entrants, hooks, search).run();
}

}  // namespace pagetune
