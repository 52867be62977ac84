#include "tuner/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "codegen/launch_plan.hpp"
#include "pagetune/error.hpp"
#include "tuner/surrogate.hpp"

namespace pagetune {
namespace {

using Indices = std::vector<size_t>;

// Share of the budget that first samples may take: of a race of all, before the split counts are searched coarse to fine, and of a model's search.
constexpr double kFirstPassShare = 0.4;
constexpr size_t kBestShapes = 3;

// The default and the incumbent first, so that a short budget has them.
Indices in_order(const std::vector<Entrant>& entrants) {
  Indices order(entrants.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto rank = [&](size_t i) { return entrants[i].is_default ? 0 : entrants[i].is_incumbent ? 1 : 2; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return order;
}

// What first samples of all would take.
double cost_s(const std::vector<Entrant>& entrants, const Standings& at) {
  std::set<KernelConfig> shapes;
  for (const Entrant& entrant : entrants) shapes.insert(shape_of(entrant.config));
  return static_cast<double>(entrants.size()) * at.first_samples * at.sample_s + static_cast<double>(shapes.size()) * at.admit_s;
}

bool is_time(double us) { return std::isfinite(us); }  // not: no sample, failed

class Racing final : public Searcher {
 public:
  explicit Racing(const std::vector<Entrant>& entrants) : entrants_(entrants), order_(in_order(entrants)) {}

  Indices next(const Standings& at) override {
    switch (step_++) {
      case 0: return order_.empty() ? Indices{} : Indices{order_.front()};
      case 1:
        if (cost_s(entrants_, at) > kFirstPassShare * at.seconds_left) return coarse_ = coarse();
        step_ = 3;
        return order_;
      case 2: return fine(at);
      default: return {};
    }
  }

 private:
  // Of every shape the split count nearest to the default's, and the incumbent.
  Indices coarse() const {
    const double wanted = std::log2(std::max(2, spread_of(entrants_[order_.front()].config)));
    const auto distance = [&](size_t i) { return std::abs(std::log2(spread_of(entrants_[i].config)) - wanted); };
    std::map<KernelConfig, size_t> nearest;
    for (const size_t i : order_) {
      const auto [found, inserted] = nearest.emplace(shape_of(entrants_[i].config), i);
      if (!inserted && distance(i) < distance(found->second)) found->second = i;
    }
    Indices group;
    for (const size_t i : order_)
      if (entrants_[i].is_default || entrants_[i].is_incumbent || nearest.at(shape_of(entrants_[i].config)) == i) group.push_back(i);
    return group;
  }

  Indices fine(const Standings& at) const {
    Indices ranked;
    for (const size_t i : coarse_)
      if (is_time(at.median_us[i])) ranked.push_back(i);
    std::stable_sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return at.median_us[a] < at.median_us[b]; });
    std::set<KernelConfig> shapes;
    for (const size_t i : ranked)
      if (shapes.size() < kBestShapes) shapes.insert(shape_of(entrants_[i].config));
    Indices group;
    for (const size_t i : order_)
      if (shapes.contains(shape_of(entrants_[i].config))) group.push_back(i);
    return group;
  }

  const std::vector<Entrant>& entrants_;
  Indices order_, coarse_;
  int step_ = 0;
};

class Exhaustive final : public Searcher {
 public:
  explicit Exhaustive(const std::vector<Entrant>& entrants) : order_(in_order(entrants)) {}
  Indices next(const Standings&) override { return std::exchange(order_, {}); }

 private:
  Indices order_;
};

class ByModel final : public Searcher {
 public:
  explicit ByModel(const std::vector<Entrant>& entrants) : order_(in_order(entrants)), surrogate_(configs_of(entrants)) {
    while (order_.size() > fixed_ && (entrants[order_[fixed_]].is_default || entrants[order_[fixed_]].is_incumbent)) ++fixed_;
  }

  Indices next(const Standings& at) override {
    if (step_ == 0) end_s_ = at.seconds_left * (1 - kFirstPassShare);
    switch (step_++) {
      case 0: return order_.empty() ? Indices{} : Indices{order_.front()};
      case 1: return spread();
      default: return best(at);
    }
  }

 private:
  static constexpr size_t kLeast = 8, kMost = 24;  // of the first ones: an eighth of all
  static constexpr size_t kAtOnce = 4;
  static constexpr double kEnough = 0.003;  // expected gain, relative, below which nobody is asked any more: well inside the tie band

  static std::vector<KernelConfig> configs_of(const std::vector<Entrant>& entrants) {
    std::vector<KernelConfig> configs;
    for (const Entrant& entrant : entrants) configs.push_back(entrant.config);
    return configs;
  }

  // The fixed ones and, one after the other, whoever is farthest from all that were taken.
  Indices spread() const {
    Indices group(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(std::min(std::max<size_t>(fixed_, 1), order_.size())));
    std::vector<double> apart(order_.size(), 2);
    const size_t wanted = std::clamp(order_.size() / 8, kLeast, kMost);
    for (size_t taken = 0;;) {
      for (; taken < group.size(); ++taken)
        for (size_t i = 0; i < apart.size(); ++i) apart[i] = std::min(apart[i], surrogate_.distance(i, group[taken]));
      if (group.size() >= wanted) return group;
      const auto farthest = std::max_element(apart.begin(), apart.end());
      if (*farthest <= 0) return group;
      group.push_back(static_cast<size_t>(farthest - apart.begin()));
    }
  }

  Indices best(const Standings& at) {
    if (at.seconds_left < end_s_) return {};
    Indices known, open;
    std::vector<double> us;
    for (const size_t i : order_) {
      if (std::isnan(at.median_us[i])) open.push_back(i);
      if (!is_time(at.median_us[i])) continue;
      known.push_back(i);
      us.push_back(at.median_us[i]);
    }
    if (known.empty() || open.empty()) return open;
    surrogate_.fit(known, us);
    const double best_log_us = std::log(*std::min_element(us.begin(), us.end()));
    std::vector<std::pair<double, size_t>> gains;
    for (const size_t i : open)
      if (const double gain = surrogate_.expected_gain(i, best_log_us); gain > kEnough) gains.emplace_back(-gain, i);
    std::sort(gains.begin(), gains.end());
    Indices group;
    for (size_t k = 0; k < gains.size() && k < kAtOnce; ++k) group.push_back(gains[k].second);
    return group;
  }

  Indices order_;
  size_t fixed_ = 0;  // at the front of order_: default and incumbent
  Surrogate surrogate_;
  int step_ = 0;
  double end_s_ = 0;  // of the search: seconds left for the race
};

}  // namespace

const char* name_of(Search search) {
  switch (search) {
    case Search::racing: return "racing";
    case Search::exhaustive: return "exhaustive";
    case Search::model: return "model";
  }
  return "?";
}

Search search_from(const std::string& name) {
  for (const Search search : {Search::racing, Search::exhaustive, Search::model})
    if (name == name_of(search)) return search;
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is no search: racing, exhaustive or model", name));
}

std::unique_ptr<Searcher> make_searcher(Search search, const std::vector<Entrant>& entrants) {
  switch (search) {
    case Search::racing: return std::make_unique<Racing>(entrants);
    case Search::exhaustive: return std::make_unique<Exhaustive>(entrants);
    case Search::model: return std::make_unique<ByModel>(entrants);
  }
  throw Error(ErrorCode::internal, "a search without a searcher");
}

}  // namespace pagetune
