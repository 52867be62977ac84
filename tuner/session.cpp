#include "tuner/session.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "cache_db/blocklist.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"
#include "tuner/bandwidth.hpp"
#include "tuner/budget.hpp"
#include "tuner/candidates.hpp"
#include "runtime/parallel.hpp"
#include "tuner/race.hpp"
#include "tuner/worker_process.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune {
namespace {

// Bytes of stack frame per thread that a candidate may have: what spills more than a few registers is never the fastest.
constexpr int kSpillBytes = 64;
// Share of what is left of the budget after which no further compile begins.
constexpr double kCompileShare = 0.5;
// Workers that a candidate may take along: the first may have been ill before. Better one too few than one that now and then faults where it serves.
constexpr int kMostLosses = 2;

// What is known of one binary.
struct Built {
  bool reached = false;
  LaunchFacts facts;
  std::string failure;            // does not build, or does not fit
  std::optional<Verdict> verdict; // once verified
  int losses = 0;                 // workers that ended at it
  bool guilty = true;             // of all of them
  std::optional<WorkerLost> lost; // the last of them, once it is given up
  bool reported = false;          // that it is given up
};

// One session's work on one spec: binaries and verdicts are shared by its buckets.
class SpecTuner {
 public:
  SpecTuner(const SessionContext& context, const SessionOptions& options, SessionReport& report, const AttentionSpec& spec)
      : context_(context), options_(options), report_(report), spec_(spec), key_(spec_key(spec)), bench_(context.workbench(spec)) {}

  // Compiles what the configs need, in their order, until `seconds_left` says to stop; the defaults in any case.
  void build(const std::vector<KernelConfig>& defaults, const std::vector<KernelConfig>& others, const std::function<double()>& seconds_left) {
    std::vector<KernelConfig> todo;
    auto add = [&](const KernelConfig& config) {
      if (built_.emplace(shape_of(config), Built{}).second) todo.push_back(config);
    };
    std::for_each(defaults.begin(), defaults.end(), add);
    const auto required = static_cast<int64_t>(todo.size());
    std::for_each(others.begin(), others.end(), add);
    const double limit_s = seconds_left() * (1 - kCompileShare);
    parallel_for(
        static_cast<int64_t>(todo.size()),
        [&](int64_t i) {
          const KernelConfig& config = todo[static_cast<size_t>(i)];
          if (i >= required && (context_.interrupted() || seconds_left() < limit_s)) return;
          Built& at = built_.at(shape_of(config));
          at.reached = true;
          try {
            at.facts = patient(at, [&] { return bench_->build(config); });
            at.failure = misfit(at.facts);
          } catch (const WorkerUnavailable&) {
            throw;
          } catch (const WorkerLost& lost) {
            at.failure = lost.what();
          } catch (const std::exception& failure) {
            at.failure = fmt::format("does not build: {}", failure.what());
          }
        },
        kCompileThreads);
    for (const KernelConfig& config : todo) report_lost(config);
  }

  WorkResult tune(const Work& work, const CandidateSet& set, const std::function<double()>& seconds_left) {
    WorkResult result;
    result.work = work;
    result.rejected = set.rejected;
    std::vector<Entrant> entrants = admitted(set, result);
    result.candidates = static_cast<int>(entrants.size());
    if (entrants.empty()) return none_valid(set, std::move(result));

    std::vector<KernelConfig> configs;
    for (const Entrant& entrant : entrants) configs.push_back(entrant.config);
    try {
      Built any;
      patient(any, [&] { bench_->open(work.bucket, configs); });
    } catch (const WorkerUnavailable&) {
      throw;
    } catch (const std::exception& failure) {
      result.outcome = Outcome::failed;
      result.message = failure.what();
      return result;
    }
    double recovering_s = 0;         // in calls that ended well with another worker: no part of an entrant's cost
    std::exception_ptr unavailable;  // of workers: ends the race, which takes it for the entrant's failure, and the session
    const auto asked = [&](size_t i, const std::function<double(const KernelConfig&)>& ask) {
      const int& losses = built_.at(shape_of(entrants[i].config)).losses;
      const int before = losses;
      const double begin_s = context_.now_s();
      try {
        const double answer = ask(entrants[i].config);
        if (losses > before) recovering_s += context_.now_s() - begin_s;
        return answer;
      } catch (const WorkerUnavailable&) {
        unavailable = std::current_exception();
        throw;
      }
    };
    RaceHooks hooks;
    hooks.admit = [&](size_t i) { asked(i, [&](const KernelConfig& config) { return verify(config), 0.0; }); };
    hooks.sample_us = [&](size_t i) { return asked(i, [&](const KernelConfig& config) { return sample_us(config); }); };
    hooks.seconds_left = [&] { return seconds_left() + recovering_s; };
    hooks.interrupted = [&] { return unavailable || context_.interrupted(); };
    hooks.pause = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
    RecordedRace recording{.device = context_.environment.device, .problem = fmt::format("{}, {}", spec_text(spec_), work.bucket.text()), .policy = options_.policy, .entrants = entrants};
    RaceResult race = run_race(options_.policy, entrants, options_.record ? recorded(hooks, recording) : hooks, options_.search);
    if (unavailable) std::rethrow_exception(unavailable);
    bench_->close();
    if (options_.record) options_.record(recording);
    if (race.throttled) report_.throttled.push_back(recording.problem);

    for (size_t i = 0; i < race.lanes.size(); ++i) {
      const Lane& lane = race.lanes[i];
      if (lane.standing == Standing::failed)
        failed(entrants[i].config, lane, result);
      else if (lane.standing == Standing::not_reached && !race.interrupted)
        count_reason(result.rejected, "not timed within the budget");
      if (!lane.samples.empty()) ++result.timed;
    }
    if (race.interrupted) {
      report_.interrupted = true;
      result.message = "stopped before its race had ended";
    } else if (!race.winner) {
      return none_valid(set, std::move(result));
    } else {
      store(entrants, race, result);
    }
    return result;
  }

