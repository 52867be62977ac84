#include "cache_db/winner_schema.hpp"

#include <fmt/format.h>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/winner_rows.hpp"
#include "codegen/generate.hpp"

namespace pagetune {
namespace {

constexpr const char* kDeviceColumns =
    "backend, device, arch, cpu_features, processors, memory_bus_bits, memory_clock_khz, l2_bytes, clock_khz, ecc, driver, compiler, memory_bytes, json";

int version_of(SQLite::Database& db) { return db.execAndGet("PRAGMA user_version").getInt(); }

// What version 1 had: each text in the row itself.
std::vector<std::pair<std::string, std::string>> columns_of_version_1() {
  return {{"meta", "name, value"},
          {"env", fmt::format("env_id, {}", kDeviceColumns)},
          {"spec", "spec_key, json" + dispatch_columns()},
          {"winner", "env_id, spec_key, batch, len, config, median_us, ci_low_us, ci_high_us, samples, default_us, runner_up, runner_up_us, tied, reason, error, floor_us, policy_hash, space_hash, "
                     "generator_hash, session, digest"},
          {"blocklist", "env_id, spec_key, config, reason"}};
}

}  // namespace

std::string dispatch_columns(const char* separator) {
  std::string text;
  for (const char* column : kDispatchColumns) text += separator + std::string(column);
  return text;
}

Schema winners_schema() {
  Schema schema;
  schema.user_version = kWinnersVersion;
  schema.check_on_open = true;
  // What dispatch reads of a winner comes first, up to the seal: SQLite takes a row apart no further than is asked.
  schema.sql = fmt::format(R"(
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE env (env_id INTEGER PRIMARY KEY, env_key TEXT NOT NULL UNIQUE, backend TEXT NOT NULL, device TEXT NOT NULL, arch TEXT NOT NULL, cpu_features TEXT NOT NULL,
      processors INTEGER NOT NULL, memory_bus_bits INTEGER NOT NULL, memory_clock_khz INTEGER NOT NULL, l2_bytes INTEGER NOT NULL,
      clock_khz INTEGER NOT NULL, ecc INTEGER NOT NULL, driver TEXT NOT NULL, compiler TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
      json TEXT NOT NULL);
    CREATE TABLE spec (spec_id INTEGER PRIMARY KEY, spec_key TEXT NOT NULL UNIQUE, json TEXT NOT NULL{0});
    CREATE TABLE text (text_id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
    CREATE TABLE winner (spec_id INTEGER NOT NULL REFERENCES spec, env_id INTEGER NOT NULL REFERENCES env, batch INTEGER NOT NULL, len INTEGER NOT NULL,
      config INTEGER NOT NULL REFERENCES text, median_us REAL NOT NULL, ci_high_us REAL NOT NULL, runner_up INTEGER NOT NULL REFERENCES text, runner_up_us REAL NOT NULL,
      generator_hash INTEGER NOT NULL REFERENCES text, seal INTEGER NOT NULL,
      ci_low_us REAL NOT NULL, samples INTEGER NOT NULL, default_us REAL NOT NULL, tied INTEGER NOT NULL, reason TEXT NOT NULL, error REAL NOT NULL, floor_us REAL NOT NULL,
      policy_hash INTEGER NOT NULL REFERENCES text, space_hash INTEGER NOT NULL REFERENCES text, session INTEGER NOT NULL REFERENCES text, digest TEXT NOT NULL,
      UNIQUE (spec_id, env_id, batch, len));
    CREATE TABLE blocklist (env_key TEXT NOT NULL, spec_key TEXT NOT NULL, config TEXT NOT NULL, reason TEXT NOT NULL,
      PRIMARY KEY (env_key, spec_key, config));
    INSERT INTO meta VALUES ('pagetune_version', '{1}'), ('generator_hash', '{2}');
  )",
                           dispatch_columns(" INTEGER, ").substr(std::string(" INTEGER").size()) + " INTEGER", PAGETUNE_VERSION, generator_hash());
  schema.columns = {{"meta", "name, value"},
                    {"env", fmt::format("env_id, env_key, {}", kDeviceColumns)},
                    {"spec", "spec_id, spec_key, json" + dispatch_columns()},
                    {"text", "text_id, value"},
                    {"winner", "spec_id, env_id, batch, len, config, median_us, ci_high_us, runner_up, runner_up_us, generator_hash, seal, ci_low_us, samples, default_us, tied, reason, error, floor_us, "
                               "policy_hash, space_hash, session, digest"},
                    {"blocklist", "env_key, spec_key, config, reason"}};
  schema.upgrade = {1, columns_of_version_1(), rewritten_winners};
  return schema;
}

std::string winners_query(SQLite::Database& db) {
  if (version_of(db) == 1)
    return "SELECT w.env_id, w.spec_key, w.batch, w.len, w.config, w.median_us, w.ci_low_us, w.ci_high_us, w.samples, w.default_us, w.runner_up, w.runner_up_us, w.tied, w.reason, w.error, w.floor_us, "
           "w.policy_hash, w.space_hash, w.generator_hash, w.session, w.digest, env.json, spec.json, w.rowid "
           "FROM winner AS w LEFT JOIN env USING (env_id) LEFT JOIN spec USING (spec_key)";
  return "SELECT env.env_key, spec.spec_key, w.batch, w.len, config.value, w.median_us, w.ci_low_us, w.ci_high_us, w.samples, w.default_us, runner_up.value, w.runner_up_us, w.tied, w.reason, w.error, w.floor_us, "
         "policy.value, space.value, generator.value, session.value, w.digest, env.json, spec.json, w.rowid "
         "FROM winner AS w LEFT JOIN env USING (env_id) LEFT JOIN spec USING (spec_id) LEFT JOIN text AS config ON config.text_id = w.config LEFT JOIN text AS runner_up ON runner_up.text_id = w.runner_up "
         "LEFT JOIN text AS policy ON policy.text_id = w.policy_hash LEFT JOIN text AS space ON space.text_id = w.space_hash LEFT JOIN text AS generator ON generator.text_id = w.generator_hash "
         "LEFT JOIN text AS session ON session.text_id = w.session";
}

KeyColumns key_columns(SQLite::Database& db) { return version_of(db) == 1 ? KeyColumns{"env_id", "spec_key", "env_id"} : KeyColumns{"env_key", "spec_key", "env_key"}; }

}  // namespace pagetune
