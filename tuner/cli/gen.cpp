#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/device.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/winners_view.hpp"
#include "tuner/cli/workset.hpp"
#include "runtime/parallel.hpp"
#include "codegen/launch_plan.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct GenArguments {
  ModelOptions model;
  std::string target = "sm_90a";
  std::string show = "report";
  std::string config;
  bool all = false;
  bool json = false;
};

struct Item {
  AttentionSpec spec;
  KernelConfig config;
  LaunchFacts facts;
  std::string text;     // source or listing
  std::string failure;
};

// One config per binary: the given one, the whole space, or the defaults of the grid's buckets.
std::vector<Item> items_of(const GenArguments& arguments, const WorkList& list, const Target& target) {
  std::vector<Item> items;
  for (const AttentionSpec& spec : specs_of(list)) {
    std::vector<KernelConfig> configs;
    if (!arguments.config.empty()) {
      configs.push_back(KernelConfig::from_json(arguments.config));
      if (Support support = supports(spec, configs.back(), target); !support) throw UsageError(fmt::format("--config: {}", support.reason));
    } else if (arguments.all) {
      configs = ConfigSpace::builtin().candidates(spec, target).configs;
    } else {
      for (const Work& work : list.works)
        if (work.spec == spec) configs.push_back(default_config(spec, target, work.bucket));
    }
    std::map<KernelConfig, KernelConfig> shapes;
    for (const KernelConfig& config : configs) shapes.emplace(shape_of(config), config);
    for (const auto& [shape, config] : shapes) items.push_back({spec, config, {}, {}, {}});
  }
  return items;
}

void make(Item& item, const std::string& show, const Target& target) {
  try {
    KernelSource source = generate(item.spec, item.config, target);
    if (show == "source")
      item.text = source.text;
    else if (show == "report")
      item.facts = compiler_for(target).compile(source).facts;
    else
      item.text = compiler_for(target).listing(source, show);
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::no_device) throw;
    item.failure = failure.what();
  }
}

void print_texts(const std::vector<Item>& items) {
  for (const Item& item : items)
    if (item.failure.empty()) fmt::print("// ---- {} {}\n{}\n", spec_text(item.spec), item.config.canonical_json(), item.text);
}

void print_reports(const std::vector<Item>& items, const WorkList& list, const Target& target) {
  for (const AttentionSpec& spec : specs_of(list)) {
    Table table({"variant", "config", ">registers", ">spilled bytes", ">shared bytes", ">threads", ">tile tokens"});
    for (const Item& item : items)
      if (item.spec == spec && item.failure.empty())
        table.add({fmt::format("V{}", item.config.variant()), shape_text(item.config), fmt::format("{}", item.facts.registers), fmt::format("{}", item.facts.local_bytes),
                   fmt::format("{}", item.facts.shared_bytes + item.facts.static_shared_bytes), fmt::format("{}", item.facts.threads), fmt::format("{}", item.facts.tile_tokens)});
    fmt::print("{} on {}\n{}\n", spec_text(spec), target.arch, table.text());
  }
}

Json item_json(const Item& item, bool report) {
  Json entry{{"spec", Json::parse(canonical_json(item.spec))}, {"config", Json::parse(item.config.canonical_json())}};
  if (!item.failure.empty())
    entry["failure"] = item.failure;
  else if (report)
    entry["facts"] = {{"variant", item.facts.variant},
                      {"threads", item.facts.threads},
                      {"registers", item.facts.registers},
                      {"local_bytes", item.facts.local_bytes},
                      {"shared_bytes", item.facts.shared_bytes},
                      {"static_shared_bytes", item.facts.static_shared_bytes},
                      {"tile_tokens", item.facts.tile_tokens}};
  else
    entry["text"] = item.text;
  return entry;
}

int run_gen(const GenArguments& arguments) {
  Target target;
  try {
    target = Target::by_name(arguments.target);
  } catch (const Error& wrong) {
    throw UsageError(fmt::format("--target: {}", wrong.what()));
  }
  ModelAttention model = load_model(arguments.model);
  WorkList list = work_list(model, target, grid(arguments.model, target.backend), 0);
  print_left_out(list);
  require_some(list, target);
  std::vector<Item> items = items_of(arguments, list, target);
  parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i) { make(items[static_cast<size_t>(i)], arguments.show, target); });

  bool report = arguments.show == "report";
  if (arguments.json) {
    Json kernels = Json::array();
    for (const Item& item : items) kernels.push_back(item_json(item, report));
    fmt::print("{}\n", Json{{"target", target.arch}, {"show", arguments.show}, {"kernels", kernels}}.dump(2));
  } else if (report) {
    print_reports(items, list, target);
  } else {
    print_texts(items);
  }
  auto failed = std::count_if(items.begin(), items.end(), [](const Item& item) { return !item.failure.empty(); });
  for (const Item& item : items)
    if (!item.failure.empty()) fmt::print(stderr, "failed: {} {}: {}\n", spec_text(item.spec), item.config.canonical_json(), item.failure);
  if (failed == static_cast<std::ptrdiff_t>(items.size())) return kFailed;
  return failed > 0 || !list.refused.empty() ? kPartly : kDone;
}

}  // namespace

void add_gen(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<GenArguments>();
  CLI::App* verb = app.add_subcommand("gen", "Generate a model's kernels for a target; no GPU is needed");
  add_model_options(*verb, arguments->model);
  verb->add_option("--target", arguments->target, "Architecture: sm_80, sm_90a, …, or cpu")->capture_default_str();
  verb->add_option("--show", arguments->show, "source, the compiler's text (ptx; on the CPU ir) or report (registers, spills, shared memory)")
      ->check(CLI::IsMember({"source", "ptx", "ir", "report"}))
      ->capture_default_str();
  auto* config = verb->add_option("--config", arguments->config, "Only this config, as JSON");
  verb->add_flag("--all", arguments->all, "All configs of the space, not only the defaults")->excludes(config);
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_gen(*arguments); }; });
}

}  // namespace pagetune::cli
