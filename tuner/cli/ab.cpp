#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/default_config.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "tuner/ab.hpp"
#include "tuner/budget.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/progress.hpp"
#include "tuner/cli/tune.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/workbench.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct AbArguments {
  ModelOptions model;
  std::string device = "auto";
  std::string a, b;
  std::string budget = "20s";
  int times = 1;
  bool json = false;
};

// One side as it was asked for: "default", "winner", or a config.
struct Asked {
  const char* option;
  std::string text;
  KernelConfig config;  // empty for a name
  bool named() const { return text == "default" || text == "winner"; }
};

Asked parse(const char* option, const std::string& text) {
  Asked made{option, text, {}};
  if (made.named()) return made;
  try {
    made.config = KernelConfig::from_json(text);
    return made;
  } catch (const Error& wrong) {
    throw UsageError(fmt::format("{} is '{}': allowed are default, winner, or a config as JSON: {}", option, text, wrong.what()));
  }
}

void require_support_of(const Asked& side, const KernelConfig& config, const Work& work, const Target& target) {
  std::string reason;
  try {
    reason = supports(work.spec, config, target).reason;
  } catch (const Error& incomplete) {
    reason = incomplete.what();
  }
  if (!reason.empty()) throw UsageError(fmt::format("{}: {}: {}", side.option, config.canonical_json(), reason));
}

KernelConfig config_of(const Asked& side, const Work& work, const Workset& set, const Store& store) {
  if (side.text == "default") return default_config(work.spec, set.device->target(), work.bucket);
  if (!side.named()) return side.config;
  const std::vector<Winner> winners = store.winners(set.device->environment().key(), spec_key(work.spec));
  const auto found = std::find_if(winners.begin(), winners.end(), [&](const Winner& winner) { return winner.bucket == work.bucket; });
  if (found == winners.end())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is winner, but the store {} has none for {}, bucket {}, on {}: run pagetune tune, or give a config", side.option, store.dir(), spec_text(work.spec),
                                                         work.bucket.text(), set.device->environment().device));
  require_support_of(side, found->config, work, set.device->target());
  return found->config;
}

struct Comparison {
  Work work;
  KernelConfig a, b;
  AbResult result;
  std::string text;  // the verdict in words
  std::map<AbVerdict, int> verdicts;  // of all times, of which the result is the last
  int times = 0;
};

void print(const Comparison& at) {
  const AbResult& result = at.result;
  const bool wrong = result.verdict == AbVerdict::wrong;
  const auto side = [&](const char* name, const KernelConfig& config, double us, const Verdict& check) {
    fmt::print("  {}: {}: {}\n", name, config.canonical_json(), !check.ok ? "WRONG" : wrong ? "right, not timed" : fmt::format("{:.2f} us, error {:.1e}", us, check.error));
  };
  fmt::print("{} (layers {}), bucket {}\n", spec_text(at.work.spec), ranges_text(at.work.layers), at.work.bucket.text());
  side("A", at.a, result.a_us, result.a_check);
  side("B", at.b, result.b_us, result.b_check);
  if (!wrong) fmt::print("  time of B / time of A: {:.4f} (95 % interval {:.4f} to {:.4f}), {} rounds\n", result.ratio, result.interval.low, result.interval.high, result.rounds);
  if (at.a == at.b) fmt::print("  A and B are one config: what differs is noise\n");
  fmt::print("  {}\n", at.text);
  if (at.times > 1) {
    const auto count = [&](AbVerdict verdict) { return at.verdicts.contains(verdict) ? at.verdicts.at(verdict) : 0; };
    fmt::print("  of {} times: A faster {}, B faster {}, no difference {}, not decided {}; the figures above are the last one's\n", at.times, count(AbVerdict::a_faster), count(AbVerdict::b_faster),
               count(AbVerdict::same), count(AbVerdict::undecided));
  }
}

