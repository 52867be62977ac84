#include "cache_db/winner_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kEnvColumns =
    "env_id, backend, device, arch, cpu_features, processors, memory_bus_bits, memory_clock_khz, l2_bytes, clock_khz, ecc, driver, "
    "compiler, memory_bytes, json";
constexpr const char* kWinnerColumns =
    "env_id, spec_key, batch, len, config, median_us, ci_low_us, ci_high_us, samples, default_us, runner_up, runner_up_us, tied, reason, "
    "error, floor_us, policy_hash, space_hash, generator_hash, session, digest";

std::string dispatch_columns(const char* separator = ", ") {
  std::string text;
  for (const char* column : kDispatchColumns) text += separator + std::string(column);
  return text;
}

std::string placeholders(int count) {
  std::string text = "?";
  for (int i = 1; i < count; ++i) text += ",?";
  return text;
}

Schema winners_schema() {
  const std::string dispatch = dispatch_columns(" INTEGER, ").substr(std::string(" INTEGER, ").size()) + " INTEGER";
  Schema schema;
  schema.user_version = 1;
  schema.check_on_open = true;
  schema.sql = fmt::format(R"(
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE env (env_id TEXT PRIMARY KEY, backend TEXT NOT NULL, device TEXT NOT NULL, arch TEXT NOT NULL, cpu_features TEXT NOT NULL,
      processors INTEGER NOT NULL, memory_bus_bits INTEGER NOT NULL, memory_clock_khz INTEGER NOT NULL, l2_bytes INTEGER NOT NULL,
      clock_khz INTEGER NOT NULL, ecc INTEGER NOT NULL, driver TEXT NOT NULL, compiler TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
      json TEXT NOT NULL);
    CREATE TABLE spec (spec_key TEXT PRIMARY KEY, json TEXT NOT NULL, {0});
    CREATE TABLE winner (env_id TEXT NOT NULL REFERENCES env, spec_key TEXT NOT NULL REFERENCES spec, batch INTEGER NOT NULL, len INTEGER NOT NULL,
      config TEXT NOT NULL, median_us REAL NOT NULL, ci_low_us REAL NOT NULL, ci_high_us REAL NOT NULL, samples INTEGER NOT NULL,
      default_us REAL NOT NULL, runner_up TEXT NOT NULL, runner_up_us REAL NOT NULL, tied INTEGER NOT NULL, reason TEXT NOT NULL,
      error REAL NOT NULL, floor_us REAL NOT NULL, policy_hash TEXT NOT NULL, space_hash TEXT NOT NULL, generator_hash TEXT NOT NULL,
      session TEXT NOT NULL, digest TEXT NOT NULL, {0}, UNIQUE (env_id, spec_key, batch, len));
    CREATE TABLE blocklist (env_id TEXT NOT NULL, spec_key TEXT NOT NULL, config TEXT NOT NULL, reason TEXT NOT NULL,
      PRIMARY KEY (env_id, spec_key, config));
    INSERT INTO meta VALUES ('pagetune_version', '{1}'), ('generator_hash', '{2}');
  )",
                           dispatch, PAGETUNE_VERSION, generator_hash());
  schema.columns = {{"meta", "name, value"},
                    {"env", kEnvColumns},
                    {"spec", "spec_key, json" + dispatch_columns()},
                    {"winner", kWinnerColumns + dispatch_columns()},
                    {"blocklist", "env_id, spec_key, config, reason"}};
  return schema;
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

// A power of two's exponent; a damaged cell gives some number, which the digest then refuses.
int log2_of(int64_t value) { return value > 0 ? std::bit_width(static_cast<uint64_t>(value)) - 1 : -1; }

// Nothing if the row does not match its digest. Columns as in kWinnerColumns.
std::optional<Winner> read_winner(SQLite::Statement& row) {
  try {
    Winner w;
    w.env_key = row.getColumn(0).getString();
    w.spec_key = row.getColumn(1).getString();
    w.bucket = {log2_of(row.getColumn(2).getInt64()), log2_of(row.getColumn(3).getInt64())};
    w.config = KernelConfig::from_json(row.getColumn(4).getString());
    w.median_us = row.getColumn(5).getDouble();
    w.ci_low_us = row.getColumn(6).getDouble();
    w.ci_high_us = row.getColumn(7).getDouble();
    w.samples = row.getColumn(8).getInt();
    w.default_us = row.getColumn(9).getDouble();
    w.runner_up = KernelConfig::from_json(row.getColumn(10).getString());
    w.runner_up_us = row.getColumn(11).getDouble();
    w.tied = row.getColumn(12).getInt();
    w.reason = row.getColumn(13).getString();
    w.error = row.getColumn(14).getDouble();
    w.floor_us = row.getColumn(15).getDouble();
    w.policy_hash = row.getColumn(16).getString();
    w.space_hash = row.getColumn(17).getString();
    w.generator_hash = row.getColumn(18).getString();
    w.session = row.getColumn(19).getString();
    check_winner(w, "row");
    if (winner_digest(w) != row.getColumn(20).getString()) return std::nullopt;
    return w;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Store::Row> read_row(SQLite::Statement& statement) {
  try {
    std::optional<Winner> winner = read_winner(statement);
    if (!winner) return std::nullopt;
    Store::Row row{*winner, Environment::from_json(statement.getColumn(21).getString()), spec_from_json(statement.getColumn(22).getString())};
    if (row.environment.key() != winner->env_key || spec_key(row.spec) != winner->spec_key) return std::nullopt;
    return row;
  } catch (const Error&) {
    return std::nullopt;
  }
}

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
  auto stored = db_.read([](SQLite::Database& db) {
    SQLite::Statement select(db, fmt::format("SELECT w.*, env.json, spec.json FROM (SELECT {} FROM winner) AS w JOIN env USING (env_id) "
                                             "JOIN spec USING (spec_key)",
                                             kWinnerColumns));
    std::vector<std::optional<Store::Row>> rows;
    while (select.executeStep()) rows.push_back(read_row(select));
    return rows;
  });
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
  bool stored = db_.write([&](SQLite::Database& db) {
    SQLite::Statement insert(db, "INSERT OR REPLACE INTO blocklist (env_id, spec_key, config, reason) VALUES (?,?,?,?)");
    Binder(insert) << env_key << spec << text << reason;
    insert.exec();
  });
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

int64_t WinnerTable::count() {
  auto stored = db_.read([](SQLite::Database& db) { return db.execAndGet("SELECT count(*) FROM winner").getInt64(); });
  std::lock_guard lock(mutex_);
  return stored.value_or(0) + static_cast<int64_t>(rows_.size());
}

}  // namespace pagetune
