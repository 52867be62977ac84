#include "cache_db/untuned_table.hpp"

#include <SQLiteCpp/VariadicBind.h>
#include <fmt/format.h>

#include <bit>
#include <optional>

#include "codegen/generate.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

Schema untuned_schema() {
  Schema schema;
  schema.user_version = 1;
  schema.sql = R"(
    CREATE TABLE untuned (env_id TEXT NOT NULL, spec_key TEXT NOT NULL, batch INTEGER NOT NULL, len INTEGER NOT NULL, hits INTEGER NOT NULL,
      last_day INTEGER NOT NULL, environment TEXT NOT NULL, spec TEXT NOT NULL, PRIMARY KEY (env_id, spec_key, batch, len));
  )";
  schema.columns = {{"untuned", kUntunedColumns}};
  schema.if_lost = "calls that no winner answers for are not counted";
  return schema;
}

namespace {

// A power of two between two others, as its exponent.
std::optional<int> exponent(int64_t value, int least, int cells) {
  if (value <= 0 || !std::has_single_bit(static_cast<uint64_t>(value))) return std::nullopt;
  const int log2 = std::bit_width(static_cast<uint64_t>(value)) - 1;
  return log2 >= least && log2 < least + cells ? std::optional(log2) : std::nullopt;
}

}  // namespace

std::optional<Store::Untuned> read_untuned(SQLite::Statement& row) {
  try {
    const std::optional<int> batch = exponent(row.getColumn(2).getInt64(), 0, Bucket::kBatchCells), len = exponent(row.getColumn(3).getInt64(), Bucket::kMinLenLog2, Bucket::kLenCells);
    const int64_t hits = row.getColumn(4).getInt64();
    if (!batch || !len || hits < 1) return std::nullopt;
    Store::Untuned read{Environment::from_json(row.getColumn(6).getString()), spec_from_json(row.getColumn(7).getString()), {*batch, *len}, static_cast<uint64_t>(hits)};
    if (read.environment.key() != row.getColumn(0).getString() || spec_key(read.spec) != row.getColumn(1).getString()) return std::nullopt;
    return read;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::optional<Store::Untuned>> read_untuned_rows(SQLite::Database& db) {
  SQLite::Statement select(db, fmt::format("SELECT {} FROM untuned ORDER BY env_id, spec_key, batch, len", kUntunedColumns));
  std::vector<std::optional<Store::Untuned>> rows;
  while (select.executeStep()) rows.push_back(read_untuned(select));
  return rows;
}

UntunedTable::UntunedTable(const std::string& dir, Problems& problems) : problems_(problems), db_(dir, "untuned.db", untuned_schema(), problems) {}

void UntunedTable::add(const std::vector<Store::Untuned>& calls) {
  if (calls.empty()) return;
  const int64_t today = days_since_1970();
  db_.write([&](SQLite::Database& db) {
    SQLite::Statement insert(db, fmt::format("INSERT INTO untuned ({}) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET hits=hits+excluded.hits, last_day=excluded.last_day", kUntunedColumns));
    for (const Store::Untuned& call : calls) {
      SQLite::bind(insert, call.environment.key(), spec_key(call.spec), call.bucket.batch(), call.bucket.len(), static_cast<int64_t>(call.hits), today, call.environment.canonical_json(), canonical_json(call.spec));
      insert.exec();
      insert.reset();
    }
    SQLite::Statement forget(db, "DELETE FROM untuned WHERE last_day < ?");
    forget.bind(1, today - kRememberedDays);
    forget.exec();
  });
}

std::vector<Store::Untuned> UntunedTable::all() {
  auto read = db_.read([](SQLite::Database& db) { return read_untuned_rows(db); });
  std::vector<Store::Untuned> calls;
  for (auto& row : read.value_or(std::vector<std::optional<Store::Untuned>>{})) {
    if (row) calls.push_back(std::move(*row));
    else problems_.say(fmt::format("{} holds rows that no kernel counted (damaged, edited by hand or of another version); they are ignored", db_.path()));
  }
  return calls;
}

}  // namespace pagetune