Json json_of(const Comparison& at) {
  const AbResult& result = at.result;
  const bool wrong = result.verdict == AbVerdict::wrong;
  const auto side = [&](const KernelConfig& config, double us, const Verdict& check) {
    Json made{{"config", Json::parse(config.canonical_json())}, {"correct", check.ok}, {"error", check.error}};
    if (!check.ok) made["what"] = check.what;
    if (!wrong) made["median_us"] = us;
    return made;
  };
  Json made{{"spec", Json::parse(canonical_json(at.work.spec))}, {"batch", at.work.bucket.batch()},        {"len", at.work.bucket.len()}, {"a", side(at.a, result.a_us, result.a_check)},
            {"b", side(at.b, result.b_us, result.b_check)},      {"verdict", name_of(result.verdict)}, {"sentence", at.text}};
  if (!wrong) {
    made["ratio"] = result.ratio;
    made["ratio_low"] = result.interval.low;
    made["ratio_high"] = result.interval.high;
    made["rounds"] = result.rounds;
  }
  made["times"] = at.times;
  for (const auto& [verdict, count] : at.verdicts) made["verdicts"][name_of(verdict)] = count;
  return made;
}

int run_ab_verb(const AbArguments& arguments) {
  const double budget_s = budget_seconds(arguments.budget);
  const Asked a = parse("--a", arguments.a), b = parse("--b", arguments.b);
  const ModelAttention model = load_model(arguments.model);
  const Workset set = make_workset(model, arguments.model, one_device(arguments.device)->id());
  print_left_out(set.list);
  require_some(set.list, set.device->target());
  for (const Work& work : set.list.works)
    for (const Asked* side : {&a, &b})
      if (!side->named()) require_support_of(*side, side->config, work, set.device->target());
  auto store = Store::open();
  // All are looked at before the first is measured.
  std::vector<Comparison> all;
  for (const Work& work : set.list.works)
    all.push_back({work, config_of(a, work, set, *store), config_of(b, work, set, *store), {}, {}, {}});
  catch_interrupt();
  ProgressLine line(arguments.json);
  Json entries = Json::array();
  bool wrong = false, undecided = false;
  size_t done = 0;
  std::unique_ptr<Workbench> bench;
  for (; done < all.size() && !interrupted(); ++done) {
    Comparison& at = all[done];
    if (done == 0 || all[done - 1].work.spec != at.work.spec) bench = make_workbench(*set.device, *store, at.work.spec, set.policy);
    const std::string what = fmt::format("{}: bucket {}", spec_text(at.work.spec), at.work.bucket.text());
    line.show(fmt::format("[{}/{}] {}", done + 1, all.size(), what), "progress", {{"work", done + 1}, {"works", all.size()}, {"what", what}});
    const std::vector<AbResult> results = compare(*bench, at.work.bucket, at.a, at.b, set.policy, arguments.times, budget_s, steady_seconds, interrupted);
    for (const AbResult& result : results) ++at.verdicts[result.verdict];
    at.times = static_cast<int>(results.size());
    at.result = results.back();
    at.text = sentence(at.result, set.policy, budget_s);
    line.clear();
    wrong |= at.result.verdict == AbVerdict::wrong;
    undecided |= at.verdicts.contains(AbVerdict::undecided);
    if (arguments.json) entries.push_back(json_of(at));
    else print(at);
  }
  print_problems(*store);
  if (arguments.json) fmt::print("{}\n", Json{{"device", set.device->environment().device}, {"comparisons", entries}}.dump(2));
  if (wrong) return kFailed;
  return undecided || done < all.size() || !set.list.refused.empty() || !set.list.skipped.empty() ? kPartly : kDone;
}

}  // namespace

void add_ab(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<AbArguments>();
  // One problem unless asked for more: a comparison answers a question, a grid is pagetune bench's.
  arguments->model.batches = {8};
  arguments->model.lens = {4096};
  CLI::App* verb = app.add_subcommand("ab", "Compare two configs: both against the oracle, then round by round until it is clear which is faster");
  add_model_options(*verb, arguments->model);
  for (const char* option : {"--batch", "--len"}) verb->get_option(option)->capture_default_str();
  verb->add_option("--a", arguments->a, "Config as JSON, as gen --config takes it; default (the analytic one) or winner (the stored one)")->required();
  verb->add_option("--b", arguments->b, "The config to compare it with, named in the same ways")->required();
  add_device_option(*verb, arguments->device);
  verb->add_option("--budget", arguments->budget, "Time for the rounds of each batch, length and kernel")->capture_default_str();
  verb->add_option("--times", arguments->times, "Compare so often, and count the verdicts: with one config on both sides, how often noise alone makes a difference")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_ab_verb(*arguments); }; });
}

}  // namespace pagetune::cli
