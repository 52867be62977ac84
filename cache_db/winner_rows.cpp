#include "cache_db/winner_rows.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/winner_choices.hpp"
#include "cache_db/winner_json.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Thousands of rows have a few environments, specs and configs between them: each text is read once.
class RowReader {
 public:
  std::optional<Store::Row> row(SQLite::Statement& statement) {
    try {
      std::optional<Winner> winner = read(statement);
      if (!winner) return std::nullopt;
      const auto& [environment, env_key] = once(environments_, statement.getColumn(kEnvJson).getString(), [](const std::string& text) {
        auto made = Environment::from_json(text);
        return std::pair(made, made.key());
      });
      const auto& [spec, key] = once(specs_, statement.getColumn(kSpecJson).getString(), [](const std::string& text) {
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
      w.env_key = row.getColumn(kEnvKey).getString();
      w.spec_key = row.getColumn(kSpecKey).getString();
      const std::optional<Bucket> bucket = bucket_of_sizes(row.getColumn(kBatch).getInt64(), row.getColumn(kLen).getInt64());
      if (!bucket) return std::nullopt;
      w.bucket = *bucket;
      w.config = config(kConfig);
      w.median_us = row.getColumn(kMedian).getDouble();
      w.ci_low_us = row.getColumn(kCiLow).getDouble();
      w.ci_high_us = row.getColumn(kCiHigh).getDouble();
      w.samples = row.getColumn(kSamples).getInt();
      w.default_us = row.getColumn(kDefault).getDouble();
      w.runner_up = config(kRunnerUp);
      w.runner_up_us = row.getColumn(kRunnerUpUs).getDouble();
      w.tied = row.getColumn(kTied).getInt();
      w.reason = row.getColumn(kReason).getString();
      w.error = row.getColumn(kError).getDouble();
      w.floor_us = row.getColumn(kFloor).getDouble();
      w.policy_hash = row.getColumn(kPolicyHash).getString();
      w.space_hash = row.getColumn(kSpaceHash).getString();
      w.generator_hash = row.getColumn(kGeneratorHash).getString();
      w.session = row.getColumn(kSession).getString();
      check_winner(w, "row");
      if (winner_digest(w) != row.getColumn(kDigest).getString()) return std::nullopt;
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

int64_t seal_of_winner(const Winner& w) {
  return seal_of({hash_of_text(w.env_key), hash_of_text(w.spec_key), hash_of_text(w.config.canonical_json()), hash_of_text(w.runner_up.canonical_json()), hash_of_text(w.generator_hash), w.bucket.batch(),
                  w.bucket.len(), w.median_us, w.ci_high_us, w.runner_up_us});
}

SQLite::Statement filtered(SQLite::Database& db, const std::string& query, const std::string& spec_column, const std::string& env_column, const RowFilter& filter, int64_t most) {
  std::string where;
  for (const auto& [column, value] : {std::pair(spec_column, filter.spec_key), std::pair(env_column, filter.env_key)})
    if (!value.empty()) where += fmt::format("{} {}=?", where.empty() ? " WHERE" : " AND", column);
  SQLite::Statement select(db, fmt::format("{}{} LIMIT {}", query, where, most));
  int next = 1;
  for (const std::string* value : {&filter.spec_key, &filter.env_key})
    if (!value->empty()) select.bind(next++, *value);
  return select;
}

// Runs it to its end.
int64_t returned_id(SQLite::Statement& insert) {
  insert.executeStep();
  const int64_t id = insert.getColumn(0).getInt64();
  insert.executeStep();
  return id;
}

template <class Make>
int64_t known_or(std::unordered_map<std::string, int64_t>& known, const std::string& key, const Make& make) {
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, make()).first->second;
}

}  // namespace

std::optional<Winner> read_winner(SQLite::Statement& row) { return RowReader().read(row); }

void append_rows(SQLite::Database& db, std::vector<std::optional<Store::Row>>& rows, const RowFilter& filter, int64_t most) {
  const KeyColumns keys = key_columns(db);
  SQLite::Statement select = filtered(db, winners_query(db), std::string("spec.") + keys.spec, std::string("env.") + keys.env, filter, most);
  RowReader reader;
  while (select.executeStep()) rows.push_back(reader.row(select));
}

std::vector<std::optional<Store::Row>> read_rows(SQLite::Database& db, const RowFilter& filter, int64_t most) {
  std::vector<std::optional<Store::Row>> rows;
  append_rows(db, rows, filter, most);
  return rows;
}

std::vector<std::optional<Store::Block>> read_blocks(SQLite::Database& db, const RowFilter& filter, int64_t most) {
  const std::string environment = key_columns(db).blocked_env;
  SQLite::Statement select = filtered(db, fmt::format("SELECT {}, spec_key, config, reason FROM blocklist", environment), "spec_key", environment, filter, most);
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

RowWriter::RowWriter(SQLite::Database& db)
    : db_(db), insert_(db, fmt::format("INSERT OR REPLACE INTO winner (spec_id, env_id, batch, len, config, median_us, ci_high_us, runner_up, runner_up_us, generator_hash, seal, ci_low_us, samples, default_us, tied, "
                                       "reason, error, floor_us, policy_hash, space_hash, session, digest) VALUES ({})",
                                       placeholders(22))) {}

// Each key's row is made or, since the key was found in an index and the row behind it may be damaged, made right.
int64_t RowWriter::environment_id(const std::string& key, const Environment& env) {
  return known_or(environments_, key, [&] {
    SQLite::Statement insert(db_, fmt::format("INSERT INTO env (env_key, backend, device, arch, cpu_features, processors, memory_bus_bits, memory_clock_khz, l2_bytes, clock_khz, ecc, driver, compiler, memory_bytes, json) "
                                              "VALUES ({}) ON CONFLICT (env_key) DO UPDATE SET env_key=excluded.env_key, memory_bytes=excluded.memory_bytes, json=excluded.json RETURNING env_id",
                                              placeholders(15)));
    Binder(insert) << key << env.backend << env.device << env.arch << env.cpu_features << env.processors << env.memory_bus_bits << env.memory_clock_khz << env.l2_bytes << env.clock_khz << env.ecc << env.driver
                   << env.compiler << env.memory_bytes << env.canonical_json();
    return returned_id(insert);
  });
}

int64_t RowWriter::spec_id(const std::string& key, const AttentionSpec& spec) {
  return known_or(specs_, key, [&] {
    SQLite::Statement insert(db_, fmt::format("INSERT INTO spec (spec_key, json{}) VALUES ({}) ON CONFLICT (spec_key) DO UPDATE SET spec_key=excluded.spec_key, json=excluded.json RETURNING spec_id",
                                              dispatch_columns(), placeholders(2 + static_cast<int>(kDispatchColumns.size()))));
    Binder binder(insert);
    binder << key << canonical_json(spec);
    binder.dispatch(spec);
    return returned_id(insert);
  });
}

int64_t RowWriter::text_id(const std::string& value) {
  return known_or(texts_, value, [&] {
    SQLite::Statement insert(db_, "INSERT INTO text (value) VALUES (?) ON CONFLICT (value) DO UPDATE SET value=excluded.value RETURNING text_id");
    Binder(insert) << value;
    return returned_id(insert);
  });
}

bool is_sealed(SQLite::Database& db, int64_t rowid, const Winner& winner) {
  if (db.execAndGet("PRAGMA user_version").getInt() != kWinnersVersion) return true;
  SQLite::Statement select(db, "SELECT seal FROM winner WHERE rowid=?");
  select.bind(1, rowid);
  return select.executeStep() && select.getColumn(0).getInt64() == seal_of_winner(winner);
}

void RowWriter::put(const Store::Row& row) {
  const Winner& w = row.winner;
  insert_.reset();
  Binder(insert_) << spec_id(w.spec_key, row.spec) << environment_id(w.env_key, row.environment) << w.bucket.batch() << w.bucket.len() << text_id(w.config.canonical_json()) << w.median_us << w.ci_high_us << text_id(w.runner_up.canonical_json())
                  << w.runner_up_us << text_id(w.generator_hash) << seal_of_winner(w) << w.ci_low_us << w.samples << w.default_us << w.tied << w.reason << w.error << w.floor_us << text_id(w.policy_hash) << text_id(w.space_hash)
                  << text_id(w.session) << winner_digest(w);
  insert_.exec();
}

void write_block(SQLite::Database& db, const Store::Block& block) {
  SQLite::Statement insert(db, "INSERT OR REPLACE INTO blocklist (env_key, spec_key, config, reason) VALUES (?,?,?,?)");
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
  RowWriter writer(db);
  for (const Store::Row& row : rows) {
    const Winner& w = row.winner;
    if (!holds("winner JOIN env USING (env_id) JOIN spec USING (spec_id) WHERE env_key=? AND spec_key=? AND batch=? AND len=?", w.env_key, w.spec_key, w.bucket.batch(), w.bucket.len())) writer.put(row);
  }
  for (const Store::Block& block : blocks)
    if (!holds("blocklist WHERE env_key=? AND spec_key=? AND config=?", block.env_key, block.spec_key, block.config.canonical_json())) write_block(db, block);
}

Schema::Upgrade::Content rewritten_winners(SQLite::Database& old) {
  auto rows = read_rows(old);
  auto blocks = read_blocks(old);
  const auto damaged = std::erase(rows, std::nullopt) + std::erase(blocks, std::nullopt);
  return {[rows = std::move(rows), blocks = std::move(blocks)](SQLite::Database& db) {
            RowWriter writer(db);
            for (const auto& row : rows) writer.put(*row);
            for (const auto& block : blocks) write_block(db, *block);
          },
          damaged == 0 ? "" : fmt::format("{} rows that do not match their digest", damaged)};
}

}  // namespace pagetune
