#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

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
#include "tuner/remote_workbench.hpp"

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
  bool in_process = false;
};

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
    if (!winners.empty()) fmt::print("{}{}\n{}\n", spec_text(spec), layers.empty() ? "" : " (layers " + layers + ")", winners_table(spec, winners));
  }
}

void print_unfinished(const SessionReport& report) {
  for (const std::string& wrong : report.wrong) fmt::print(stderr, "blocked: {}\n", wrong);
  for (const std::string& problem : report.throttled) fmt::print(stderr, "throttled: {}: the device slowed down in its race and stayed slow; when it has cooled, tune with --retune\n", problem);
  for (const std::string& left_out : report.left_out) fmt::print(stderr, "left out: {}\n", left_out);
  for (const WorkResult& work : report.works)
    if (work.outcome == Outcome::failed || work.outcome == Outcome::not_reached)
      fmt::print(stderr, "{}: {}, bucket {}: {}\n", name_of(work.outcome), spec_text(work.work.spec), work.work.bucket.text(), work.message);
}

Json work_json(const WorkResult& work) {
  Json entry{{"outcome", name_of(work.outcome)}, {"batch", work.work.bucket.batch()}, {"len", work.work.bucket.len()}, {"layers", work.work.layers}};
  if (work.work.hits > 0) entry["hits"] = work.work.hits;
  if (work.winner) entry["winner"] = winner_json(work.work.spec, *work.winner);
  if (!work.message.empty()) entry["message"] = work.message;
  if (work.outcome != Outcome::stored_before) {
    entry["candidates"] = work.candidates;
    entry["timed"] = work.timed;
    Json rejected = Json::object();
    for (const auto& [reason, count] : work.rejected) rejected[reason] = count;
    entry["rejected"] = rejected;
  }
  return entry;
}

Json report_json(const SessionReport& report, const Workset& set, const Store& store) {
  Json works = Json::array();
  for (const WorkResult& work : report.works) works.push_back(work_json(work));
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
          {"throttled", report.throttled},
          {"left_out", report.left_out},
          {"unstored", store.usage().unstored},
          {"refused", left_out(set.list.refused)},
          {"skipped", left_out(set.list.skipped)},
          {"works", works}};
}

void print_report(const SessionReport& report, const Workset& set, const Store& store, bool from_untuned) {
  if (report.works.empty()) {
    fmt::print("nothing to do on {}: {}\n", set.device->environment().device,
               from_untuned ? fmt::format("no call without a winner was counted in {}, or none for this shard", store.dir()) : "no bucket of this model falls into this shard");
    return;
  }
  int tuned = report.count(Outcome::tuned), before = report.count(Outcome::stored_before);
  if (before == static_cast<int>(report.works.size()))
    fmt::print("nothing was compiled or tuned: {} winners of this device are in {}\n\n", before, store.dir());
  else
    fmt::print("{}: {} buckets tuned{}\n\n", set.device->environment().device, tuned, before ? fmt::format(", {} stored before", before) : "");
  print_winners(report, set.list);
  print_unfinished(report);
  if (tuned > 0 && store.usage().unstored == 0) fmt::print("stored in {}\n", store.dir());
  if (const int left = report.count(Outcome::not_reached); left > 0) {
    std::fflush(stdout);
    fmt::print(stderr, "{} left: the same command goes on with {}\n", left == 1 ? "1 bucket is" : fmt::format("{} buckets are", left), left == 1 ? "it" : "them");
  }
}

int exit_code(const SessionReport& report, const WorkList& list) {
  int done = report.count(Outcome::tuned) + report.count(Outcome::stored_before);
  if (done == 0 && !report.works.empty()) return kFailed;
  return report.complete() && list.refused.empty() ? kDone : kPartly;
}

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& said) {
    return said.what();
  } catch (...) {
    return "unknown failure";
  }
}

// One device's session, in a thread of its own where there are several.
struct DeviceSession {
  std::string id;
  Workset set;
  SessionReport report;
  std::exception_ptr failure;
  bool unsuited = false;  // there is nothing to tune, whatever the shard
  bool able = false;      // had works before the devices of its kind shared them out
};

// Each device tunes its part of the works; one that gets none, since others of its kind have all, is left out.
void deal_works(std::vector<DeviceSession>& sessions) {
  std::map<std::string, std::vector<WorkList*>> kinds;
  for (DeviceSession& session : sessions) {
    session.able = !session.set.list.works.empty();
    kinds[session.set.device->environment().key()].push_back(&session.set.list);
  }
  for (const auto& [kind, alike] : kinds) pagetune::deal_works(alike);
  std::erase_if(sessions, [](const DeviceSession& session) { return session.able && session.set.list.works.empty(); });
}

// Each session has the whole budget.
void run_sessions(std::vector<DeviceSession>& sessions, Store& store, double budget_s, const TuneArguments& arguments, const TuneWays& ways) {
  std::vector<std::jthread> threads;
  for (DeviceSession& session : sessions)
    threads.emplace_back([&] {
      try {
        if (session.unsuited) require_some(session.set.list, session.set.device->target());
        session.report = tune_workset(session.set, store, budget_s, arguments.retune, arguments.json, ways);
      } catch (...) {
        session.failure = std::current_exception();
      }
    });
}

