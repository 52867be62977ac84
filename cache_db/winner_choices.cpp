#include "cache_db/winner_choices.hpp"

#define XXH_INLINE_ALL
#include <sqlite3.h>
#include <xxhash.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "cache_db/winner_json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

struct EnvironmentRow {
  uint64_t hash;
  bool own, of_class;
};

// Rows name the same few texts again and again: each is read once.
class Texts {
 public:
  struct Text {
    uint64_t hash = 0;
    std::optional<KernelConfig> config;  // if it is one
  };
  explicit Texts(SQLite::Database& db) : select_(db, "SELECT value FROM text WHERE text_id=?") {}

  // Null if there is none.
  const Text* at(int64_t id) {
    const auto [place, is_new] = known_.try_emplace(id);
    if (is_new) place->second = read(id);
    return place->second ? &*place->second : nullptr;
  }

 private:
  std::optional<Text> read(int64_t id) {
    select_.reset();
    select_.bind(1, id);
    if (!select_.executeStep()) return std::nullopt;
    const std::string value = select_.getColumn(0).getString();
    Text text{hash_of_text(value), std::nullopt};
    try {
      text.config = KernelConfig::from_json(value);
    } catch (const Error&) {  // a hash
    }
    return text;
  }

  SQLite::Statement select_;
  std::unordered_map<int64_t, std::optional<Text>> known_;
};

std::unordered_map<int64_t, EnvironmentRow> read_environments(SQLite::Database& db, const Environment& own) {
  const std::string own_key = own.key(), own_class = own.class_text();
  std::unordered_map<int64_t, EnvironmentRow> rows;
  SQLite::Statement select(db, "SELECT env_id, env_key, json FROM env");
  while (select.executeStep()) {
    const std::string key = select.getColumn(1).getString();
    try {
      const Environment environment = Environment::from_json(select.getColumn(2).getString());
      if (environment.key() == key) rows[select.getColumn(0).getInt64()] = {hash_of_text(key), key == own_key, environment.class_text() == own_class};
    } catch (const Error&) {  // its rows count as damaged
    }
  }
  return rows;
}

// The columns of the row that a statement stands on, without the reference count that each SQLite::Column takes: a third of the time of the whole.
class Cells {
 public:
  Cells(SQLite::Database& db, const std::string& sql) : db_(db.getHandle()) {
    check(sqlite3_prepare_v2(db_, sql.c_str(), static_cast<int>(sql.size()), &statement_, nullptr), SQLITE_OK);
  }
  ~Cells() { sqlite3_finalize(statement_); }
  Cells(const Cells&) = delete;
  Cells& operator=(const Cells&) = delete;

  void bind(const std::string& text) { check(sqlite3_bind_text(statement_, 1, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT), SQLITE_OK); }
  bool next() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW) check(code, SQLITE_DONE);
    return code == SQLITE_ROW;
  }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double real(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  void check(int code, int wanted) const {
    if (code != wanted) throw SQLite::Exception(db_, code);
  }

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

struct SpecRow {
  uint64_t hash;
  std::vector<LayeredWinner>* winners;
};

}  // namespace

int64_t seal_of(const Sealed& sealed) {
  static_assert(sizeof(Sealed) == 10 * 8);  // no padding
  return static_cast<int64_t>(XXH3_64bits(&sealed, sizeof sealed));
}

uint64_t hash_of_text(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

Choices read_choices(SQLite::Database& db, const Environment& own, const std::string& generator, const std::string& spec_key) {
  Choices read;
  const std::unordered_map<int64_t, EnvironmentRow> environments = read_environments(db, own);
  std::unordered_map<int64_t, SpecRow> specs;
  SQLite::Statement select_specs(db, std::string("SELECT spec_id, spec_key FROM spec") + (spec_key.empty() ? "" : " WHERE spec_key=?"));
  if (!spec_key.empty()) select_specs.bind(1, spec_key);
  while (select_specs.executeStep()) {
    const std::string key = select_specs.getColumn(1).getString();
    specs[select_specs.getColumn(0).getInt64()] = {hash_of_text(key), &read.winners[key]};
  }
  Texts texts(db);
  const uint64_t own_generator = hash_of_text(generator);
  Cells row(db, std::string("SELECT spec_id, env_id, batch, len, config, median_us, ci_high_us, runner_up, runner_up_us, generator_hash, seal FROM winner") +
                                   (spec_key.empty() ? "" : " WHERE spec_id IN (SELECT spec_id FROM spec WHERE spec_key=?)"));
  if (!spec_key.empty()) row.bind(spec_key);
  // The same few of them in row after row.
  std::pair<int64_t, const SpecRow*> spec{-1, nullptr};
  std::pair<int64_t, const EnvironmentRow*> environment{-1, nullptr};
  const auto look_up = [](auto& last, const auto& rows, int64_t id) {
    if (last.first == id) return;
    const auto found = rows.find(id);
    last = {id, found == rows.end() ? nullptr : &found->second};
  };
  while (row.next()) {
    look_up(spec, specs, row.integer(0));
    look_up(environment, environments, row.integer(1));
    const Texts::Text* config = texts.at(row.integer(4));
    const Texts::Text* runner_up = texts.at(row.integer(7));
    const Texts::Text* by = texts.at(row.integer(9));
    if (spec.second == nullptr || environment.second == nullptr || config == nullptr || !config->config || runner_up == nullptr || !runner_up->config || by == nullptr) {
      ++read.damaged;
      continue;
    }
    Choice choice;
    const int64_t batch = row.integer(2), len = row.integer(3);
    choice.median_us = row.real(5);
    choice.ci_high_us = row.real(6);
    choice.runner_up_us = row.real(8);
    const std::optional<Bucket> bucket = bucket_of_sizes(batch, len);
    const Sealed sealed{environment.second->hash, spec.second->hash, config->hash, runner_up->hash, by->hash, batch, len, choice.median_us, choice.ci_high_us, choice.runner_up_us};
    if (!bucket || seal_of(sealed) != row.integer(10)) {
      ++read.damaged;
      continue;
    }
    if (!environment.second->of_class) continue;
    choice.bucket = *bucket;
    choice.config = *config->config;
    choice.runner_up = *runner_up->config;
    spec.second->winners->emplace_back(std::move(choice), !environment.second->own, by->hash == own_generator);
  }
  std::erase_if(read.winners, [](const auto& one) { return one.second.empty(); });
  return read;
}

}  // namespace pagetune