 private:
  // Asks again where the worker was lost, up to kMostLosses times for one binary.
  template <class Ask>
  std::invoke_result_t<Ask> patient(Built& at, const Ask& ask) {
    for (;;) {
      if (at.lost) throw WorkerLost(*at.lost);
      try {
        return ask();
      } catch (const WorkerLost& lost) {
        at.guilty = at.guilty && lost.by_request();
        // A session that is to stop has no time to find out whose fault it was.
        if (++at.losses >= kMostLosses || context_.interrupted()) at.lost = lost;
      }
    }
  }

  // Blocks a config that was given up and says so, once for its binary.
  void report_lost(const KernelConfig& config) {
    Built& at = built_.at(shape_of(config));
    if (!at.lost || std::exchange(at.reported, true)) return;
    const bool guilty = at.losses >= kMostLosses && at.guilty;
    (guilty ? report_.wrong : report_.left_out).push_back(fmt::format("{} of {}: {}", config.canonical_json(), spec_text(spec_), at.lost->what()));
    if (guilty) context_.store->block(context_.environment.key(), key_, config, Blocklist::text(at.lost->what()));
  }

  // Why a binary cannot or should not run here; empty if it can.
  std::string misfit(const LaunchFacts& facts) const {
    if (facts.local_bytes > kSpillBytes) return fmt::format("spills registers: more than {} bytes of stack a thread", kSpillBytes);
    int limit = context_.target.shared_per_block;
    if (limit > 0 && facts.shared_bytes + facts.static_shared_bytes > limit) return fmt::format("needs more than {} bytes of shared memory", limit);
    return "";
  }

  std::vector<Entrant> admitted(const CandidateSet& set, WorkResult& result) const {
    std::vector<Entrant> entrants;
    for (const KernelConfig& config : set.configs) {
      const Built& at = built_.at(shape_of(config));
      if (!at.reached)
        count_reason(result.rejected, "not compiled within the budget");
      else if (!at.failure.empty())
        count_reason(result.rejected, at.failure);
      else if (at.lost)
        count_reason(result.rejected, at.lost->what());
      else if (at.verdict && !at.verdict->ok)
        count_reason(result.rejected, "wrong result");
      else
        entrants.push_back({config, at.facts.shared_bytes, config == set.default_config, config == set.incumbent});
    }
    return entrants;
  }

  // Throws what is wrong. Configs of one shape share a binary and thus a verdict.
  void verify(const KernelConfig& config) {
    Built& at = built_.at(shape_of(config));
    if (!at.verdict) {
      try {
        at.verdict = patient(at, [&] { return bench_->verify(config); });
      } catch (const WorkerUnavailable&) {
        throw;
      } catch (const WorkerLost&) {
        report_lost(config);
        throw;
      } catch (const std::exception& failure) {
        at.verdict = Verdict{false, 0, fmt::format("crashed: {}", failure.what())};
      }
      if (!at.verdict->ok) {
        context_.store->block(context_.environment.key(), key_, config, Blocklist::text("wrong result: " + at.verdict->what));
        report_.wrong.push_back(fmt::format("{} of {}: {}", config.canonical_json(), spec_text(spec_), at.verdict->what));
      }
    }
    if (!at.verdict->ok) throw Error(ErrorCode::internal, "wrong result");
  }

