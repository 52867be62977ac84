#include "cache_db/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "cache_db/winner_json.hpp"

namespace pagetune {
namespace {

struct Entry {
  const Store::Row* row;
  const std::string* from;
  bool current;
};

std::string bytes_of(const Winner& winner) { return winner_to_json(winner).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

// The order of merge.hpp; equal rows by the name of their source, so that messages do not depend on the order either.
bool before(const Entry& a, const Entry& b) {
  if (a.current != b.current) return a.current;
  if (a.row->winner.ci_high_us != b.row->winner.ci_high_us) return a.row->winner.ci_high_us < b.row->winner.ci_high_us;
  std::string of_a = bytes_of(a.row->winner), of_b = bytes_of(b.row->winner);
  return std::tie(of_a, *a.from) < std::tie(of_b, *b.from);
}

bool disagree(const Entry& a, const Entry& b) {
  const Winner &x = a.row->winner, &y = b.row->winner;
  return a.current == b.current && x.config != y.config && (x.ci_high_us < y.ci_low_us || y.ci_high_us < x.ci_low_us);
}

}  // namespace

Merged merged(const std::vector<MergeSource>& sources, const MergeRule& rule) {
  std::map<std::tuple<std::string, std::string, Bucket>, std::vector<Entry>> rows;
  std::map<std::string, int64_t> memory;  // of an environment
  std::map<std::tuple<std::string, std::string, KernelConfig>, std::string> reasons;
  for (const MergeSource& source : sources) {
    for (const Store::Row& row : source.rows) {
      rows[{row.winner.env_key, row.winner.spec_key, row.winner.bucket}].push_back({&row, &source.name, rule.is_current(row)});
      int64_t& most = memory[row.winner.env_key];
      most = std::max(most, row.environment.memory_bytes);
    }
    for (const Store::Block& block : source.blocks) {
      auto [at, is_new] = reasons.emplace(std::tuple{block.env_key, block.spec_key, block.config}, block.reason);
      if (is_new) continue;
      auto order = [&](const std::string& reason) { return std::pair(!rule.block_is_current(reason), reason); };
      at->second = std::min(order(at->second), order(block.reason)).second;
    }
  }
  Merged made;
  for (auto& [key, entries] : rows) {
    std::sort(entries.begin(), entries.end(), before);
    auto same = [](const Entry& a, const Entry& b) { return a.row->winner == b.row->winner; };
    entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
    const Entry& kept = entries.front();
    for (const Entry& other : entries)
      if (disagree(kept, other)) made.conflicts.push_back({*kept.row, *other.row, *kept.from, *other.from});
    made.rows.push_back(*kept.row);
    made.rows.back().environment.memory_bytes = memory.at(std::get<0>(key));
  }
  for (const auto& [key, reason] : reasons) made.blocks.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), reason});
  return made;
}

}  // namespace pagetune
