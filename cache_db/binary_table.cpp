#include "cache_db/binary_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "cache_db/wrong_rows.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

Schema kernels_schema() {
  Schema schema;
  schema.user_version = 1;
  // data stands last, and eviction reads an index: neither a look at the other columns nor the sum of sizes touches the blobs.
  schema.sql = R"(
    CREATE TABLE blob (binary_key TEXT PRIMARY KEY, arch TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL,
      created INTEGER NOT NULL, last_used_day INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE INDEX blob_use ON blob (last_used_day, size);
  )";
  schema.columns = {{"blob", "binary_key, arch, kind, size, sha256, created, last_used_day, data"}};
  return schema;
}

void evict(SQLite::Database& db, const std::string& kept, int64_t limit) {
  int64_t bytes = db.execAndGet("SELECT coalesce(sum(size), 0) FROM blob").getInt64();
  while (bytes > limit) {
    SQLite::Statement oldest(db, "SELECT rowid, size FROM blob WHERE binary_key<>? ORDER BY last_used_day, rowid LIMIT 1");
    oldest.bind(1, kept);
    if (!oldest.executeStep()) return;
    bytes -= std::max<int64_t>(oldest.getColumn(1).getInt64(), 0);
    SQLite::Statement remove(db, "DELETE FROM blob WHERE rowid=?");
    remove.bind(1, oldest.getColumn(0).getInt64());
    oldest.reset();
    remove.exec();
  }
}

namespace {

struct Found {
  Binary binary;
  int64_t size = 0, last_used_day = 0;
};

// `rule`: what happens to the row that has this key. The number of rows written.
int insert(SQLite::Database& db, const char* rule, const Binary& binary) {
  SQLite::Statement insert(db, fmt::format("INSERT OR {} INTO blob (binary_key, arch, kind, size, sha256, created, last_used_day, data) VALUES (?,?,?,?,?,?,?,?)", rule));
  insert.bind(1, binary.key);
  insert.bind(2, binary.arch);
  insert.bind(3, binary.kind);
  insert.bind(4, static_cast<int64_t>(binary.data.size()));
  insert.bind(5, binary.sha256);
  insert.bind(6, static_cast<int64_t>(std::time(nullptr)));
  insert.bind(7, days_since_1970());
  insert.bindNoCopy(8, binary.data.data(), static_cast<int>(binary.data.size()));
  return insert.exec();
}

}  // namespace

bool is_binary_kind(const std::string& kind) { return kind == "cubin" || kind == "object"; }

void check_binary(const Binary& binary) {
  if (binary.key.empty() || binary.arch.empty() || binary.kind.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("a binary to be stored needs a key, an arch and a kind; it has '{}', '{}', '{}'",
                                                         binary.key, binary.arch, binary.kind));
  if (std::string actual = sha256_hex(binary.data); actual != binary.sha256)
    throw Error(ErrorCode::invalid_argument, fmt::format("the sha256 of binary {} is '{}' but that of its {} bytes is {}", binary.key,
                                                         binary.sha256, binary.data.size(), actual));
}

BinaryTable::BinaryTable(const std::string& dir, Problems& problems, int64_t limit)
    : problems_(problems), db_(dir, "kernels.db", kernels_schema(), problems), limit_(limit) {}

std::optional<Binary> BinaryTable::find(const std::string& key) {
  auto answer = db_.read([&](SQLite::Database& db) -> std::optional<Found> {
    SQLite::Statement select(db, "SELECT arch, kind, size, sha256, last_used_day, data FROM blob WHERE binary_key=?");
    select.bind(1, key);
    if (!select.executeStep()) return std::nullopt;
    Found found;
    found.binary.key = key;
    found.binary.arch = select.getColumn(0).getString();
    found.binary.kind = select.getColumn(1).getString();
    found.size = select.getColumn(2).getInt64();
    found.binary.sha256 = select.getColumn(3).getString();
    found.last_used_day = select.getColumn(4).getInt64();
    found.binary.data = select.getColumn(5).getString();
    return found;
  });
  if (!answer || !*answer) return std::nullopt;
  Found& found = **answer;
  if (found.size != static_cast<int64_t>(found.binary.data.size()) || sha256_hex(found.binary.data) != found.binary.sha256) {
    remove_damaged(key);
    return std::nullopt;
  }
  if (found.last_used_day < days_since_1970()) {
    db_.write([&](SQLite::Database& db) {
      SQLite::Statement update(db, "UPDATE blob SET last_used_day=? WHERE binary_key=?");
      update.bind(1, days_since_1970());
      update.bind(2, key);
      update.exec();
    });
  }
  return std::move(found.binary);
}

void BinaryTable::remove_damaged(const std::string& key) {
  ++corrupt_;
  problems_.say(fmt::format("{}: the bytes of binary {} do not match their sha256; it was removed and will be compiled again", db_.path(), key));
  db_.write([&](SQLite::Database& db) {
    SQLite::Statement remove(db, "DELETE FROM blob WHERE binary_key=?");
    remove.bind(1, key);
    remove.exec();
  });
}

void BinaryTable::put(const Binary& binary) {
  check_binary(binary);
  if (static_cast<int64_t>(binary.data.size()) > limit_) {
    problems_.say(fmt::format("binary {} has {} bytes, more than the {} that {} may hold; it is not stored", binary.key, binary.data.size(),
                              limit_, db_.path()));
    return;
  }
  db_.write([&](SQLite::Database& db) {
    insert(db, "REPLACE", binary);
    evict(db, binary.key, limit_);
  });
}

std::vector<Binary> BinaryTable::all() {
  auto answer = db_.read([&](SQLite::Database& db) {
    std::set<int64_t> wrong;
    for (const WrongRow& row : wrong_binary_rows(db, true)) wrong.insert(row.rowid);
    std::vector<Binary> binaries;
    SQLite::Statement select(db, "SELECT rowid, binary_key, arch, kind, sha256, data FROM blob ORDER BY binary_key");
    while (select.executeStep()) {
      if (wrong.contains(select.getColumn(0).getInt64())) continue;
      Binary& binary = binaries.emplace_back();
      binary.key = select.getColumn(1).getString();
      binary.arch = select.getColumn(2).getString();
      binary.kind = select.getColumn(3).getString();
      binary.sha256 = select.getColumn(4).getString();
      binary.data = select.getColumn(5).getString();
    }
    if (!wrong.empty()) problems_.say(fmt::format("{}: {} of its binaries are wrong and left out; pagetune verify names them", db_.path(), wrong.size()));
    return binaries;
  });
  return answer ? std::move(*answer) : std::vector<Binary>{};
}

std::optional<int> BinaryTable::add(const std::vector<Binary>& binaries) {
  for (const Binary& binary : binaries) check_binary(binary);
  int added = 0;
  const bool written = db_.write([&](SQLite::Database& db) {
    added = 0;
    for (const Binary& binary : binaries) added += insert(db, "IGNORE", binary);
    evict(db, "", limit_);
  });
  return written ? std::optional(added) : std::nullopt;
}

std::optional<BinaryTable::Usage> BinaryTable::usage() {
  return db_.read([](SQLite::Database& db) {
    SQLite::Statement sum(db, "SELECT count(*), coalesce(sum(size), 0) FROM blob");
    sum.executeStep();
    return Usage{sum.getColumn(0).getInt64(), sum.getColumn(1).getInt64()};
  });
}

}  // namespace pagetune
