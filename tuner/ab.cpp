#include "tuner/ab.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr double kConfidence = 0.95;
// Whoever looks at a 95 % interval again and again will see a false one. Looks grow apart by half, so that a budget holds about twenty of them;
// each decides with this confidence, and all of them together err in fewer than 1 % of comparisons of equal configs.
constexpr double kLookConfidence = 0.9995;

double positive(double us, const char* which) {
  if (std::isfinite(us) && us > 0) return us;
  throw Error(ErrorCode::internal, fmt::format("{}'s sample took {} us, which cannot be: run again", which, us));
}

// Of ratios of B's time to A's. The band is the same for both, whichever is called A.
AbVerdict decide(Interval ratios, double band) {
  if (ratios.low > 1 + band) return AbVerdict::a_faster;
  if (ratios.high < 1 / (1 + band)) return AbVerdict::b_faster;
  if (ratios.low > 1 / (1 + band) && ratios.high < 1 + band) return AbVerdict::same;
  return AbVerdict::undecided;
}

}  // namespace

const char* name_of(AbVerdict verdict) {
  switch (verdict) {
    case AbVerdict::a_faster: return "a faster";
    case AbVerdict::b_faster: return "b faster";
    case AbVerdict::same: return "no difference";
    case AbVerdict::undecided: return "not decided";
    case AbVerdict::wrong: return "wrong result";
  }
  return "?";
}

AbResult run_ab(const MeasurePolicy& policy, const AbHooks& hooks) {
  AbResult result;
  std::vector<double> a, b, ratios;
  int next_look = policy.min_rounds;
  do {
    const bool b_first = ratios.size() % 2 == 1;  // neither is favoured by its place in the round
    double b_us = b_first ? positive(hooks.b_us(), "B") : 0;
    const double a_us = positive(hooks.a_us(), "A");
    if (!b_first) b_us = positive(hooks.b_us(), "B");
    a.push_back(a_us);
    b.push_back(b_us);
    ratios.push_back(b_us / a_us);
    const int rounds = static_cast<int>(ratios.size());
    if (rounds < next_look || !interval_exists(rounds, kLookConfidence)) continue;
    next_look = rounds + (rounds + 1) / 2;
    result.verdict = decide(median_interval(ratios, kLookConfidence), policy.tie_band());
    if (result.verdict != AbVerdict::undecided) break;
  } while (!(result.interrupted = hooks.interrupted()) && hooks.seconds_left() > 0);
  result.rounds = static_cast<int>(ratios.size());
  result.a_us = median(a);
  result.b_us = median(b);
  result.ratio = median(ratios);
  result.interval = median_interval(ratios, kConfidence);
  return result;
}

std::vector<AbResult> compare(Workbench& bench, Bucket bucket, const KernelConfig& a, const KernelConfig& b, const MeasurePolicy& policy, int times, double budget_s,
                              const std::function<double()>& now_s, const std::function<bool()>& interrupted) {
  const auto check = [&](const KernelConfig& config) {
    bench.build(config);
    return bench.verify(config);
  };
  const Verdict a_check = check(a), b_check = check(b);
  std::vector<AbResult> results;
  if (a_check.ok && b_check.ok) {
    bench.open(bucket, {a, b});
    do {
      const double end_s = now_s() + budget_s;
      results.push_back(run_ab(policy, {[&] { return bench.sample_us(a); }, [&] { return bench.sample_us(b); }, [&] { return end_s - now_s(); }, interrupted}));
    } while (static_cast<int>(results.size()) < times && !results.back().interrupted);
    bench.close();
  } else {
    results.emplace_back().verdict = AbVerdict::wrong;
  }
  for (AbResult& result : results) result.a_check = a_check, result.b_check = b_check;
  return results;
}

std::string sentence(const AbResult& result, const MeasurePolicy& policy, double budget_s) {
  const auto faster = [](const char* which, double gain, double low, double high) {
    return fmt::format("{} is {:.1f} % faster (95 % interval {:.1f} to {:.1f} %)", which, 100 * (gain - 1), 100 * (low - 1), 100 * (high - 1));
  };
  const std::string band = fmt::format("{:g} %", 100 * policy.tie_band());
  switch (result.verdict) {
    case AbVerdict::a_faster: return faster("A", result.ratio, result.interval.low, result.interval.high);
    case AbVerdict::b_faster: return faster("B", 1 / result.ratio, 1 / result.interval.high, 1 / result.interval.low);
    case AbVerdict::same: return "no difference: within " + band;
    case AbVerdict::wrong: {
      std::string text;
      for (const auto& [name, check] : {std::pair{"A", &result.a_check}, {"B", &result.b_check}})
        if (!check->ok) text += fmt::format("{}{} gives a wrong result: {}", text.empty() ? "" : "; ", name, check->what);
      return text;
    }
    case AbVerdict::undecided: break;
  }
  if (result.interrupted) return fmt::format("not decided: stopped after {} round{}", result.rounds, result.rounds == 1 ? "" : "s");
  return fmt::format("not decided within {:g} s: after {} round{} the difference may still be less or more than {}; give a larger --budget", budget_s, result.rounds, result.rounds == 1 ? "" : "s", band);
}

}  // namespace pagetune