  double sample_us(const KernelConfig& config) {
    return patient(built_.at(shape_of(config)), [&] { return bench_->sample_us(config); });
  }

  // A candidate that crashes is blocked; one with an impossible time may just have met a clock that jumped.
  void failed(const KernelConfig& config, const Lane& lane, WorkResult& result) {
    count_reason(result.rejected, lane.note);
    const Built& at = built_.at(shape_of(config));
    if (at.lost) return report_lost(config);
    if (!lane.threw || !at.verdict || !at.verdict->ok) return;
    context_.store->block(context_.environment.key(), key_, config, Blocklist::text("failed while it was timed: " + lane.note));
    report_.wrong.push_back(fmt::format("{} of {}: failed while it was timed: {}", config.canonical_json(), spec_text(spec_), lane.note));
  }

  static WorkResult none_valid(const CandidateSet& set, WorkResult result) {
    result.outcome = Outcome::failed;
    result.message = fmt::format("0 of {} candidates valid: {}", std::max<int>(set.total, static_cast<int>(set.configs.size())),
                                 result.rejected.empty() ? "the config space has none for this shape" : reasons_text(result.rejected));
    return result;
  }

  void store(const std::vector<Entrant>& entrants, const RaceResult& race, WorkResult& result) {
    const Entrant& best = entrants[*race.winner];
    const Built& built = built_.at(shape_of(best.config));
    Winner winner;
    winner.env_key = context_.environment.key();
    winner.spec_key = key_;
    winner.bucket = result.work.bucket;
    winner.config = best.config;
    winner.median_us = race.median_us;
    winner.ci_low_us = race.ci_low_us;
    winner.ci_high_us = race.ci_high_us;
    winner.samples = race.samples;
    winner.default_us = race.default_us;
    if (race.runner_up) {
      winner.runner_up = entrants[*race.runner_up].config;
      winner.runner_up_us = race.runner_up_us;
    }
    winner.tied = race.tied;
    winner.reason = race.reason;
    winner.error = built.verdict->error;
    winner.floor_us = floor_us(context_.environment.device,
                               kv_bytes(spec_, static_cast<int64_t>(winner.bucket.batch()) * winner.bucket.len()));
    winner.policy_hash = options_.policy.hash();
    winner.space_hash = ConfigSpace::builtin().hash(ConfigSpace::builtin().family(spec_.kind, context_.target.backend));
    winner.generator_hash = generator_hash();
    winner.session = options_.id;
    context_.store->put_winner(winner, context_.environment, spec_);
    result.winner = winner;
    result.outcome = Outcome::tuned;
  }

  const SessionContext& context_;
  const SessionOptions& options_;
  SessionReport& report_;
  AttentionSpec spec_;
  std::string key_;
  std::unique_ptr<Workbench> bench_;
  std::map<KernelConfig, Built> built_;  // by shape
};

class Session {
 public:
  Session(const SessionContext& context, const SessionOptions& options, const std::vector<Work>& works) : context_(context), options_(options) {
    report_.works.resize(works.size());
    for (size_t i = 0; i < works.size(); ++i) {
      WorkResult& at = report_.works[i];
      at.work = works[i];
      if (!options.retune) at.winner = current_winner(*context.store, context.environment.key(), works[i], context.target, options.policy);
      if (at.winner)
        at.outcome = Outcome::stored_before;
      else
        todo_.push_back(i);
    }
  }

  SessionReport run() {
    std::vector<double> weights;
    for (size_t i : todo_) {
      const Work& work = report_.works[i].work;
      weights.push_back(sample_weight(static_cast<double>(kv_bytes(work.spec, static_cast<int64_t>(work.bucket.batch()) * work.bucket.len())),
                                      options_.policy.launches_per_sample, read_bandwidth(context_.environment.device)));
    }
    budget_.emplace(options_.budget_s, weights, context_.now_s);
    for (size_t at = 0; at < todo_.size();) at = run_spec(at);
    return std::move(report_);
  }

