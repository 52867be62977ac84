#include "tuner/recording.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pagetune/error.hpp"
#include "tuner/statistics.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::ordered_json;

std::vector<double> positive(const Json& json) {
  auto values = json.get<std::vector<double>>();
  for (const double x : values)
    if (!std::isfinite(x) || x < 0) throw std::invalid_argument(fmt::format("{} is no time", x));
  return values;
}

RecordedRace race_from(const Json& json) {
  RecordedRace race;
  race.device = json.at("device");
  race.problem = json.at("problem");
  race.policy = MeasurePolicy::from_json(json.at("policy").dump());
  for (const Json& entry : json.at("entrants")) {
    Entrant entrant;
    entrant.config = KernelConfig(entry.at("config").get<std::map<std::string, int>>());
    entrant.shared_bytes = entry.at("shared_bytes");
    entrant.is_default = entry.value("default", false);
    entrant.is_incumbent = entry.value("incumbent", false);
    race.entrants.push_back(std::move(entrant));
    race.admit_s.push_back(entry.at("admit_s"));
    race.us.push_back(positive(entry.at("us")));
    race.seconds.push_back(positive(entry.at("seconds")));
    if (race.us.back().size() != race.seconds.back().size()) throw std::invalid_argument("us and seconds are not of one length");
  }
  return race;
}

double six_digits(double x) { return std::stod(fmt::format("{:.6g}", x)); }
Json six_digits(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double x : values) json.push_back(six_digits(x));
  return json;
}

}  // namespace

RaceHooks recorded(RaceHooks hooks, RecordedRace& into) {
  into.admit_s.assign(into.entrants.size(), 0);
  into.us.assign(into.entrants.size(), {});
  into.seconds.assign(into.entrants.size(), {});
  RaceHooks noting = hooks;
  noting.admit = [&into, hooks](size_t i) {
    const double before = hooks.seconds_left();
    hooks.admit(i);
    into.admit_s[i] = std::max(before - hooks.seconds_left(), 1e-9);
  };
  noting.sample_us = [&into, hooks](size_t i) {
    const double before = hooks.seconds_left();
    const double us = hooks.sample_us(i);
    if (std::isfinite(us) && us > 0) {
      into.us[i].push_back(us);
      into.seconds[i].push_back(std::max(before - hooks.seconds_left(), 0.0));
    }
    return us;
  };
  return noting;
}

std::string to_json(const RecordedRace& race) {
  Json entrants = Json::array();
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    const Entrant& entrant = race.entrants[i];
    Json entry{{"config", entrant.config.values()}, {"shared_bytes", entrant.shared_bytes}};
    if (entrant.is_default) entry["default"] = true;
    if (entrant.is_incumbent) entry["incumbent"] = true;
    entry["admit_s"] = six_digits(race.admit_s[i]);
    entry["us"] = six_digits(race.us[i]);
    entry["seconds"] = six_digits(race.seconds[i]);
    entrants.push_back(std::move(entry));
  }
  return Json{{"device", race.device}, {"problem", race.problem}, {"policy", Json::parse(race.policy.canonical_json())}, {"entrants", entrants}}.dump();
}

std::vector<RecordedRace> recorded_races(const std::string& text) {
  std::vector<RecordedRace> races;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    try {
      races.push_back(race_from(Json::parse(line)));
    } catch (const std::exception& wrong) {
      throw Error(ErrorCode::invalid_argument, fmt::format("line {} is no recorded race: {}", number, wrong.what()));
    }
  }
  return races;
}

Replay::Outcome Replay::run() const {
  std::vector<size_t> chosen = entrants;
  if (chosen.empty()) {
    for (size_t i = 0; i < race.entrants.size(); ++i)
      if (!race.us[i].empty()) chosen.push_back(i);
  }
  std::vector<Entrant> field;
  for (size_t k = 0; k < chosen.size(); ++k) {
    field.push_back(race.entrants[chosen[k]]);
    if (std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(k), chosen[k]) == chosen.begin() + static_cast<std::ptrdiff_t>(k)) continue;
    field.back().is_default = field.back().is_incumbent = false;  // a copy, under a name of its own
    field.back().config.set("COPY", 1);
  }
  std::mt19937_64 random(seed);
  const double moment = std::uniform_real_distribution<double>(0, 1)(random);
  std::vector<size_t> taken(field.size(), 0), copies(race.entrants.size(), 0), copy(field.size(), 0);
  for (size_t k = 0; k < field.size(); ++k) copy[k] = copies[chosen[k]]++;

  Outcome outcome;
  RaceHooks hooks;
  hooks.admit = [&](size_t k) { outcome.seconds += race.admit_s[chosen[k]]; };
  hooks.sample_us = [&](size_t k) {
    const std::vector<double>& us = race.us[chosen[k]];
    // Copies of one entrant take its samples in turn.
    const size_t at = (static_cast<size_t>(moment * static_cast<double>(us.size())) + taken[k]++ * copies[chosen[k]] + copy[k]) % us.size();
    outcome.seconds += race.seconds[chosen[k]][at];
    return us[at];
  };
  hooks.seconds_left = [&] { return budget_s - outcome.seconds; };
  hooks.interrupted = [] { return false; };
  hooks.pause = [&](double s) { outcome.seconds += s; };
  outcome.result = run_race(race.policy, field, hooks, search);
  if (outcome.result.winner) outcome.winner = chosen[*outcome.result.winner];
  return outcome;
}

Gates gates_of(const RecordedRace& race, Search search, double budget_s, int runs, uint64_t seed) {
  Gates gates;
  gates.runs = runs;
  std::vector<double> truth;
  size_t fallback = 0;
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    truth.push_back(race.us[i].empty() ? INFINITY : median(race.us[i]));
    if (race.entrants[i].is_default) fallback = i;
  }
  const double best = *std::min_element(truth.begin(), truth.end());
  double timed = 0;
  const auto replay = [&](uint64_t number, std::vector<size_t> entrants) {
    return Replay{race, seed + number, budget_s, search, std::move(entrants)}.run();
  };
  for (int pair = 0; pair < runs; ++pair) {
    size_t winners[2];
    for (int k = 0; k < 2; ++k) {
      const auto outcome = replay(static_cast<uint64_t>(2 * pair + k), {});
      if (!outcome.result.winner) throw Error(ErrorCode::invalid_argument, fmt::format("the recorded race of {} has no entrant with a time", race.problem));
      winners[k] = outcome.winner;
      const double regret = truth[outcome.winner] / best - 1;
      gates.regret += regret / (2 * runs);
      gates.worst_regret = std::max(gates.worst_regret, regret);
      gates.seconds += outcome.seconds / (2 * runs);
      for (const Lane& lane : outcome.result.lanes) timed += lane.samples.empty() ? 0 : 0.5 / runs;
    }
    gates.flips += winners[0] != winners[1] ? 1.0 / runs : 0;
    const auto copies = replay(static_cast<uint64_t>(pair), {fallback, fallback});
    gates.false_wins += copies.result.winner && *copies.result.winner == 1 ? 1.0 / runs : 0;
  }
  gates.timed = static_cast<int>(std::lround(timed));
  return gates;
}

}  // namespace pagetune
