#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/fastdeploy.hpp"
#include "codegen/fastdeploy_file.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/file.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct FastDeployArguments {
  std::string file;
  std::vector<std::string> models;
  std::string out;
  std::string cache_type = "c16";
  std::string target = "sm_90a";
  int tp = 1;
  bool speculative = false;
  bool json = false;
};

struct ModelNeeds {
  std::string model;  // as the command line has it
  fastdeploy::Needs needs;
  std::string failure;  // why the model has no shape with this --tp
};

struct Count {
  int64_t instantiations = 0, files = 0;
};

Count count(const std::vector<fastdeploy::Entry>& entries) {
  Count sum;
  for (const fastdeploy::Entry& entry : entries) {
    sum.instantiations += fastdeploy::instantiations(entry);
    sum.files += fastdeploy::files(entry);
  }
  return sum;
}

std::string count_text(const Count& sum) { return fmt::format("{} in {}", counted(sum.instantiations, "instantiation"), counted(sum.files, "file")); }

Target target_of(const std::string& name) {
  try {
    return Target::by_name(name);
  } catch (const Error& wrong) {
    throw UsageError(fmt::format("--target: {}", wrong.what()));
  }
}

std::vector<ModelNeeds> needs_of(const FastDeployArguments& arguments, const std::vector<fastdeploy::Entry>& entries) {
  const fastdeploy::Deployment deployment{fastdeploy::cache_type_from_name(arguments.cache_type), arguments.speculative};
  std::vector<ModelNeeds> all;
  for (const std::string& name : arguments.models) {
    ModelOptions options;
    options.model = name;
    options.tp = arguments.tp;
    options.page_sizes = {fastdeploy::kPageSize};
    options.layout = "hnd";
    ModelNeeds model{name, {}, ""};
    try {
      model.needs = fastdeploy::needs(entries, load_model(options), deployment);
    } catch (const Error& refused) {
      model.failure = refused.what();
    }
    all.push_back(std::move(model));
  }
  return all;
}

bool complete(const std::vector<ModelNeeds>& models) {
  return std::all_of(models.begin(), models.end(), [](const ModelNeeds& model) { return model.failure.empty() && model.needs.unserved.empty(); });
}

void print_unserved(const std::vector<ModelNeeds>& models) {
  for (const ModelNeeds& model : models) {
    if (!model.failure.empty()) fmt::print(stderr, "{} was left out: {}\n", model.model, model.failure);
    for (const fastdeploy::Needs::Unserved& group : model.needs.unserved)
      fmt::print(stderr, "{}, layers {}, has no kernel in this file: {}\n", model.model, ranges_text(group.layers), group.reason);
  }
}

Json unserved_json(const ModelNeeds& model) {
  Json entries = Json::array();
  for (const fastdeploy::Needs::Unserved& group : model.needs.unserved) entries.push_back({{"layers", group.layers}, {"reason", group.reason}});
  return entries;
}

// What the file instantiates, and what of it is covered and is not.
void print_entries(const std::vector<fastdeploy::Entry>& entries, const Target& target) {
  Table table({"entry", ">instantiations", ">files", ">covered"}), reasons({"entry", ">not covered", "because"});
  int64_t covered = 0;
  for (const fastdeploy::Entry& entry : entries) {
    const fastdeploy::Coverage coverage = fastdeploy::coverage(entry, target);
    covered += coverage.covered;
    table.add({entry.name, fmt::format("{}", fastdeploy::instantiations(entry)), fmt::format("{}", fastdeploy::files(entry)), fmt::format("{}", coverage.covered)});
    for (const auto& [reason, number] : coverage.refused) reasons.add({entry.name, fmt::format("{}", number), reason});
  }
  fmt::print("{}; pagetune's kernels for {} cover {}\n\n{}\n{}", count_text(count(entries)), target.arch, covered, table.text(), reasons.text());
}

Json entries_json(const std::vector<fastdeploy::Entry>& entries, const Target& target) {
  Json all = Json::array();
  for (const fastdeploy::Entry& entry : entries) {
    const fastdeploy::Coverage coverage = fastdeploy::coverage(entry, target);
    Json refused = Json::array();
    for (const auto& [reason, number] : coverage.refused) refused.push_back({{"instantiations", number}, {"reason", reason}});
    all.push_back({{"name", entry.name},
                   {"function_name", entry.function_name},
                   {"instantiations", fastdeploy::instantiations(entry)},
                   {"files", fastdeploy::files(entry)},
                   {"covered", coverage.covered},
                   {"not_covered", refused}});
  }
  return all;
}