 private:
  // All works of one spec from todo_[begin] on; returns the first of the next spec.
  size_t run_spec(size_t begin) {
    const AttentionSpec spec = report_.works[todo_[begin]].work.spec;
    size_t end = begin;
    while (end < todo_.size() && report_.works[todo_[end]].work.spec == spec) ++end;
    if (stopped(begin, end)) return end;

    std::vector<CandidateSet> sets;
    std::vector<KernelConfig> defaults, all;
    for (size_t k = begin; k < end; ++k) {
      sets.push_back(candidates_of(report_.works[todo_[k]].work, context_.target, *context_.store, context_.environment.key()));
      defaults.push_back(sets.back().default_config);
    }
    std::set<KernelConfig> shapes;
    for (const CandidateSet& set : sets) {
      all.insert(all.end(), set.configs.begin(), set.configs.end());
      for (const KernelConfig& config : set.configs) shapes.insert(shape_of(config));
    }
    SpecTuner tuner(context_, options_, report_, spec);
    announce(begin, fmt::format("{}: building {} kernels", spec_text(spec), shapes.size()));
    tuner.build(defaults, all, share_until(begin, end));

    for (size_t k = begin; k < end; ++k) {
      if (stopped(k, end)) break;
      const Work& work = report_.works[todo_[k]].work;
      announce(k, fmt::format("{}: bucket {}, {} candidates", spec_text(spec), work.bucket.text(), sets[k - begin].configs.size()));
      report_.works[todo_[k]] = tuner.tune(work, sets[k - begin], share_until(k, k + 1));
      if (context_.ended) context_.ended(report_.works[todo_[k]]);
    }
    return end;
  }

  // Seconds left of the joint share of works [begin, end), as a clock that runs from now.
  std::function<double()> share_until(size_t begin, size_t end) {
    double share = 0;
    for (size_t k = begin; k < end; ++k) share += budget_->share_s(begin) * budget_->weight(k) / budget_->weight(begin);
    double deadline = context_.now_s() + share;
    return [this, deadline] { return deadline - context_.now_s(); };
  }

  // Marks works [begin, end) as not reached if the session has to end here.
  bool stopped(size_t begin, size_t end) {
    if (context_.interrupted()) report_.interrupted = true;
    std::string reason;
    if (report_.interrupted)
      reason = "stopped before its turn";
    else if (budget_->left_s() <= 0)
      reason = fmt::format("the budget of {} was used before its turn", duration_text(options_.budget_s));
    else
      return false;
    for (size_t k = begin; k < end; ++k)
      if (report_.works[todo_[k]].message.empty()) report_.works[todo_[k]].message = reason;
    return true;
  }

  void announce(size_t at, const std::string& what) const {
    if (context_.progress) context_.progress({at, todo_.size(), what, std::max(0.0, budget_->left_s())});
  }

  const SessionContext& context_;
  const SessionOptions& options_;
  SessionReport report_;
  std::vector<size_t> todo_;  // indices into report_.works
  std::optional<Budget> budget_;
};

}  // namespace

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::tuned: return "tuned";
    case Outcome::stored_before: return "stored before";
    case Outcome::failed: return "failed";
    case Outcome::not_reached: return "not reached";
  }
  return "?";
}

int SessionReport::count(Outcome outcome) const {
  return static_cast<int>(std::count_if(works.begin(), works.end(), [&](const WorkResult& work) { return work.outcome == outcome; }));
}

bool SessionReport::complete() const {
  return count(Outcome::tuned) + count(Outcome::stored_before) == static_cast<int>(works.size()) && wrong.empty() && left_out.empty();
}

Changes changes_since(const Winner& winner, const AttentionSpec& spec, const Target& target, const MeasurePolicy& policy) {
  const ConfigSpace& space = ConfigSpace::builtin();
  return {winner.policy_hash != policy.hash(), winner.space_hash != space.hash(space.family(spec.kind, target.backend)), winner.generator_hash != generator_hash()};
}

bool is_current(const Winner& winner, const AttentionSpec& spec, const Target& target, const MeasurePolicy& policy) { return !changes_since(winner, spec, target, policy).any(); }

std::optional<Winner> current_winner(const Store& store, const std::string& env_key, const Work& work, const Target& target,
                                     const MeasurePolicy& policy) {
  for (const Winner& winner : store.winners(env_key, spec_key(work.spec)))
    if (winner.bucket == work.bucket && is_current(winner, work.spec, target, policy) && !BlockedWinners(store).has(winner)) return winner;
  return std::nullopt;
}

SessionReport run_session(const SessionContext& context, const SessionOptions& options, const std::vector<Work>& works) {
  return Session(context, options, works).run();
}

}  // namespace pagetune
