#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "cache_db/directory.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/table.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/worklist.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostCalls = 10;

struct BinaryCount {
  int64_t count = 0, bytes = 0, last_used_day = 0;
};
std::map<std::pair<std::string, std::string>, BinaryCount> count_binaries(const std::vector<StoredBinary>& binaries) {  // by arch and kind
  std::map<std::pair<std::string, std::string>, BinaryCount> counts;
  for (const StoredBinary& binary : binaries) {
    BinaryCount& at = counts[{binary.arch, binary.kind}];
    ++at.count;
    at.bytes += binary.size;
    at.last_used_day = std::max(at.last_used_day, binary.last_used_day);
  }
  return counts;
}

Json stats_json(const std::string& dir, const StoreReport& report) {
  Json winners = Json::array(), binaries = Json::array(), calls = Json::array(), files = Json::array();
  for (const WinnerCount& count : count_winners(report))
    winners.push_back({{"environment", Json::parse(count.environment.canonical_json())},
                       {"spec", Json::parse(canonical_json(count.spec))},
                       {"winners", count.winners},
                       {"current", count.current},
                       {"unconfirmed", count.winners - count.current},
                       {"other_generator", count.generator},
                       {"other_space", count.space},
                       {"other_policy", count.policy},
                       {"blocked", count.blocked}});
  for (const auto& [place, count] : count_binaries(report.binaries))
    binaries.push_back({{"arch", place.first}, {"kind", place.second}, {"binaries", count.count}, {"bytes", count.bytes}, {"last_used", date_text(count.last_used_day)}});
  const std::vector<Store::Untuned> waiting = waiting_calls(report);
  uint64_t hits = 0;
  for (const Store::Untuned& call : waiting) hits += call.hits;
  for (size_t i = 0; i < std::min(waiting.size(), kMostCalls); ++i)
    calls.push_back({{"environment", Json::parse(waiting[i].environment.canonical_json())},
                     {"spec", Json::parse(canonical_json(waiting[i].spec))},
                     {"batch", waiting[i].bucket.batch()},
                     {"len", waiting[i].bucket.len()},
                     {"calls", waiting[i].hits}});
  for (const FileReport* file : report.files()) files.push_back(file_json(*file));
  return {{"store", dir},
          {"winners", winners},
          {"blocked_configs", report.blocks.size()},
          {"binaries", binaries},
          {"untuned", {{"buckets", waiting.size()}, {"calls", hits}, {"most_called", calls}}},
          {"files", files}};
}

void print_winners(const StoreReport& report) {
  const std::vector<WinnerCount> counts = count_winners(report);
  if (counts.empty()) {
    fmt::print("no winners: pagetune tune finds them\n");
    return;
  }
  Table table({"device", "kernel", ">winners", ">current", ">other generator", ">other space", ">other policy", ">blocked"});
  for (const WinnerCount& count : counts) {
    std::vector<std::string> row{count.environment.text(), spec_text(count.spec)};
    for (const int number : {count.winners, count.current, count.generator, count.space, count.policy, count.blocked}) row.push_back(fmt::format("{}", number));
    table.add(row);
  }
  fmt::print("{}", table.text());
}

void print_binaries(const StoreReport& report) {
  if (report.binaries.empty()) {
    fmt::print("no binaries\n");
    return;
  }
  Table table({"arch", "kind", ">binaries", ">size", "last used"});
  for (const auto& [place, count] : count_binaries(report.binaries))
    table.add({place.first, place.second, fmt::format("{}", count.count), bytes_text(count.bytes), date_text(count.last_used_day)});
  fmt::print("{}", table.text());
}

void print_untuned(const StoreReport& report) {
  const std::vector<Store::Untuned> waiting = waiting_calls(report);
  if (waiting.empty()) {
    fmt::print("no calls without a winner were counted\n");
    return;
  }
  fmt::print("{} without a current winner were called (pagetune tune --from-untuned tunes them){}\n", counted(std::ssize(waiting), "bucket"),
             waiting.size() > kMostCalls ? fmt::format("; the {} most called:", kMostCalls) : ":");
  Table table({">calls", "device", "kernel", "batch x len"});
  for (size_t i = 0; i < std::min(waiting.size(), kMostCalls); ++i)
    table.add({fmt::format("{}", waiting[i].hits), waiting[i].environment.text(), spec_text(waiting[i].spec), waiting[i].bucket.text()});
  fmt::print("{}", table.text());
}

void print_files(const StoreReport& report) {
  Table table({"file", ">size", "state"});
  for (const FileReport* file : report.files()) table.add({file->path, file->state == FileState::missing ? "" : bytes_text(file->bytes), name_of(file->state)});
  fmt::print("{}", table.text());
  for (const FileReport* file : report.files())
    if (!file->why.empty()) fmt::print(stderr, "store: {}: {}\n", file->path, file->why);
}

int run_stats(const CareOptions& options) {
  const std::string dir = store_directory(options.store);
  const StoreReport report = dir == kMemory ? StoreReport{} : inspect_store(dir);
  if (options.json) {
    fmt::print("{}\n", document_text(stats_json(dir, report)));
    return kDone;
  }
  fmt::print("store {}{}\n\n", dir, dir == kMemory ? ": nothing is kept" : "");
  if (dir == kMemory) return kDone;
  print_winners(report);
  if (!report.blocks.empty()) fmt::print("{} must not run\n", counted(std::ssize(report.blocks), "config"));
  fmt::print("\n");
  print_binaries(report);
  fmt::print("\n");
  print_untuned(report);
  fmt::print("\n");
  print_files(report);
  return kDone;
}

}  // namespace

void add_stats(CLI::App& app, Run& run) {
  auto options = std::make_shared<CareOptions>();
  CLI::App* verb = app.add_subcommand("stats", "Count what the store holds: winners by device, kernel and state, binaries, calls that wait for tuning; changes nothing");
  add_care_options(*verb, *options);
  verb->callback([=, &run] { run = [=] { return run_stats(*options); }; });
}

}  // namespace pagetune::cli
