#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/store.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/file.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"
#include "tuner/report.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ReportArguments {
  ModelOptions model;
  bool all = false;
  std::string device = "all";
  std::string store;
  std::string out = "report.html";
  bool json = false;
};

std::shared_ptr<Store> open_store(const std::string& dir) {
  if (dir.empty()) return Store::open();
  // Opening would make the directory.
  if (!fs::is_regular_file(fs::path(dir) / "winners.db"))
    throw UsageError(fmt::format("--store is '{}': there is no winners.db in it; give the directory that pagetune info --print-cache-dir names", dir));
  return Store::open(dir);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// A device that is here by its environment, any other by its recorded name.
void keep_device(std::vector<Store::Row>& rows, const std::string& option) {
  if (option == "all") return;
  const bool number = !option.empty() && std::all_of(option.begin(), option.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (option == "auto" || option == "cpu" || number || option.starts_with("cuda:")) {
    const std::string key = one_device(option)->environment().key();
    std::erase_if(rows, [&](const Store::Row& row) { return row.winner.env_key != key; });
  } else {
    std::erase_if(rows, [&](const Store::Row& row) { return lower(row.environment.device).find(lower(option)) == std::string::npos; });
  }
}

std::string devices_text(const std::vector<Store::Row>& rows) {
  std::set<std::string> names;
  for (const Store::Row& row : rows) names.insert(row.environment.device);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// "dir/llama-3.1-8b.json" -> "llama-3.1-8b"
std::string name_of_model(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  return name;
}

// What the model's layers need of the store, with the layers' numbers; with --batch or --len, only those buckets.
void keep_model(ReportInput& input, const ModelOptions& options) {
  for (const LayerGroup& group : load_model(options).groups) {
    std::string& text = input.layers[spec_key(group.spec)];
    text += (text.empty() ? "layers " : ", ") + ranges_text(group.layers);
  }
  std::erase_if(input.rows, [&](const Store::Row& row) { return !input.layers.contains(row.winner.spec_key); });
  const auto asked_for = [](const std::vector<int>& values, int log2, int least) {
    return values.empty() || std::any_of(values.begin(), values.end(), [&](int value) { return std::max(nearest_log2(value), least) == log2; });
  };
  std::erase_if(input.rows, [&](const Store::Row& row) {
    const Bucket bucket = row.winner.bucket;
    return !asked_for(options.batches, bucket.batch_log2, 0) || !asked_for(options.lens, bucket.len_log2, Bucket::kMinLenLog2);
  });
}

int run_report(const ReportArguments& arguments) {
  const bool model = !arguments.model.model.empty();
  if (model == arguments.all) throw UsageError("report takes either a MODEL or --all: all winners of the store");
  auto store = open_store(arguments.store);
  ReportInput input;
  input.title = model ? name_of_model(arguments.model.model) : "All winners of the store";
  input.rows = store->all_winners();
  print_problems(*store);
  const size_t stored = input.rows.size();
  const std::string devices = devices_text(input.rows);
  keep_device(input.rows, arguments.device);
  if (model) keep_model(input, arguments.model);
  if (input.rows.empty())
    throw Error(ErrorCode::invalid_argument, stored == 0 ? fmt::format("there is nothing to report: the store {} has no winner; run pagetune tune first", store->dir())
                                                         : fmt::format("there is nothing to report: none of the {} winners in {} is of this model, shape and --device {}; it has winners of {}", stored, store->dir(), arguments.device, devices));
  const size_t winners = input.rows.size();
  const std::string html = report_html(std::move(input));
  write_file(arguments.out, html);
  if (arguments.json) fmt::print("{}\n", Json{{"file", arguments.out}, {"winners", winners}, {"bytes", html.size()}}.dump(2));
  else fmt::print("{}: {} winners, {} KiB\n", arguments.out, winners, (html.size() + 1023) / 1024);
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* verb = app.add_subcommand("report", "Write winners as one HTML page: heat maps, tables, which parameters won");
  add_model_options(*verb, arguments->model);
  verb->get_option("model")->required(false);
  verb->add_flag("--all", arguments->all, "All winners of the store instead of a model's");
  verb->add_option("--device", arguments->device, "all; a device of this machine (auto, cpu, a GPU's number); or a part of a recorded device's name, such as H200")->capture_default_str();
  verb->add_option("--store", arguments->store, "Directory of the store, if not the default one");
  verb->add_option("-o,--out", arguments->out, "File to write")->capture_default_str();
  verb->add_flag("--json", arguments->json, "Print one JSON document about what was written");
  verb->callback([=, &run] { run = [=] { return run_report(*arguments); }; });
}

}  // namespace pagetune::cli
