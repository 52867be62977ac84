#include "tuner/cli/store_summary.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "cache_db/blocklist.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/table.hpp"
#include "pagetune/error.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {
namespace {

using Place = std::pair<std::string, std::string>;  // environment, spec

Changes changes_of(const Store::Row& row) {
  const Target target = target_of(row.environment);
  MeasurePolicy policy = MeasurePolicy::for_backend(target.backend);
  // What was tuned with --eager is as good a winner.
  MeasurePolicy eager = policy;
  eager.eager = 1;
  if (row.winner.policy_hash == eager.hash()) policy = eager;
  return changes_since(row.winner, row.spec, target, policy);
}

std::map<Place, Blocklist> blocklists(const StoreReport& report) {
  std::map<Place, std::vector<std::pair<KernelConfig, std::string>>> entries;
  for (const Store::Block& block : report.blocks) entries[{block.env_key, block.spec_key}].emplace_back(block.config, block.reason);
  std::map<Place, Blocklist> lists;
  for (const auto& [place, blocked] : entries) lists.emplace(place, Blocklist(blocked));
  return lists;
}

bool is_blocked(const std::map<Place, Blocklist>& lists, const Winner& winner) {
  const auto found = lists.find({winner.env_key, winner.spec_key});
  return found != lists.end() && found->second.reason(winner.config) != nullptr;
}

}  // namespace

WinnerCount& WinnerCount::operator+=(const WinnerCount& other) {
  winners += other.winners;
  current += other.current;
  generator += other.generator;
  space += other.space;
  policy += other.policy;
  blocked += other.blocked;
  return *this;
}

std::vector<WinnerCount> count_winners(const StoreReport& report) {
  const std::map<Place, Blocklist> lists = blocklists(report);
  std::vector<WinnerCount> counts;
  for (const Store::Row& row : report.rows) {
    if (counts.empty() || counts.back().env_key != row.winner.env_key || counts.back().spec != row.spec) counts.push_back({row.winner.env_key, row.environment, row.spec});
    const Changes changes = changes_of(row);
    WinnerCount one;
    one.winners = 1;
    one.current = changes.any() ? 0 : 1;
    one.generator = changes.generator ? 1 : 0;
    one.space = changes.space ? 1 : 0;
    one.policy = changes.policy ? 1 : 0;
    one.blocked = is_blocked(lists, row.winner) ? 1 : 0;
    counts.back() += one;
  }
  return counts;
}

std::vector<Store::Untuned> waiting_calls(const StoreReport& report) {
  const std::map<Place, Blocklist> lists = blocklists(report);
  std::map<std::tuple<std::string, std::string, Bucket>, bool> answered;
  for (const Store::Row& row : report.rows) answered[{row.winner.env_key, row.winner.spec_key, row.winner.bucket}] = !changes_of(row).any() && !is_blocked(lists, row.winner);
  std::vector<Store::Untuned> waiting;
  for (const Store::Untuned& call : report.untuned)
    if (const auto found = answered.find({call.environment.key(), spec_key(call.spec), call.bucket}); found == answered.end() || !found->second) waiting.push_back(call);
  std::stable_sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.hits > b.hits; });
  return waiting;
}

std::string date_text(int64_t days) {
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days{days}}};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 1 << 10) return fmt::format("{} bytes", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string counted(int64_t count, const std::string& noun, const std::string& plural) {
  return fmt::format("{} {}", count, count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

void add_care_options(CLI::App& verb, CareOptions& options) {
  verb.add_option("--store", options.store, "Directory of the store, if not the default one");
  verb.add_flag("--json", options.json, "Print one JSON document");
}

nlohmann::ordered_json file_json(const FileReport& file) {
  return {{"path", file.path},   {"state", name_of(file.state)}, {"bytes", file.bytes}, {"free_bytes", file.free_bytes}, {"schema_version", file.schema_version}, {"remark", file.why},
          {"wrong_rows", file.wrong.size()}};
}

std::string document_text(const nlohmann::ordered_json& document) { return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace); }

std::string store_directory(const std::string& wanted) {
  const std::string named = wanted.empty() ? Store::default_dir() : wanted;
  if (is_memory(named)) return kMemory;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(named, error);
  if (error) throw Error(ErrorCode::io, fmt::format("the store's directory '{}' cannot be looked at: {}", named, error.message()));
  return path.string();
}

}  // namespace pagetune::cli
