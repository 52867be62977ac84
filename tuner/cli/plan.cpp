#include <set>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tuner/bandwidth.hpp"
#include "tuner/budget.hpp"
#include "tuner/candidates.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/estimate.hpp"
#include "tuner/session.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  ModelOptions model;
  std::string device = "auto";
  std::string shard;
  bool retune = false;
  bool json = false;
};

struct PlannedWork {
  Work work;
  bool stored = false;
  CandidateSet candidates;
  double seconds = 0;
};

struct Plan {
  std::vector<PlannedWork> works;
  double seconds = 0;
  int todo = 0;
};

Plan make_plan(const Workset& set, const Store& store, bool retune) {
  const Target& target = set.device->target();
  const Environment& environment = set.device->environment();
  Plan plan;
  for (const AttentionSpec& spec : specs_of(set.list)) {
    std::set<KernelConfig> shapes;
    for (const Work& work : set.list.works) {
      if (work.spec != spec) continue;
      PlannedWork planned;
      planned.work = work;
      planned.stored = !retune && current_winner(store, environment.key(), work, target, set.policy).has_value();
      planned.candidates = candidates_of(work, target, store, environment.key());
      if (!planned.stored) {
        for (const KernelConfig& config : planned.candidates.configs) shapes.insert(shape_of(config));
        auto bytes = static_cast<double>(kv_bytes(spec, static_cast<int64_t>(work.bucket.batch()) * work.bucket.len()));
        planned.seconds = race_seconds(static_cast<int>(planned.candidates.configs.size()), bytes, set.policy, read_bandwidth(environment.device));
        plan.seconds += planned.seconds;
        ++plan.todo;
      }
      plan.works.push_back(std::move(planned));
    }
    plan.seconds += build_seconds(static_cast<int>(shapes.size()), target.backend, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return plan;
}

void print_plan(const Plan& plan, const Workset& set, const Store& store) {
  fmt::print("{}: {} buckets, {} to tune, about {} without a budget; store {}\n\n", set.device->environment().device, plan.works.size(), plan.todo,
             duration_text(plan.seconds), store.dir());
  for (const AttentionSpec& spec : specs_of(set.list)) {
    Table table({"batch x len", ">configs", ">candidates", ">about", "state"});
    std::vector<std::pair<std::string, int>> reasons;
    for (const PlannedWork& planned : plan.works) {
      if (planned.work.spec != spec) continue;
      table.add({planned.work.bucket.text(), fmt::format("{}", planned.candidates.total), fmt::format("{}", planned.candidates.configs.size()),
                 planned.stored ? "" : duration_text(planned.seconds), planned.stored ? "stored" : planned.work.hits > 0 ? fmt::format("to tune, {} calls", planned.work.hits) : "to tune"});
      for (const auto& [reason, count] : planned.candidates.rejected) count_reason(reasons, reason, count);
    }
    fmt::print("{}\n{}", spec_text(spec), table.text());
    for (const auto& [reason, count] : reasons) fmt::print("  {} left out: {}\n", count, reason);
    fmt::print("\n");
  }
}

Json plan_json(const Plan& plan, const Workset& set, const Store& store) {
  Json works = Json::array();
  for (const PlannedWork& planned : plan.works) {
    Json rejected = Json::object();
    for (const auto& [reason, count] : planned.candidates.rejected) rejected[reason] = count;
    works.push_back({{"spec", Json::parse(canonical_json(planned.work.spec))},
                     {"batch", planned.work.bucket.batch()},
                     {"len", planned.work.bucket.len()},
                     {"hits", planned.work.hits},
                     {"stored", planned.stored},
                     {"configs", planned.candidates.total},
                     {"candidates", planned.candidates.configs.size()},
                     {"rejected", rejected},
                     {"seconds", planned.seconds}});
  }
  return {{"device", set.device->environment().device}, {"store", store.dir()}, {"to_tune", plan.todo}, {"seconds", plan.seconds}, {"works", works}};
}

int run_plan(const PlanArguments& arguments) {
  std::optional<Shard> shard = chosen_shard(arguments.shard);
  std::vector<std::string> ids = device_ids(arguments.device);
  const std::optional<ModelAttention> model = asked_model(arguments.model);
  auto store = Store::open();
  Json plans = Json::array();
  for (const std::string& id : ids) {
    Workset set = model ? make_workset(*model, arguments.model, id) : make_untuned_workset(arguments.model, *store, id, arguments.retune);
    print_left_out(set.list);
    require_some(set.list, set.device->target());
    if (shard) keep_shard(set.list, *shard);
    Plan plan = make_plan(set, *store, arguments.retune);
    if (arguments.json)
      plans.push_back(plan_json(plan, set, *store));
    else
      print_plan(plan, set, *store);
  }
  print_problems(*store);
  if (arguments.json) fmt::print("{}\n", document_json(shard, plans).dump(2));
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "Show what tune would do: buckets, candidates, time. Runs nothing");
  add_work_options(*verb, arguments->model);
  add_device_option(*verb, arguments->device);
  add_shard_option(*verb, arguments->shard);
  verb->add_flag("--retune", arguments->retune, "As with tune: also what is stored already");
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_plan(*arguments); }; });
}

}  // namespace pagetune::cli
