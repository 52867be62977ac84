#include "tuner/cli/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/file.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;

// Where models that come with pagetune lie: in the source tree of this build, or beside the installed program.
std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders{PAGETUNE_MODELS_SOURCE};
  std::error_code ignored;
  fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) folders.push_back(program.parent_path().parent_path() / "share" / "pagetune" / "models");
  return folders;
}

fs::path find_model(const std::string& name) {
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored)) return name;
  std::string tried = name;
  if (name.find('/') == std::string::npos) {
    for (const fs::path& folder : model_folders()) {
      fs::path path = folder / (name.ends_with(".json") ? name : name + ".json");
      if (fs::is_regular_file(path, ignored)) return path;
      tried += ", " + path.string();
    }
  }
  throw UsageError(fmt::format("there is no model '{}': no such file (looked for {}); give the path of a config.json or the name of a model that comes with pagetune", name, tried));
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("model", options.model, "Path of a Hugging Face style config.json, or the name of a model that comes with pagetune (llama-3.1-8b)")->required();
  app.add_option("--tp", options.tp, "Tensor-parallel ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--page-size", options.page_sizes, "Tokens of a page, P,…")->delimiter(',')->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--kv-dtype", options.kv_dtype, "Type of the KV cache: auto (the model's), bf16, fp16, fp32, fp8_e4m3, …")->capture_default_str();
  app.add_option("--layout", options.layout, "Order of a page: nhd or hnd")->capture_default_str();
  app.add_flag("--lse", options.lse, "Kernels that also write the log-sum-exp");
  app.add_option("--batch", options.batches, "Batches, B,…")->delimiter(',')->check(CLI::Range(1, 65536));
  app.add_option("--len", options.lens, "KV lengths in tokens, L,…")->delimiter(',')->check(CLI::Range(1, 4194304));
}

void add_work_options(CLI::App& app, ModelOptions& options) {
  add_model_options(app, options);
  const std::vector<CLI::Option*> others = app.get_options([](const CLI::Option* option) { return option->get_name() != "--help"; });
  CLI::Option* model = app.get_option("model");
  model->required(false);
  CLI::Option* flag = app.add_flag("--from-untuned", options.from_untuned, "In place of a model: the buckets in which programs called kernels on this device and no winner answered, the ones that read most first");
  for (CLI::Option* other : others) flag->excludes(other);
  app.add_flag("--eager", options.eager, "Time launches that are made one by one, as an engine without CUDA graphs makes them. Stored winners that were timed otherwise count as absent");
}

ModelAttention load_model(const ModelOptions& options) {
  if (options.model.empty()) throw UsageError("there is nothing to tune: give a model, or --from-untuned");
  ImportOptions wanted;
  wanted.tp = options.tp;
  wanted.kv_dtype = options.kv_dtype;
  wanted.lse = options.lse;
  try {
    if (options.kv_dtype != "auto") dtype_from_name(options.kv_dtype);
    wanted.layout = layout_from_name(options.layout);
  } catch (const Error& wrong) {
    throw UsageError(wrong.what());
  }
  const fs::path path = find_model(options.model);
  constexpr size_t kMostBytes = 4 << 20;  // a config.json has a few KiB, and the importer refuses anything near this size
  const std::string text = read_file(path, "a model's config", kMostBytes);
  ModelAttention all;
  for (auto page = options.page_sizes.begin(); page != options.page_sizes.end(); ++page) {
    if (std::find(options.page_sizes.begin(), page, *page) != page) continue;
    wanted.page_size = *page;
    ModelAttention model = import_model(path.string(), text, wanted);
    if (page == options.page_sizes.begin()) {
      all = std::move(model);
      continue;
    }
    std::move(model.groups.begin(), model.groups.end(), std::back_inserter(all.groups));
    for (std::string& note : model.notes)
      if (std::find(all.notes.begin(), all.notes.end(), note) == all.notes.end()) all.notes.push_back(std::move(note));
  }
  return all;
}

std::optional<ModelAttention> asked_model(const ModelOptions& options) {
  if (options.from_untuned) return std::nullopt;
  return load_model(options);
}

Grid grid(const ModelOptions& options, Backend backend) {
  Grid made = default_grid(backend);
  if (!options.batches.empty()) made.batches = options.batches;
  if (!options.lens.empty()) {
    made.lens = options.lens;
    made.lens_asked_for = true;
  }
  return made;
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "auto (the first GPU, else the CPU), cpu, all, or a GPU's number")->capture_default_str();
}

std::vector<std::string> device_ids(const std::string& option) {
  if (option == "auto" || option == "cpu") return {option};
  if (option == "all") {
    DeviceList list = list_devices();
    if (!list.ids.empty()) return list.ids;
    std::string reasons;
    for (const std::string& reason : list.absent) reasons += (reasons.empty() ? "" : "; ") + reason;
    throw Error(ErrorCode::no_device, "there is no device: " + reasons);
  }
  std::string number = option.starts_with("cuda:") ? option.substr(5) : option;
  if (number.empty() || number.size() > 4 || number.find_first_not_of("0123456789") != std::string::npos)
    throw UsageError(fmt::format("--device is '{}': allowed are auto, cpu, all, or a GPU's number such as 0", option));
  return {"cuda:" + number};
}

std::vector<std::shared_ptr<Device>> devices_here(const char* consequence) {
  std::vector<std::shared_ptr<Device>> found;
  for (const std::string& id : list_devices().ids) {
    try {
      found.push_back(open_device(id));
    } catch (const Error& failure) {
      fmt::print(stderr, "{} could not be opened, and {}: {}\n", id, consequence, failure.what());
    }
  }
  return found;
}

void add_shard_option(CLI::App& app, std::string& shard) {
  app.add_option("--shard", shard, "i/N: only the buckets of shard i, from 0, of N; none: all. Without it the task of a Slurm array or an indexed Kubernetes Job and the MPI rank say which");
}

std::optional<Shard> chosen_shard(const std::string& option) {
  try {
    std::optional<Shard> shard = find_shard(option, [](const char* name) { return std::getenv(name); });
    if (shard)
      fmt::print(stderr, "shard {} of {}, counted from 0{}\n", shard->index, shard->count,
                 option.empty() ? fmt::format(": this is {} (--shard none takes all buckets)", shard->origin) : "");
    return shard;
  } catch (const Error& wrong) {
    throw UsageError(wrong.what());
  }
}

nlohmann::ordered_json document_json(const std::optional<Shard>& shard, const nlohmann::ordered_json& devices) {
  auto document = nlohmann::ordered_json::object();
  if (shard) document["shard"] = {{"index", shard->index}, {"count", shard->count}, {"origin", shard->origin}};
  document["devices"] = devices;
  return document;
}

std::shared_ptr<Device> one_device(const std::string& option) {
  std::vector<std::string> ids = device_ids(option);
  if (ids.size() > 1) throw UsageError(fmt::format("--device is all, which names {} devices here: this verb takes one", ids.size()));
  return open_device(ids.front());
}

}  // namespace pagetune::cli
