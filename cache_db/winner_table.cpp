#include "cache_db/winner_table.hpp"

#include <fmt/format.h>

#include <mutex>

#include "cache_db/layers.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

std::string damaged_sentence(const WinnerFile& file) {
  return fmt::format("{} holds winners that do not match their digest (damaged, edited by hand or of another version); they are ignored, "
                     "tune those buckets again or import them from an exported table",
                     file.path());
}

}  // namespace

WinnerTable::WinnerTable(const std::string& dir, Problems& problems)
    : problems_(problems), file_(open_winner_file(dir, problems)) {}

void WinnerTable::put(const Store::Row& row) {
  const Winner& w = row.winner;
  check_winner(w, "a winner");
  if (w.env_key != row.environment.key() || w.spec_key != spec_key(row.spec))
    throw Error(ErrorCode::invalid_argument, "a winner's env_key and spec_key must be those of the environment and the spec it comes with");
  const bool stored = file_->put({{row}, {}});
  std::lock_guard lock(mutex_);
  Key key{w.env_key, w.spec_key, w.bucket};
  if (stored) {
    rows_.erase(key);
  } else {
    rows_[key] = row;
  }
}

std::vector<Winner> WinnerTable::find(const std::string& env_key, const std::string& spec) {
  std::map<Bucket, Winner> found;
  for (auto& row : file_->rows({spec, env_key})) {
    if (row) {
      found[row->winner.bucket] = std::move(row->winner);
    } else {
      problems_.say(damaged_sentence(*file_));
    }
  }
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, row] : rows_) {
      if (std::get<0>(key) == env_key && std::get<1>(key) == spec) found[std::get<2>(key)] = row.winner;
    }
  }
  std::vector<Winner> winners;
  for (auto& [bucket, winner] : found) winners.push_back(std::move(winner));
  return winners;
}

std::map<WinnerTable::Key, Store::Row> WinnerTable::stored_rows(const std::string& spec_key) {
  std::map<Key, Store::Row> result;
  for (auto& row : file_->rows({spec_key, ""})) {
    if (row) {
      Key key{row->winner.env_key, row->winner.spec_key, row->winner.bucket};
      result.emplace(std::move(key), std::move(*row));
    } else {
      problems_.say(damaged_sentence(*file_));
    }
  }
  return result;
}

std::vector<Store::Row> WinnerTable::all(const std::string& spec_key) {
  std::map<Key, Store::Row> rows = stored_rows(spec_key);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, row] : rows_)
      if (spec_key.empty() || std::get<1>(key) == spec_key) rows[key] = row;
  }
  std::vector<Store::Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  return sorted;
}

LayeredWinners WinnerTable::candidates(const Environment& own, const std::string& generator, const std::string& spec_key) {
  Choices stored = file_->choices(own, generator, spec_key);
  if (stored.damaged > 0) problems_.say(damaged_sentence(*file_));
  std::lock_guard lock(mutex_);
  std::vector<Store::Row> unstored;
  for (const auto& [key, row] : rows_)
    if (spec_key.empty() || std::get<1>(key) == spec_key) unstored.push_back(row);
  for (auto& [spec, winners] : pagetune::candidates(own, generator, unstored))
    for (LayeredWinner& one : winners) stored.winners[spec].push_back(std::move(one));
  return std::move(stored.winners);
}

void WinnerTable::block(const std::string& env_key, const std::string& spec, const KernelConfig& config, const std::string& reason) {
  std::string text = config.canonical_json();
  const bool stored = file_->put({{}, {{env_key, spec, config, reason}}});
  std::lock_guard lock(mutex_);
  if (stored) {
    blocks_.erase({env_key, spec, text});
  } else {
    blocks_[{env_key, spec, text}] = {env_key, spec, config, reason};
  }
}

std::vector<std::pair<KernelConfig, std::string>> WinnerTable::blocked(const std::string& env_key, const std::string& spec) {
  std::map<KernelConfig, std::string> found;
  for (auto& block : file_->blocks({spec, env_key})) {
    if (block)
      found[block->config] = block->reason;
    else
      problems_.say(fmt::format("the blocklist of {} holds an entry that is not a config; it is ignored", file_->path()));
  }
  std::lock_guard lock(mutex_);
  for (const auto& [key, block] : blocks_)
    if (block.env_key == env_key && block.spec_key == spec) found[block.config] = block.reason;
  return {found.begin(), found.end()};
}

std::optional<Merged> WinnerTable::merge(const std::vector<MergeSource>& sources, const MergeRule& rule) {
  Merged result;
  const bool stored = file_->change([&](const WinnerFile::Content& there) {
    MergeSource own{file_->path(), {}, there.blocks};
    std::map<Key, const Store::Row*> held;
    for (const Store::Row& row : there.rows) {
      if (row_refusal(row).empty()) own.rows.push_back(row);  // others stay in the file until a bucket's better row replaces them
      held.emplace(Key{row.winner.env_key, row.winner.spec_key, row.winner.bucket}, &row);
    }
    std::map<BlockKey, std::string> reasons;
    for (const Store::Block& block : there.blocks) reasons.emplace(BlockKey{block.env_key, block.spec_key, block.config.canonical_json()}, block.reason);
    std::vector<MergeSource> all = sources;
    all.push_back(std::move(own));
    result = merged(all, rule);
    WinnerFile::Content news;
    for (const Store::Row& row : result.rows) {
      const Winner& w = row.winner;
      const auto found = held.find({w.env_key, w.spec_key, w.bucket});
      if (found == held.end())
        ++result.added;
      else if (found->second->winner != w)
        ++result.replaced;
      else if (found->second->environment == row.environment)
        continue;
      news.rows.push_back(row);
    }
    for (const Store::Block& block : result.blocks) {
      const auto found = reasons.find({block.env_key, block.spec_key, block.config.canonical_json()});
      if (found == reasons.end() || found->second != block.reason) news.blocks.push_back(block);
    }
    return news;
  });
  if (!stored) return std::nullopt;
  return result;
}

int64_t WinnerTable::unstored() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(rows_.size());
}

int64_t WinnerTable::count() {
  const int64_t stored = file_->count();
  std::lock_guard lock(mutex_);
  return stored + static_cast<int64_t>(rows_.size());
}

}  // namespace pagetune
