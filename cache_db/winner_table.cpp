#include "cache_db/winner_table.hpp"

#include <fmt/format.h>

#include <mutex>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_json.hpp"
#include "cache_db/winner_rows.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

std::string placeholders(int count) {
  std::string text = "?";
  for (int i = 1; i < count; ++i) text += ",?";
  return text;
}

// Binds its arguments one after the other.
class Binder {
 public:
  explicit Binder(SQLite::Statement& statement) : statement_(statement) {}
  template <class T>
  Binder& operator<<(const T& value) {
    statement_.bind(next_++, value);
    return *this;
  }
  Binder& dispatch(const AttentionSpec& spec) {
    const std::map<std::string, int> values = dispatch_values(spec);
    for (const char* column : kDispatchColumns) {
      auto found = values.find(column);
      if (found == values.end()) {
        statement_.bind(next_++);
      } else {
        statement_.bind(next_++, found->second);
      }
    }
    return *this;
  }

 private:
  SQLite::Statement& statement_;
  int next_ = 1;
};

void write_environment(SQLite::Database& db, const std::string& key, const Environment& env) {
  SQLite::Statement insert(db, fmt::format("INSERT INTO env ({}) VALUES ({}) ON CONFLICT (env_id) DO UPDATE SET memory_bytes="
                                           "excluded.memory_bytes, json=excluded.json",
                                           kEnvColumns, placeholders(15)));
  Binder(insert) << key << env.backend << env.device << env.arch << env.cpu_features << env.processors << env.memory_bus_bits
                 << env.memory_clock_khz << env.l2_bytes << env.clock_khz << env.ecc << env.driver << env.compiler << env.memory_bytes
                 << env.canonical_json();
  insert.exec();
}

void write_spec(SQLite::Database& db, const std::string& key, const AttentionSpec& spec) {
  SQLite::Statement insert(db, fmt::format("INSERT OR IGNORE INTO spec (spec_key, json{}) VALUES ({})", dispatch_columns(),
                                           placeholders(2 + static_cast<int>(kDispatchColumns.size()))));
  Binder binder(insert);
  binder << key << canonical_json(spec);
  binder.dispatch(spec);
  insert.exec();
}

void write_winner(SQLite::Database& db, const Winner& w, const AttentionSpec& spec) {
  SQLite::Statement insert(db, fmt::format("INSERT OR REPLACE INTO winner ({}{}) VALUES ({})", kWinnerColumns, dispatch_columns(),
                                           placeholders(21 + static_cast<int>(kDispatchColumns.size()))));
  Binder binder(insert);
  binder << w.env_key << w.spec_key << w.bucket.batch() << w.bucket.len() << w.config.canonical_json() << w.median_us << w.ci_low_us
         << w.ci_high_us << w.samples << w.default_us << w.runner_up.canonical_json() << w.runner_up_us << w.tied << w.reason << w.error
         << w.floor_us << w.policy_hash << w.space_hash << w.generator_hash << w.session << winner_digest(w);
  binder.dispatch(spec);
  insert.exec();
}

void write_block(SQLite::Database& db, const Store::Block& block) {
  SQLite::Statement insert(db, "INSERT OR REPLACE INTO blocklist (env_id, spec_key, config, reason) VALUES (?,?,?,?)");
  Binder(insert) << block.env_key << block.spec_key << block.config.canonical_json() << block.reason;
  insert.exec();
}

}  // namespace

void write_missing(SQLite::Database& db, const std::vector<Store::Row>& rows, const std::vector<Store::Block>& blocks) {
  const auto holds = [&](const char* table, const auto&... key) {
    SQLite::Statement select(db, fmt::format("SELECT 1 FROM {}", table));
    Binder binder(select);
    (binder << ... << key);
    return select.executeStep();
  };
  for (const Store::Row& row : rows) {
    const Winner& w = row.winner;
    if (holds("winner WHERE env_id=? AND spec_key=? AND batch=? AND len=?", w.env_key, w.spec_key, w.bucket.batch(), w.bucket.len())) continue;
    write_environment(db, w.env_key, row.environment);
    write_spec(db, w.spec_key, row.spec);
    write_winner(db, w, row.spec);
  }
  for (const Store::Block& block : blocks)
    if (!holds("blocklist WHERE env_id=? AND spec_key=? AND config=?", block.env_key, block.spec_key, block.config.canonical_json())) write_block(db, block);
}

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
  bool stored = db_.write([&](SQLite::Database& db) {
    write_environment(db, w.env_key, row.environment);
    write_spec(db, w.spec_key, row.spec);
    write_winner(db, w, row.spec);
  });
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
  auto stored = db_.read([&](SQLite::Database& db) {
    SQLite::Statement select(db, fmt::format("SELECT {} FROM winner WHERE env_id=? AND spec_key=?", kWinnerColumns));
    Binder(select) << env_key << spec;
    std::vector<std::optional<Winner>> rows;
    while (select.executeStep()) rows.push_back(read_winner(select));
    return rows;
  });
  for (auto& winner : stored.value_or(std::vector<std::optional<Winner>>{})) {
    if (winner) {
      found[winner->bucket] = *winner;
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

std::map<WinnerTable::Key, Store::Row> WinnerTable::stored_rows() {
  auto stored = db_.read([](SQLite::Database& db) { return read_rows(db); });
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

std::vector<Store::Row> WinnerTable::all() {
  std::map<Key, Store::Row> rows = stored_rows();
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, row] : rows_) rows[key] = row;
  }
  std::vector<Store::Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  return sorted;
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
    SQLite::Statement select(db, "SELECT config, reason FROM blocklist WHERE env_id=? AND spec_key=?");
    Binder(select) << env_key << spec;
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
    for (const Store::Row& row : result.rows) {
      const Winner& w = row.winner;
      auto found = held.find({w.env_key, w.spec_key, w.bucket});
      if (found == held.end())
        ++result.added;
      else if (found->second.winner != w)
        ++result.replaced;
      else if (found->second.environment == row.environment)
        continue;
      write_environment(db, w.env_key, row.environment);
      write_spec(db, w.spec_key, row.spec);
      write_winner(db, w, row.spec);
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
