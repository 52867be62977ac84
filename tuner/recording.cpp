#include "tuner/recording.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"
#include "tuner/statistics.hpp"
#include "tuner/worker_messages.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::ordered_json;

double positive(double x) {
  if (!std::isfinite(x) || x < 0) throw std::invalid_argument(fmt::format("{} is no time", x));
  return x;
}

std::vector<double> positive(std::vector<double> values) {
  for (const double x : values) positive(x);
  return values;
}

RecordedRace race_from(const nlohmann::json& json) {
  RecordedRace race;
  race.device = json.at("device");
  race.problem = json.at("problem");
  race.policy = MeasurePolicy::from_json(json.at("policy").dump());
  for (const nlohmann::json& entry : json.at("entrants")) {
    Entrant entrant;
    entrant.config = KernelConfig::from_json(entry.at("config").dump());
    entrant.shared_bytes = int_from_json(entry.at("shared_bytes"), "shared_bytes", "an entrant");
    entrant.is_default = entry.value("default", false);
    entrant.is_incumbent = entry.value("incumbent", false);
    race.entrants.push_back(std::move(entrant));
    race.admit_s.push_back(positive(entry.at("admit_s").get<double>()));
    race.us.push_back(positive(entry.at("us").get<std::vector<double>>()));
    race.seconds.push_back(positive(entry.at("seconds").get<std::vector<double>>()));
    if (race.us.back().size() != race.seconds.back().size()) throw std::invalid_argument("us and seconds are not of one length");
  }
  return race;
}

double six_digits(double x) { return real_from_text(fmt::format("{:.6g}", x)); }
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
      races.push_back(race_from(parse_json(line, "the line")));
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

namespace {

std::vector<double> medians_of(const RecordedRace& race) {
  std::vector<double> medians;
  for (const std::vector<double>& us : race.us) medians.push_back(us.empty() ? INFINITY : median(us));
  return medians;
}

Replay::Outcome won(const Replay& replay) {
  Replay::Outcome outcome = replay.run();
  if (!outcome.result.winner) throw Error(ErrorCode::invalid_argument, fmt::format("the recorded race of {} has no entrant with a time", replay.race.problem));
  return outcome;
}

}  // namespace

Gates gates_of(const RecordedRace& race, Search search, double budget_s, int runs, uint64_t seed) {
  Gates gates;
  gates.runs = runs;
  const std::vector<double> truth = medians_of(race);
  size_t fallback = 0;
  for (size_t i = 0; i < race.entrants.size(); ++i)
    if (race.entrants[i].is_default) fallback = i;
  const double best = *std::min_element(truth.begin(), truth.end());
  double timed = 0;
  for (int pair = 0; pair < runs; ++pair) {
    size_t winners[2];
    for (int k = 0; k < 2; ++k) {
      const auto outcome = won({race, seed + static_cast<uint64_t>(2 * pair + k), budget_s, search, {}});
      winners[k] = outcome.winner;
      const double regret = truth[outcome.winner] / best - 1;
      gates.regret += regret / (2 * runs);
      gates.worst_regret = std::max(gates.worst_regret, regret);
      gates.seconds += outcome.seconds / (2 * runs);
      for (const Lane& lane : outcome.result.lanes) timed += lane.samples.empty() ? 0 : 0.5 / runs;
    }
    gates.flips += winners[0] != winners[1] ? 1.0 / runs : 0;
    const auto copies = Replay{race, seed + static_cast<uint64_t>(pair), budget_s, search, {fallback, fallback}}.run();
    gates.false_wins += copies.result.winner && *copies.result.winner == 1 ? 1.0 / runs : 0;
  }
  gates.timed = static_cast<int>(std::lround(timed));
  return gates;
}

GatesBetween gates_between(const std::vector<RecordedRace>& races, Search search, double budget_s, int runs, uint64_t seed) {
  std::map<std::pair<std::string, std::string>, std::vector<const RecordedRace*>> problems;
  for (const RecordedRace& race : races) problems[{race.device, race.problem}].push_back(&race);
  std::erase_if(problems, [](const auto& problem) { return problem.second.size() < 2; });

  GatesBetween gates;
  gates.problems = static_cast<int>(problems.size());
  double weight_of_regrets = 0;
  for (const auto& [name, sessions] : problems) {
    const size_t count = sessions.size(), pairs = count * (count - 1) / 2;
    gates.pairs += static_cast<int>(pairs);
    const double weight = 1.0 / (static_cast<double>(pairs) * runs * gates.problems);
    std::vector<std::vector<double>> medians;
    for (const RecordedRace* session : sessions) medians.push_back(medians_of(*session));
    for (int run = 0; run < runs; ++run) {
      std::vector<KernelConfig> winners;
      for (size_t k = 0; k < count; ++k) {
        const auto outcome = won({*sessions[k], seed + static_cast<uint64_t>(run) * count + k, budget_s, search, {}});
        winners.push_back(sessions[k]->entrants[outcome.winner].config);
      }
      for (size_t a = 0; a < count; ++a) {
        for (size_t b = 0; b < count; ++b) {
          if (a == b) continue;
          if (a < b && !(winners[a] == winners[b])) gates.flips += weight;
          const auto& elsewhere = sessions[b]->entrants;
          const auto same = std::find_if(elsewhere.begin(), elsewhere.end(), [&](const Entrant& entrant) { return entrant.config == winners[a]; });
          if (same == elsewhere.end()) continue;
          const double us = medians[b][static_cast<size_t>(same - elsewhere.begin())];
          if (!std::isfinite(us)) continue;
          const double regret = us / *std::min_element(medians[b].begin(), medians[b].end()) - 1;
          gates.regret += weight * regret;
          weight_of_regrets += weight;
          gates.worst_regret = std::max(gates.worst_regret, regret);
        }
      }
    }
  }
  if (weight_of_regrets > 0) gates.regret /= weight_of_regrets;
  return gates;
}

}  // namespace pagetune
