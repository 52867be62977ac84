#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pagetune/error.hpp"
#include "runtime/build.hpp"
#include "runtime/dispatch.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "runtime/parallel.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PrewarmArguments {
  ModelOptions model;
  std::string device = "auto";
  bool json = false;
};

struct Warmed {
  size_t binaries = 0, winners = 0;
  uint64_t compiled = 0;
  std::vector<std::string> failures;
};

// The binaries of all winners of the model's specs, and of the defaults that answer beside them.
Warmed prewarm(const Workset& set, Store& store) {
  const Target& target = set.device->target();
  Warmed warmed;
  std::vector<std::pair<AttentionSpec, KernelConfig>> todo;
  LayeredWinners all = store.layered_winners(set.device->environment());
  for (const AttentionSpec& spec : specs_of(set.list)) {
    std::map<KernelConfig, KernelConfig> shapes;
    std::vector<LayeredWinner>& winners = all[spec_key(spec)];
    const DispatchTable table(spec, target, winners, Blocklist(store, set.device->environment().key(), spec_key(spec)));
    std::erase_if(winners, [&](const LayeredWinner& winner) { return table.refusal(winner.winner).has_value(); });
    for (const LayeredWinner& winner : winners) {
      for (const KernelConfig& config : {winner.winner.config, table.configs()[table.at(winner.winner.bucket).index]}) shapes.emplace(shape_of(config), config);  // smoothing may have chosen another
    }
    warmed.winners += winners.size();
    for (const Work& work : set.list.works) {
      if (work.spec != spec) continue;
      for (const bool alike : {true, false}) {
        const KernelConfig& config = table.configs()[table.at({work.bucket, alike}).index];
        shapes.emplace(shape_of(config), config);
      }
    }
    for (const auto& [shape, config] : shapes) todo.emplace_back(spec, config);
  }
  warmed.binaries = todo.size();
  uint64_t before = store.counters().compiles;
  std::mutex mutex;
  parallel_for(
      static_cast<int64_t>(todo.size()),
      [&](int64_t i) {
        const auto& [spec, config] = todo[static_cast<size_t>(i)];
        try {
          build_binary(set.device->compiler(), store, spec, config, target);
        } catch (const Error& failure) {
          std::lock_guard lock(mutex);
          warmed.failures.push_back(fmt::format("{} of {}: {}", config.canonical_json(), spec_text(spec), failure.what()));
        }
      },
      kCompileThreads);
  warmed.compiled = store.counters().compiles - before;
  return warmed;
}

int run_prewarm(const PrewarmArguments& arguments) {
  std::vector<std::string> ids = device_ids(arguments.device);
  ModelAttention model = load_model(arguments.model);
  auto store = Store::open();
  Json entries = Json::array();
  int code = kDone;
  for (const std::string& id : ids) {
    Workset set = make_workset(model, arguments.model, id);
    print_left_out(set.list);
    require_some(set.list, set.device->target());
    Warmed warmed = prewarm(set, *store);
    for (const std::string& failure : warmed.failures) fmt::print(stderr, "failed: {}\n", failure);
    if (!warmed.failures.empty()) code = warmed.failures.size() == warmed.binaries ? kFailed : kPartly;
    if (code == kDone && !set.list.refused.empty()) code = kPartly;
    entries.push_back({{"device", set.device->environment().device}, {"winners", warmed.winners}, {"binaries", warmed.binaries}, {"compiled", warmed.compiled}, {"failed", warmed.failures}});
    if (!arguments.json)
      fmt::print("{}: {} binaries of {} winners and the defaults beside them are in {}; {} of them were compiled now\n", set.device->environment().device,
                 warmed.binaries - warmed.failures.size(), warmed.winners, store->dir(), warmed.compiled);
  }
  print_problems(*store);
  if (arguments.json) fmt::print("{}\n", Json{{"store", store->dir()}, {"devices", entries}}.dump(2));
  return code;
}

}  // namespace

void add_prewarm(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<PrewarmArguments>();
  CLI::App* verb = app.add_subcommand("prewarm", "Compile and store what a model's engine will load: all winners, and defaults where there is none");
  add_model_options(*verb, arguments->model);
  add_device_option(*verb, arguments->device);
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_prewarm(*arguments); }; });
}

}  // namespace pagetune::cli
