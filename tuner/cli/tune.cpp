#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "pagetune/error.hpp"
#include "tuner/budget.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/progress.hpp"
#include "tuner/cli/tune.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/winners_view.hpp"
#include "tuner/cli/workset.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TuneArguments {
  ModelOptions model;
  std::string device = "auto";
  std::string budget = "3m";
  std::string search = "racing";
  std::string record;
  std::string shard;
  bool retune = false;
  bool json = false;
};

double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string session_id() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return fmt::format("{} {} {}", time, host, getpid());
}

void print_winners(const SessionReport& report, const WorkList& list) {
  for (const AttentionSpec& spec : specs_of(list)) {
    std::vector<Winner> winners;
    std::string layers;
    for (const WorkResult& work : report.works) {
      if (work.work.spec != spec) continue;
      layers = ranges_text(work.work.layers);
      if (work.winner) winners.push_back(*work.winner);
    }
    if (!winners.empty()) fmt::print("{} (layers {})\n{}\n", spec_text(spec), layers, winners_table(spec, winners));
  }
}

void print_unfinished(const SessionReport& report) {
  for (const std::string& wrong : report.wrong) fmt::print(stderr, "blocked: {}\n", wrong);
  for (const WorkResult& work : report.works)
    if (work.outcome == Outcome::failed || work.outcome == Outcome::not_reached)
      fmt::print(stderr, "{}: {}, bucket {}: {}\n", name_of(work.outcome), spec_text(work.work.spec), work.work.bucket.text(), work.message);
}

Json report_json(const SessionReport& report, const Workset& set, const Store& store) {
  Json works = Json::array();
  for (const WorkResult& work : report.works) {
    Json entry{{"outcome", name_of(work.outcome)}, {"batch", work.work.bucket.batch()}, {"len", work.work.bucket.len()}, {"layers", work.work.layers}};
    if (work.winner) entry["winner"] = winner_json(work.work.spec, *work.winner);
    if (!work.message.empty()) entry["message"] = work.message;
    if (work.outcome != Outcome::stored_before) {
      entry["candidates"] = work.candidates;
      entry["timed"] = work.timed;
      Json rejected = Json::object();
      for (const auto& [reason, count] : work.rejected) rejected[reason] = count;
      entry["rejected"] = rejected;
    }
    works.push_back(entry);
  }
  auto left_out = [](const std::vector<LeftOut>& list) {
    Json entries = Json::array();
    for (const LeftOut& one : list) entries.push_back({{"what", one.what}, {"reason", one.reason}});
    return entries;
  };
  return {{"device", set.device->environment().device},
          {"store", store.dir()},
          {"tuned", report.count(Outcome::tuned)},
          {"stored_before", report.count(Outcome::stored_before)},
          {"failed", report.count(Outcome::failed)},
          {"not_reached", report.count(Outcome::not_reached)},
          {"wrong", report.wrong},
          {"refused", left_out(set.list.refused)},
          {"skipped", left_out(set.list.skipped)},
          {"works", works}};
}

void print_report(const SessionReport& report, const Workset& set, const Store& store) {
  if (report.works.empty()) {
    fmt::print("nothing to do on {}: no bucket of this model falls into this shard\n", set.device->environment().device);
    return;
  }
  int tuned = report.count(Outcome::tuned), before = report.count(Outcome::stored_before);
  if (before == static_cast<int>(report.works.size()))
    fmt::print("nothing was compiled or tuned: {} winners of this device are in {}\n\n", before, store.dir());
  else
    fmt::print("{}: {} buckets tuned{}\n\n", set.device->environment().device, tuned, before ? fmt::format(", {} stored before", before) : "");
  print_winners(report, set.list);
  print_unfinished(report);
  if (tuned > 0) fmt::print("stored in {}\n", store.dir());
  if (const int left = report.count(Outcome::not_reached); left > 0) {
    std::fflush(stdout);
    fmt::print(stderr, "{} left: the same command goes on with {}\n", left == 1 ? "1 bucket is" : fmt::format("{} buckets are", left), left == 1 ? "it" : "them");
  }
}