int run_tune(const TuneArguments& arguments) {
  double budget_s = budget_seconds(arguments.budget);
  Search search = search_option(arguments.search);
  std::ofstream recording;
  std::mutex recording_mutex;  // of several devices' sessions
  std::function<void(const RecordedRace&)> record;
  if (!arguments.record.empty()) {
    recording.open(arguments.record, std::ios::app);
    if (!recording) throw UsageError(fmt::format("--record: {} cannot be written", arguments.record));
    record = [&](const RecordedRace& race) {
      const std::lock_guard lock(recording_mutex);
      recording << to_json(race) << std::endl;
    };
  }
  std::optional<Shard> shard = chosen_shard(arguments.shard);
  std::vector<DeviceSession> sessions;
  for (std::string& id : device_ids(arguments.device)) sessions.push_back({.id = std::move(id)});
  const std::optional<ModelAttention> model = asked_model(arguments.model);
  std::shared_ptr<Store> store = Store::open();
  for (DeviceSession& session : sessions) {
    session.set = model ? make_workset(*model, arguments.model, session.id) : make_untuned_workset(arguments.model, *store, session.id, arguments.retune);
    const WorkList& list = session.set.list;
    if (!arguments.json) print_left_out(list);
    session.unsuited = none_suits(list);
    if (shard) keep_shard(session.set.list, *shard);
  }
  deal_works(sessions);
  catch_interrupt();
  run_sessions(sessions, *store, budget_s, arguments, {.workers = !arguments.in_process, .beside_others = sessions.size() > 1, .search = search, .record = record});

  std::vector<int> codes;
  Json reports = Json::array();
  for (const DeviceSession& session : sessions) {
    if (session.failure) {
      if (sessions.size() == 1) std::rethrow_exception(session.failure);
      fmt::print(stderr, "{}: {}\n", session.id, message_of(session.failure));
      codes.push_back(kFailed);
      continue;
    }
    if (arguments.json)
      reports.push_back(report_json(session.report, session.set, *store));
    else
      print_report(session.report, session.set, *store, arguments.model.from_untuned);
    codes.push_back(exit_code(session.report, session.set.list));
  }
  print_problems(*store);
  if (const int64_t lost = store->usage().unstored; lost > 0) {
    fmt::print(stderr, "{} could not be stored and {} lost with the end of this program: repair what is said above, or set PAGETUNE_CACHE_DIR to a directory of your own, and tune again\n",
               lost == 1 ? "1 winner" : fmt::format("{} winners", lost), lost == 1 ? "is" : "are");
    codes.push_back(kPartly);
  }
  if (arguments.json) fmt::print("{}\n", document_json(shard, reports).dump(2));
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

SessionReport tune_workset(const Workset& set, Store& store, double budget_s, bool retune, bool quiet, const TuneWays& ways) {
  Device& device = *set.device;
  ProgressLine line(quiet, ways.beside_others ? device.id() : "");
  std::optional<Workers> workers;
  if (ways.workers) workers.emplace(std::vector<std::string>{"/proc/self/exe", "worker"}, device.id(), device.target(), store.dir());
  SessionContext context;
  context.target = device.target();
  context.environment = device.environment();
  context.store = &store;
  context.workbench = [&](const AttentionSpec& spec) {
    return workers ? make_remote_workbench(*workers, spec, set.policy) : make_workbench(device, store, spec, set.policy);
  };
  context.now_s = steady_seconds;
  context.interrupted = interrupted;
  context.progress = [&](const Progress& progress) {
    line.show(fmt::format("[{}/{}] {}; done within {}", progress.work + 1, progress.works, progress.what, duration_text(progress.eta_s)), "progress",
              {{"work", progress.work + 1}, {"works", progress.works}, {"what", progress.what}, {"eta_s", std::round(progress.eta_s * 10) / 10}});
  };
  context.ended = [&](const WorkResult& work) {
    Json event = work_json(work);
    if (!work.winner) event["spec"] = Json::parse(canonical_json(work.work.spec));
    line.note("bucket", event);
  };
  SessionOptions options;
  options.budget_s = budget_s;
  options.retune = retune;
  options.policy = set.policy;
  options.search = ways.search;
  options.record = ways.record;
  options.id = session_id();
  return run_session(context, options, set.list.works);
}

void add_tune(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* verb = app.add_subcommand("tune", "Find the fastest kernels of a model on this machine and store them");
  add_work_options(*verb, arguments->model);
  add_device_option(*verb, arguments->device);
  verb->add_option("--budget", arguments->budget, "Time for the whole session of each device: 90s, 3m, 1h")->capture_default_str();
  verb->add_option("--search", arguments->search, "Who is timed: racing (all, or coarse to fine), model (who a model of the times so far expects the most of), exhaustive (all to the end: a reference)")->capture_default_str();
  verb->add_option("--record", arguments->record, "Append every race with all of its samples to this file, for `pagetune simulate`");
  add_shard_option(*verb, arguments->shard);
  verb->add_flag("--retune", arguments->retune, "Also measure again what is stored already");
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->add_flag("--in-process", arguments->in_process, "Run candidates in this process, for a debugger")->group("");
  verb->callback([=, &run] { run = [=] { return run_tune(*arguments); }; });
}

}  // namespace pagetune::cli
