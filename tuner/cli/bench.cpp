#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "tuner/bench_line.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/progress.hpp"
#include "tuner/cli/tune.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/decode_bench.hpp"

namespace pagetune::cli {
namespace {

struct BenchArguments {
  ModelOptions model;
  std::string device = "auto";
  std::string configs = "tuned";
  std::vector<std::string> config;
  bool no_overlap = false;
  std::string out, peers;
  bool ragged = false;
  bool tune = false;
  std::string budget = "3m";
  bool json = false;
};

// Configs given by hand, each as its difference from the default, or every candidate of the space; those that are not admitted are named.
std::vector<Chosen> listed_configs(const BenchArguments& arguments, const DecodeCell& cell, const Target& target, Bucket bucket) {
  const ConfigSpace& space = ConfigSpace::builtin();
  std::vector<KernelConfig> all;
  for (const std::string& text : arguments.config) {
    all.push_back(default_config(cell.spec, target, bucket));
    const KernelConfig given = KernelConfig::from_json(text);
    for (const auto& [name, value] : given.values()) all.back().set(name, value);
  }
  if (all.empty()) all = space.candidates(cell.spec, target, bucket).configs;
  std::vector<Chosen> chosen;
  for (const KernelConfig& config : all) {
    const std::string reason = space.refusal(cell.spec, config, target, bucket);
    if (reason.empty()) chosen.push_back({config, false});
    else fmt::print(stderr, "left out for batch {}, len {}: {}\n", cell.batch, cell.len, reason);
  }
  return chosen;
}

std::vector<Chosen> configs_of(const BenchArguments& arguments, const DecodeCell& cell, const Target& target, ConfigChooser& chooser) {
  const CallShape call = call_shape(cell);
  if (!arguments.config.empty() || arguments.configs == "space") return listed_configs(arguments, cell, target, call.bucket);
  return chooser.choose(arguments.configs, cell.spec, call);
}

struct Totals {
  int measured = 0, failed = 0;
};

void bench_cell(const BenchArguments& arguments, const DecodeCell& cell, Device& device, Store& store, ConfigChooser& chooser, const Peers& peers, Lines& lines, Totals& totals) {
  std::vector<Chosen> chosen = configs_of(arguments, cell, device.target(), chooser);
  std::vector<KernelConfig> configs;
  for (const Chosen& one : chosen) configs.push_back(one.config);
  std::string what = fmt::format("{}, batch {}, len {}{}", spec_text(cell.spec), cell.batch, cell.len, cell.ragged ? " ragged" : "");
  try {
    MeasurePolicy policy = MeasurePolicy::for_backend(device.target().backend);
    if (arguments.no_overlap) policy.overlap = 0;
    std::vector<Measured> results = measure_decode(device, store, cell, configs, policy);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].correct) {
        ++totals.measured;
        lines.write(line_of(device.environment().device, cell, results[i], chosen[i].tuned, policy.overlap != 0, peers));
      } else {
        ++totals.failed;
        fmt::print(stderr, "wrong result: {}, {}: {}\n", what, results[i].config.canonical_json(), results[i].what);
      }
    }
  } catch (const Error& failure) {
    ++totals.failed;
    fmt::print(stderr, "failed: {}: {}\n", what, failure.what());
  }
}

int run_bench(const BenchArguments& arguments) {
  double budget_s = budget_seconds(arguments.budget);
  std::shared_ptr<Device> device = one_device(arguments.device);
  auto store = Store::open();
  const Peers peers = open_peers(arguments.peers, device->environment().device);
  Lines lines(arguments.out);
  Totals totals;
  catch_interrupt();
  ModelAttention model = load_model(arguments.model);
  Grid cells = grid(arguments.model, device->target().backend);
  if (arguments.tune) {
    Workset set = make_workset(model, arguments.model, device->id());
    if (!set.list.works.empty()) tune_workset(set, *store, budget_s, false, true);
  }
  ConfigChooser chooser(*device, *store);
  std::vector<AttentionSpec> done;
  for (const LayerGroup& group : model.groups) {
    if (std::find(done.begin(), done.end(), group.spec) != done.end()) continue;
    done.push_back(group.spec);
    if (Support support = supports(group.spec, device->target()); !support) {
      ++totals.failed;
      fmt::print(stderr, "not supported: layers {}: {}\n", ranges_text(group.layers), support.reason);
      continue;
    }
    for (int batch : cells.batches)
      for (int len : cells.lens)
        if (!interrupted()) bench_cell(arguments, {group.spec, batch, len, arguments.ragged}, *device, *store, chooser, peers, lines, totals);
  }
  print_problems(*store);
  if (totals.measured == 0) return kFailed;
  return totals.failed > 0 || interrupted() ? kPartly : kDone;
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* verb = app.add_subcommand("bench", "Measure a model's decode kernels: one JSON line per batch, length and page size");
  add_model_options(*verb, arguments->model);
  add_device_option(*verb, arguments->device);
  verb->add_option("--configs", arguments->configs, "tuned (what an engine gets), default (without any measurement), both (side by side), space (all candidates)")
      ->check(CLI::IsMember({"tuned", "default", "both", "space"}))
      ->capture_default_str();
  verb->add_option("--config", arguments->config, "Measure this config instead: JSON of what differs from the default, as {\"NUM_WARPS\":8}; repeat to compare several")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_flag("--no-overlap", arguments->no_overlap, "Plain launches instead of programmatic dependent ones");
  verb->add_flag("--ragged", arguments->ragged, "Lengths spread from len / 16 to len");
  verb->add_flag("--tune", arguments->tune, "Tune for these batches and lengths first");
  verb->add_option("--budget", arguments->budget, "Time for --tune")->capture_default_str();
  verb->add_option("--out", arguments->out, "Also write the lines to this file, after a first line with the command");
  verb->add_option("--peers", arguments->peers, "File with other kernels' times for peer, peer_us and ratio; else the one that comes with pagetune for this device");
  verb->add_flag("--json", arguments->json, "The output is JSON lines with and without this flag");
  verb->callback([=, &run] { run = [=] { return run_bench(*arguments); }; });
}

}  // namespace pagetune::cli
