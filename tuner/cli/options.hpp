// What several verbs share: the model, the shape, the device, --json.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "codegen/import/model_config.hpp"
#include "runtime/device.hpp"
#include "tuner/shard.hpp"
#include "tuner/worklist.hpp"

namespace pagetune::cli {

struct ModelOptions {
  std::string model;  // a path, or the name of a model that comes with pagetune
  bool eager = false;         // kernels are timed as an engine without graphs launches them
  bool from_untuned = false;  // in its place: what kernels counted
  int tp = 1;
  std::vector<int> page_sizes{16};
  std::string kv_dtype = "auto";
  std::string layout = "nhd";
  bool lse = false;
  std::vector<int> batches;
  std::vector<int> lens;
};

void add_model_options(CLI::App&, ModelOptions&);
// The same, --from-untuned in the place of all of them, and --eager.
void add_work_options(CLI::App&, ModelOptions&);

// Imports the model for each page size: all of their groups, in that order. UsageError for a model that is not there or an unknown name among the options.
ModelAttention load_model(const ModelOptions&);
// The same, or nothing with --from-untuned.
std::optional<ModelAttention> asked_model(const ModelOptions&);
// --batch and --len where given, else the backend's defaults.
Grid grid(const ModelOptions&, Backend);

void add_device_option(CLI::App&, std::string& device);
// "auto", "cpu", "0", "cuda:0" -> the ids of devices; "all" -> every device found. UsageError for anything else.
std::vector<std::string> device_ids(const std::string& option);
// Those that can be opened. Of each other one it is said on stderr that it could not be, with what follows from it.
std::vector<std::shared_ptr<Device>> devices_here(const char* consequence);
void add_shard_option(CLI::App&, std::string& shard);
// The shard of --shard or of the environment, said on stderr. UsageError.
std::optional<Shard> chosen_shard(const std::string& option);
// "shard": index, count and origin, before "devices".
nlohmann::ordered_json document_json(const std::optional<Shard>&, const nlohmann::ordered_json& devices);

// For verbs that work on one device. UsageError for "all" where there are several.
std::shared_ptr<Device> one_device(const std::string& option);

}  // namespace pagetune::cli
