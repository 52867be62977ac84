#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/shipped_table.hpp"
#include "runtime/dispatch.hpp"
#include "tuner/answer.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/winners_view.hpp"
#include "tuner/cli/workset.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainArguments {
  ModelOptions model;
  std::string device = "auto";
  int64_t total_len = 0;
  bool json = false;
};

const char* name_of(Source source) {
  switch (source) {
    case Source::tuned: return "tuned";
    case Source::nearest: return "nearest";
    case Source::analytic_default: return "analytic default";
    case Source::other_device: return "another device of the class";
  }
  return "?";
}

// Winners of the spec that were measured elsewhere: those of the device's class count where it has none of its own, others never.
std::vector<std::string> remarks(const Workset& set, const Store& store, const AttentionSpec& spec) {
  const Environment& here = set.device->environment();
  std::map<std::pair<bool, std::string>, int> elsewhere;
  for (const Store::Row& row : store.all_winners())
    if (row.spec == spec && row.winner.env_key != here.key())
      ++elsewhere[{row.environment.class_text() == here.class_text(),
                   fmt::format("{} ({}, driver {}, {})", row.environment.device, row.environment.arch, row.environment.driver.empty() ? "none" : row.environment.driver, row.environment.compiler)}];
  std::vector<std::string> made;
  for (const auto& [environment, count] : elsewhere)
    made.push_back(fmt::format("{} winners of another environment {}: {}", count, environment.first ? "of this class count where this one has none in reach" : "do not count here", environment.second));
  return made;
}

// The layer that a config comes from.
std::string layer_of(const LayeredWinner* winner, Source source, const Store& store) {
  if (winner == nullptr || source == Source::analytic_default) return "built in";
  return winner->shipped ? ShippedTable::default_path() : store.dir();
}

std::string layers_of(const WorkList& list, const AttentionSpec& spec) {
  const auto found = std::find_if(list.works.begin(), list.works.end(), [&](const Work& work) { return work.spec == spec; });
  return ranges_text(found->layers);
}

void print(const SourceAnswer& answer) {
  fmt::print("  {} {}: {}\n", answer.answers ? "->" : "  ", name_of(answer.source), answer.why);
  if (answer.winner) {
    const Winner& row = *answer.winner;
    fmt::print("       {} {}, measured {:.2f} us ({:.2f} to {:.2f}), default {:.2f} us, {} tied: {}\n", row.bucket.text(), row.config.canonical_json(), row.median_us, row.ci_low_us, row.ci_high_us, row.default_us,
               row.tied, row.reason);
  }
  for (const std::string& remark : answer.remarks) fmt::print("       {}\n", remark);
}

Json json_of(const AttentionSpec& spec, const SourceAnswer& answer) {
  Json made{{"source", name_of(answer.source)}, {"answers", answer.answers}, {"why", answer.why}, {"remarks", answer.remarks}};
  if (answer.winner) made["row"] = winner_json(spec, *answer.winner);
  return made;
}

int run_explain(const ExplainArguments& arguments) {
  if (arguments.model.batches.size() != 1 || arguments.model.lens.size() != 1) throw UsageError("explain takes one --batch and one --len");
  int batch = arguments.model.batches.front(), len = arguments.model.lens.front();
  ModelAttention model = load_model(arguments.model);
  Workset set;
  set.device = one_device(arguments.device);
  set.policy = MeasurePolicy::for_backend(set.device->target().backend);
  set.list = work_list(model, set.device->target(), grid(arguments.model, set.device->target().backend), 0);
  print_left_out(set.list);
  require_some(set.list, set.device->target());

  auto store = Store::open();
  const CallShape call = call_shape(batch, len, arguments.total_len);
  const Bucket bucket = call.bucket;
  Json entries = Json::array();
  for (const AttentionSpec& spec : specs_of(set.list)) {
    const std::string environment = set.device->environment().key();
    const StoredRows rows{store->layered_winners(set.device->environment(), spec_key(spec)), Blocklist(*store, environment, spec_key(spec)), store->rows_of(spec_key(spec)), environment};
    const DispatchTable table(spec, set.device->target(), rows.winners, rows.blocked);
    const Selection selection = table.at(call);
    const std::vector<SourceAnswer> sources = answers_of(spec, set.device->target(), set.policy, rows, call);
    const std::string layer = layer_of(table.answer(bucket), selection.source, *store);
    const std::vector<std::string> notes = remarks(set, *store, spec);
    if (arguments.json) {
      Json entry{{"spec", Json::parse(canonical_json(spec))},
                 {"bucket", bucket.text()},
                 {"source", name_of(selection.source)},
                 {"layer", layer},
                 {"config", Json::parse(table.configs()[selection.index].canonical_json())},
                 {"explanation", table.explain(call)},
                 {"sources", Json::array()},
                 {"remarks", notes}};
      for (const SourceAnswer& one : sources) entry["sources"].push_back(json_of(spec, one));
      if (sources.front().winner) entry["winner"] = winner_json(spec, *sources.front().winner);
      entries.push_back(entry);
      continue;
    }
    fmt::print("{} (layers {})\n  batch {}, len {}{}: {}\n", spec_text(spec), layers_of(set.list, spec), batch, len, arguments.total_len ? fmt::format(", {} tokens in all", arguments.total_len) : "",
               table.explain(call));
    fmt::print("  layer: {}\n", layer == "built in" ? "built in; the store " + store->dir() + " has no answer" : layer);
    for (const SourceAnswer& one : sources) print(one);
    for (const std::string& note : notes) fmt::print("  {}\n", note);
  }
  print_problems(*store);
  if (arguments.json) fmt::print("{}\n", Json{{"device", set.device->environment().device}, {"answers", entries}}.dump(2));
  return set.list.refused.empty() ? kDone : kPartly;
}

}  // namespace

void add_explain(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* verb = app.add_subcommand("explain", "Show which config answers for a batch and a length, from where, and why");
  add_model_options(*verb, arguments->model);
  verb->get_option("--batch")->required();
  verb->get_option("--len")->required();
  verb->add_option("--total-len", arguments->total_len, "Sum of the lengths, if they differ")->check(CLI::NonNegativeNumber);
  add_device_option(*verb, arguments->device);
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_explain(*arguments); }; });
}

}  // namespace pagetune::cli