int exit_code(const SessionReport& report, const WorkList& list) {
  int done = report.count(Outcome::tuned) + report.count(Outcome::stored_before);
  if (done == 0 && !report.works.empty()) return kFailed;
  bool all = done == static_cast<int>(report.works.size()) && list.refused.empty();
  return all ? kDone : kPartly;
}

int run_tune(const TuneArguments& arguments) {
  double budget_s = budget_seconds(arguments.budget);
  Search search = search_option(arguments.search);
  std::ofstream recording;
  std::function<void(const RecordedRace&)> record;
  if (!arguments.record.empty()) {
    recording.open(arguments.record, std::ios::app);
    if (!recording) throw UsageError(fmt::format("--record: {} cannot be written", arguments.record));
    record = [&](const RecordedRace& race) { recording << to_json(race) << std::endl; };
  }
  std::optional<Shard> shard = chosen_shard(arguments.shard);
  std::vector<std::string> ids = device_ids(arguments.device);
  ModelAttention model = load_model(arguments.model);
  std::vector<int> codes;
  Json reports = Json::array();
  std::shared_ptr<Store> store;
  for (size_t d = 0; d < ids.size() && !interrupted(); ++d) {
    Workset set = make_workset(model, arguments.model, ids[d]);
    if (!store) store = Store::open();
    if (!arguments.json) print_left_out(set.list);
    require_some(set.list, set.device->target());
    if (shard) keep_shard(set.list, *shard);
    catch_interrupt();
    // Devices are tuned one after the other; each has its part of what is left.
    SessionReport report = tune_workset(set, *store, budget_s / static_cast<double>(ids.size()), arguments.retune, arguments.json, search, record);
    if (arguments.json)
      reports.push_back(report_json(report, set, *store));
    else
      print_report(report, set, *store);
    codes.push_back(exit_code(report, set.list));
  }
  print_problems(*store);
  if (arguments.json) fmt::print("{}\n", document_json(shard, reports).dump(2));
  if (codes.size() < ids.size()) return kPartly;
  bool same = std::all_of(codes.begin(), codes.end(), [&](int code) { return code == codes.front(); });
  return same ? codes.front() : kPartly;
}

}  // namespace

double budget_seconds(const std::string& text) {
  try {
    return parse_duration(text);
  } catch (const Error& wrong) {
    throw UsageError(fmt::format("--budget: {}", wrong.what()));
  }
}

Search search_option(const std::string& name) {
  try {
    return search_from(name);
  } catch (const Error& wrong) {
    throw UsageError(fmt::format("--search: {}", wrong.what()));
  }
}

SessionReport tune_workset(const Workset& set, Store& store, double budget_s, bool retune, bool quiet, Search search, const std::function<void(const RecordedRace&)>& record) {
  Device& device = *set.device;
  ProgressLine line(quiet);
  SessionContext context;
  context.target = device.target();
  context.environment = device.environment();
  context.store = &store;
  context.workbench = [&](const AttentionSpec& spec) { return make_workbench(device, store, spec, set.policy); };
  context.now_s = steady_seconds;
  context.interrupted = interrupted;
  context.progress = [&](const Progress& progress) {
    line.show(fmt::format("[{}/{}] {}; done within {}", progress.work + 1, progress.works, progress.what, duration_text(progress.eta_s)));
  };
  SessionOptions options;
  options.budget_s = budget_s;
  options.retune = retune;
  options.policy = set.policy;
  options.search = search;
  options.record = record;
  options.id = session_id();
  return run_session(context, options, set.list.works);
}

void add_tune(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* verb = app.add_subcommand("tune", "Find the fastest kernels of a model on this machine and store them");
  add_model_options(*verb, arguments->model);
  add_device_option(*verb, arguments->device);
  verb->add_option("--budget", arguments->budget, "Time for the whole session: 90s, 3m, 1h")->capture_default_str();
  verb->add_option("--search", arguments->search, "Who is timed: racing (all, or coarse to fine), model (who a model of the times so far expects the most of), exhaustive (all to the end: a reference)")->capture_default_str();
  verb->add_option("--record", arguments->record, "Append every race with all of its samples to this file, for `pagetune simulate`");
  add_shard_option(*verb, arguments->shard);
  verb->add_flag("--retune", arguments->retune, "Also measure again what is stored already");
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_tune(*arguments); }; });
}

}  // namespace pagetune::cli
