#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tuner/budget.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/tune.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/recording.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateArguments {
  std::string file;
  std::string search = "racing";
  std::string budget = "1h";
  int runs = 200;
  uint64_t seed = 1;
  bool json = false;
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

int run_simulate(const SimulateArguments& arguments) {
  const Search search = search_option(arguments.search);
  const double budget_s = budget_seconds(arguments.budget);
  std::ifstream file(arguments.file);
  if (!file) throw UsageError(fmt::format("{} cannot be read: name a file that `pagetune tune --search exhaustive --record FILE` wrote", arguments.file));
  std::stringstream text;
  text << file.rdbuf();
  const std::vector<RecordedRace> races = recorded_races(text.str());
  if (races.empty()) throw UsageError(fmt::format("{} holds no recorded race", arguments.file));

  Json lines = Json::array();
  Table table({"problem", ">candidates", ">timed", ">seconds", ">flips", ">regret", ">worst", ">false wins"});
  for (const RecordedRace& race : races) {
    const Gates gates = gates_of(race, search, budget_s, arguments.runs, arguments.seed);
    table.add({race.problem, fmt::format("{}", race.entrants.size()), fmt::format("{}", gates.timed), fmt::format("{:.2f}", gates.seconds), percent(gates.flips), percent(gates.regret),
               percent(gates.worst_regret), percent(gates.false_wins)});
    lines.push_back({{"device", race.device},   {"problem", race.problem},           {"search", name_of(search)}, {"candidates", race.entrants.size()}, {"timed", gates.timed}, {"seconds", gates.seconds},
                     {"runs", gates.runs},      {"flips", gates.flips},              {"regret", gates.regret},    {"worst_regret", gates.worst_regret}, {"false_wins", gates.false_wins}});
  }
  const GatesBetween between = gates_between(races, search, budget_s, arguments.runs, arguments.seed);
  if (arguments.json) {
    Json json{{"races", lines}};
    if (between.pairs > 0) json["between"] = {{"problems", between.problems}, {"pairs", between.pairs}, {"flips", between.flips}, {"regret", between.regret}, {"worst_regret", between.worst_regret}};
    fmt::print("{}\n", json.dump(2));
    return kDone;
  }
  fmt::print("{} pairs of races each, search {}. flips: pairs whose winners differ; regret: of a winner over the fastest; false wins: of the default's copy over it\n\n{}", arguments.runs, name_of(search), table.text());
  if (between.pairs > 0)
    fmt::print("\nFrom one recording of a problem to another ({} problems, {} pairs): flips {}, regret of one's winner in the other {}, worst {}\n", between.problems, between.pairs, percent(between.flips),
               percent(between.regret), percent(between.worst_regret));
  return kDone;
}

}  // namespace

void add_simulate(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* verb = app.add_subcommand("simulate", "Replay recorded races: how often winners flip, what they lose, how long a search takes. Needs no device");
  verb->add_option("recording", arguments->file, "A file of `pagetune tune --search exhaustive --record FILE`")->required();
  verb->add_option("--search", arguments->search, "racing, model, exhaustive")->capture_default_str();
  verb->add_option("--budget", arguments->budget, "Of one race, on the recording's clock")->capture_default_str();
  verb->add_option("--runs", arguments->runs, "Pairs of races for each recorded one")->capture_default_str()->check(CLI::Range(1, 100000));
  verb->add_option("--seed", arguments->seed, "Of the moments from which samples are taken")->capture_default_str();
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_simulate(*arguments); }; });
}

}  // namespace pagetune::cli
