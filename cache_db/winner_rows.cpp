#include "cache_db/winner_rows.hpp"

#include <fmt/format.h>

#include <bit>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/generate.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// A power of two's exponent; a damaged cell gives some number, which the digest then refuses.
int log2_of(int64_t value) { return value > 0 ? std::bit_width(static_cast<uint64_t>(value)) - 1 : -1; }

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

void append_rows(SQLite::Database& db, std::vector<std::optional<Store::Row>>& rows, int64_t most) {
  SQLite::Statement select(db, fmt::format("SELECT w.*, env.json, spec.json FROM (SELECT {} FROM winner) AS w JOIN env USING (env_id) "
                                           "JOIN spec USING (spec_key) LIMIT {}",
                                           kWinnerColumns, most));
  while (select.executeStep()) rows.push_back(read_row(select));
}

std::vector<std::optional<Store::Row>> read_rows(SQLite::Database& db, int64_t most) {
  std::vector<std::optional<Store::Row>> rows;
  append_rows(db, rows, most);
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

}  // namespace pagetune
