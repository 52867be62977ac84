#include "cache_db/winner_table.hpp"

#include <fmt/format.h>

#include <mutex>

#include "cache_db/layers.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_json.hpp"
#include "cache_db/winner_choices.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

std::string damaged_sentence(const Database& db) {
  return fmt::format("{} holds winners that do not match their digest (damaged, edited by hand or of another version); they are ignored, "
                     "tune those buckets again or import them from an exported table",
                     db.path());
}

}  // namespace

WinnerTable::WinnerTable(const std::string& dir, Problems& problems)
    : problems_(problems), db_(dir, "winners.db", winners_schema(), problems) {}

void WinnerTable::put(const Store::Row& row) {
  const Winner& w = row.winner;
  check_winner(w, "a winner");
  if (w.env_key != row.environment.key() || w.spec_key != spec_key(row.spec))
    throw Error(ErrorCode::invalid_argument, "a winner's env_key and spec_key must be those of the environment and the spec it comes with");
  bool stored = db_.write([&](SQLite::Database& db) { RowWriter(db).put(row); });
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
  auto stored = db_.read([&](SQLite::Database& db) { return read_rows(db, {spec, env_key}); });
  for (auto& row : stored.value_or(std::vector<std::optional<Store::Row>>{})) {
    if (row) {
      found[row->winner.bucket] = std::move(row->winner);
    } else {
      problems_.say(damaged_sentence(db_));
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
  auto stored = db_.read([&](SQLite::Database& db) { return read_rows(db, {spec_key, ""}); });
  std::map<Key, Store::Row> result;
  for (auto& row : stored.value_or(std::vector<std::optional<Store::Row>>{})) {
    if (row) {
      Key key{row->winner.env_key, row->winner.spec_key, row->winner.bucket};
      result.emplace(std::move(key), std::move(*row));
    } else {
      problems_.say(damaged_sentence(db_));
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
  Choices stored = db_.read([&](SQLite::Database& db) { return read_choices(db, own, generator, spec_key); }).value_or(Choices{});
  if (stored.damaged > 0) problems_.say(damaged_sentence(db_));
  std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<Store::Row>> unstored;
  for (const auto& [key, row] : rows_)
    if (spec_key.empty() || std::get<1>(key) == spec_key) unstored[std::get<1>(key)].push_back(row);
  for (const auto& [spec, rows] : unstored)
    for (LayeredWinner& one : pagetune::candidates(own, generator, rows)) stored.winners[spec].push_back(std::move(one));
  return std::move(stored.winners);
}

void WinnerTable::block(const std::string& env_key, const std::string& spec, const KernelConfig& config, const std::string& reason) {
  std::string text = config.canonical_json();
  bool stored = db_.write([&](SQLite::Database& db) { write_block(db, {env_key, spec, config, reason}); });
  std::lock_guard lock(mutex_);
  if (stored) {
    blocks_.erase({env_key, spec, text});
  } else {
    blocks_[{env_key, spec, text}] = reason;
  }
}

std::vector<std::pair<KernelConfig, std::string>> WinnerTable::blocked(const std::string& env_key, const std::string& spec) {
  std::map<std::string, std::string> found;  // config -> reason
  auto stored = db_.read([&](SQLite::Database& db) {
    SQLite::Statement select(db, "SELECT config, reason FROM blocklist WHERE env_key=? AND spec_key=?");
    select.bind(1, env_key);
    select.bind(2, spec);
    std::map<std::string, std::string> rows;
    while (select.executeStep()) rows[select.getColumn(0).getString()] = select.getColumn(1).getString();
    return rows;
  });
  if (stored) found = std::move(*stored);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, reason] : blocks_) {
      if (std::get<0>(key) == env_key && std::get<1>(key) == spec) found[std::get<2>(key)] = reason;
    }
  }
  std::vector<std::pair<KernelConfig, std::string>> blocked;
  for (const auto& [text, reason] : found) {
    try {
      blocked.emplace_back(KernelConfig::from_json(text), reason);
    } catch (const Error&) {
      problems_.say(fmt::format("the blocklist of {} holds an entry that is not a config; it is ignored", db_.path()));
    }
  }
  return blocked;
}

std::optional<Merged> WinnerTable::merge(const std::vector<MergeSource>& sources, const MergeRule& rule) {
  Merged result;
  bool stored = db_.write([&](SQLite::Database& db) {
    MergeSource own{db_.path(), {}, {}};
    std::map<Key, Store::Row> held;
    std::map<BlockKey, std::string> reasons;
    for (auto& row : read_rows(db)) {
      if (!row) continue;
      if (row_refusal(*row).empty()) own.rows.push_back(*row);  // others stay in the file until a bucket's better row replaces them
      held.emplace(Key{row->winner.env_key, row->winner.spec_key, row->winner.bucket}, std::move(*row));
    }
    for (auto& block : read_blocks(db)) {
      if (!block) continue;
      reasons.emplace(BlockKey{block->env_key, block->spec_key, block->config.canonical_json()}, block->reason);
      own.blocks.push_back(std::move(*block));
    }
    std::vector<MergeSource> all = sources;
    all.push_back(std::move(own));
    result = merged(all, rule);
    RowWriter writer(db);
    for (const Store::Row& row : result.rows) {
      const Winner& w = row.winner;
      auto found = held.find({w.env_key, w.spec_key, w.bucket});
      if (found == held.end())
        ++result.added;
      else if (found->second.winner != w)
        ++result.replaced;
      else if (found->second.environment == row.environment)
        continue;
      writer.put(row);
    }
    for (const Store::Block& block : result.blocks) {
      auto found = reasons.find({block.env_key, block.spec_key, block.config.canonical_json()});
      if (found == reasons.end() || found->second != block.reason) write_block(db, block);
    }
  });
  if (!stored) return std::nullopt;
  return result;
}

int64_t WinnerTable::unstored() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(rows_.size());
}

int64_t WinnerTable::count() {
  auto stored = db_.read([](SQLite::Database& db) { return db.execAndGet("SELECT count(*) FROM winner").getInt64(); });
  std::lock_guard lock(mutex_);
  return stored.value_or(0) + static_cast<int64_t>(rows_.size());
}

}  // namespace pagetune