void print_models(const std::vector<fastdeploy::Entry>& entries, const std::vector<ModelNeeds>& models, const Count& total) {
  Table table({"model", ">needs", ">files"});
  for (const ModelNeeds& model : models) {
    const Count own = count(fastdeploy::pruned(entries, model.needs.instances));
    table.add({model.model, fmt::format("{}", own.instantiations), fmt::format("{}", own.files)});
  }
  fmt::print("\n{}\nneeded: {}\n", table.text(), count_text(total));
}

Json models_json(const std::vector<fastdeploy::Entry>& entries, const std::vector<ModelNeeds>& models) {
  Json all = Json::array();
  for (const ModelNeeds& model : models) {
    const Count own = count(fastdeploy::pruned(entries, model.needs.instances));
    all.push_back({{"model", model.model}, {"instantiations", own.instantiations}, {"files", own.files}, {"without_kernel", unserved_json(model)}});
    if (!model.failure.empty()) all.back()["error"] = model.failure;
  }
  return all;
}

int run_fastdeploy(const FastDeployArguments& arguments) {
  if (!arguments.out.empty() && arguments.models.empty()) throw UsageError("--out needs models: it names the file for the instantiations that they need");
  const Target target = target_of(arguments.target);
  const std::vector<fastdeploy::Entry> entries = fastdeploy::read_template_config(arguments.file, read_file(arguments.file, "FastDeploy's template_config.json", fastdeploy::kMaxFileBytes));
  const std::vector<ModelNeeds> models = needs_of(arguments, entries);
  std::set<fastdeploy::Instance> needed;
  for (const ModelNeeds& model : models) needed.insert(model.needs.instances.begin(), model.needs.instances.end());
  const std::vector<fastdeploy::Entry> part = fastdeploy::pruned(entries, needed);
  const bool write = !arguments.out.empty() && !part.empty();
  if (write) write_file(arguments.out, fastdeploy::template_config_text(part));

  if (arguments.json) {
    const Count whole = count(entries), total = count(part);
    Json document{{"file", arguments.file}, {"target", target.arch}, {"instantiations", whole.instantiations}, {"files", whole.files}, {"entries", entries_json(entries, target)}};
    if (!models.empty()) {
      document["models"] = models_json(entries, models);
      document["needed"] = {{"instantiations", total.instantiations}, {"files", total.files}};
      if (write) document["needed"]["written"] = arguments.out;
    }
    fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_entries(entries, target);
    if (!models.empty()) print_models(entries, models, count(part));
    if (write) fmt::print("written to {}\n", arguments.out);
  }
  print_unserved(models);
  if (!arguments.out.empty() && !write) fmt::print(stderr, "'{}' was not written: no model here has a kernel in {}\n", arguments.out, arguments.file);
  return complete(models) ? kDone : kPartly;
}

}  // namespace

void add_fastdeploy(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<FastDeployArguments>();
  CLI::App* verb = app.add_subcommand("fastdeploy", "Read FastDeploy's template_config.json: what it instantiates, what of that pagetune covers, and what models need of it, also as a file for FastDeploy's build");
  verb->add_option("template_config", arguments->file, "FastDeploy's custom_ops/gpu_ops/append_attn/template_config.json")->required();
  verb->add_option("models", arguments->models, "Paths of config.json, or names of models that come with pagetune");
  verb->add_option("--out", arguments->out, "File to write: a template_config.json with no other instantiations than the models need");
  verb->add_option("--tp", arguments->tp, "Tensor-parallel ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  verb->add_option("--cache-type", arguments->cache_type, "Type of the KV cache, in brackets FastDeploy's cache_quant_type: c16 (none), c8 (cache_int8), c8_fp8 (cache_fp8), c8_block_wise_fp8 (block_wise_fp8) or c4 (cache_int4_zp)")
      ->check(CLI::IsMember(fastdeploy::cache_type_names()))
      ->capture_default_str();
  verb->add_flag("--speculative", arguments->speculative, "Decode steps bring draft tokens");
  verb->add_option("--target", arguments->target, "Architecture that pagetune's kernels are for: sm_80, sm_90a, …")->capture_default_str();
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_fastdeploy(*arguments); }; });
}

}  // namespace pagetune::cli
