#include "cache_db/winner_rows.hpp"

#include <fmt/format.h>

#include <bit>
#include <unordered_map>
#include <utility>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// A power of two's exponent; a damaged cell gives some number, which the digest then refuses.
int log2_of(int64_t value) { return value > 0 ? std::bit_width(static_cast<uint64_t>(value)) - 1 : -1; }

// Thousands of rows have a few environments, specs and configs between them: each text is read once.
class RowReader {
 public:
  std::optional<Store::Row> row(SQLite::Statement& statement) {
    try {
      std::optional<Winner> winner = read(statement);
      if (!winner) return std::nullopt;
      const auto& [environment, env_key] = once(environments_, statement.getColumn(21).getString(), [](const std::string& text) {
        auto made = Environment::from_json(text);
        return std::pair(made, made.key());
      });
      const auto& [spec, key] = once(specs_, statement.getColumn(22).getString(), [](const std::string& text) {
        auto made = spec_from_json(text);
        return std::pair(made, spec_key(made));
      });
      if (env_key != winner->env_key || key != winner->spec_key) return std::nullopt;
      return Store::Row{std::move(*winner), environment, spec};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::optional<Winner> read(SQLite::Statement& row) {
    try {
      const auto config = [&](int column) { return once(configs_, row.getColumn(column).getString(), [](const std::string& text) { return KernelConfig::from_json(text); }); };
      Winner w;
      w.env_key = row.getColumn(0).getString();
      w.spec_key = row.getColumn(1).getString();
      w.bucket = {log2_of(row.getColumn(2).getInt64()), log2_of(row.getColumn(3).getInt64())};
      w.config = config(4);
      w.median_us = row.getColumn(5).getDouble();
      w.ci_low_us = row.getColumn(6).getDouble();
      w.ci_high_us = row.getColumn(7).getDouble();
      w.samples = row.getColumn(8).getInt();
      w.default_us = row.getColumn(9).getDouble();
      w.runner_up = config(10);
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

 private:
  template <class Map, class Make>
  static const typename Map::mapped_type& once(Map& known, std::string text, const Make& make) {
    const auto found = known.find(text);
    if (found != known.end()) return found->second;
    auto made = make(text);
    return known.emplace(std::move(text), std::move(made)).first->second;
  }

  std::unordered_map<std::string, std::pair<Environment, std::string>> environments_;
  std::unordered_map<std::string, std::pair<AttentionSpec, std::string>> specs_;
  std::unordered_map<std::string, KernelConfig> configs_;
};

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

}  // namespace

std::string dispatch_columns(const char* separator) {
  std::string text;
  for (const char* column : kDispatchColumns) text += separator + std::string(column);
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

std::optional<Winner> read_winner(SQLite::Statement& row) { return RowReader().read(row); }

std::vector<std::optional<Winner>> read_winners(SQLite::Database& db, const std::string& env_key, const std::string& spec_key) {
  SQLite::Statement select(db, fmt::format("SELECT {} FROM winner WHERE env_id=? AND spec_key=?", kWinnerColumns));
  select.bind(1, env_key);
  select.bind(2, spec_key);
  RowReader reader;
  std::vector<std::optional<Winner>> rows;
  while (select.executeStep()) rows.push_back(reader.read(select));
  return rows;
}

void append_rows(SQLite::Database& db, std::vector<std::optional<Store::Row>>& rows, const std::string& spec_key, int64_t most) {
  // The subquery lets the index on (env_id, spec_key, …) find a spec.
  SQLite::Statement select(db, fmt::format("SELECT w.*, env.json, spec.json FROM (SELECT {} FROM winner{}) AS w JOIN env USING (env_id) "
                                           "JOIN spec USING (spec_key) LIMIT {}",
                                           kWinnerColumns, spec_key.empty() ? "" : " WHERE env_id IN (SELECT env_id FROM env) AND spec_key=?1", most));
  if (!spec_key.empty()) select.bind(1, spec_key);
  RowReader reader;
  while (select.executeStep()) rows.push_back(reader.row(select));
}

std::vector<std::optional<Store::Row>> read_rows(SQLite::Database& db, const std::string& spec_key, int64_t most) {
  std::vector<std::optional<Store::Row>> rows;
  append_rows(db, rows, spec_key, most);
  return rows;
}

std::vector<std::optional<Store::Block>> read_blocks(SQLite::Database& db, int64_t most) {
  SQLite::Statement select(db, fmt::format("SELECT env_id, spec_key, config, reason FROM blocklist LIMIT {}", most));
  std::vector<std::optional<Store::Block>> blocks;
  while (select.executeStep()) {
    try {
      blocks.push_back(Store::Block{select.getColumn(0).getString(), select.getColumn(1).getString(),
                                    KernelConfig::from_json(select.getColumn(2).getString()), select.getColumn(3).getString()});
    } catch (const Error&) {
      blocks.emplace_back();
    }
  }
  return blocks;
}

void write_row(SQLite::Database& db, const Store::Row& row) {
  write_environment(db, row.winner.env_key, row.environment);
  write_spec(db, row.winner.spec_key, row.spec);
  write_winner(db, row.winner, row.spec);
}

void write_block(SQLite::Database& db, const Store::Block& block) {
  SQLite::Statement insert(db, "INSERT OR REPLACE INTO blocklist (env_id, spec_key, config, reason) VALUES (?,?,?,?)");
  Binder(insert) << block.env_key << block.spec_key << block.config.canonical_json() << block.reason;
  insert.exec();
}

void write_missing(SQLite::Database& db, const std::vector<Store::Row>& rows, const std::vector<Store::Block>& blocks) {
  const auto holds = [&](const char* table, const auto&... key) {
    SQLite::Statement select(db, fmt::format("SELECT 1 FROM {}", table));
    Binder binder(select);
    (binder << ... << key);
    return select.executeStep();
  };
  for (const Store::Row& row : rows) {
    const Winner& w = row.winner;
    if (!holds("winner WHERE env_id=? AND spec_key=? AND batch=? AND len=?", w.env_key, w.spec_key, w.bucket.batch(), w.bucket.len())) write_row(db, row);
  }
  for (const Store::Block& block : blocks)
    if (!holds("blocklist WHERE env_id=? AND spec_key=? AND config=?", block.env_key, block.spec_key, block.config.canonical_json())) write_block(db, block);
}

}  // namespace pagetune
