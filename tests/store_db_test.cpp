// The winners.db that export writes, to be shipped beside a program.
#include <SQLiteCpp/SQLiteCpp.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "cache_db/export.hpp"
#include "cache_db/source.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

namespace fs = std::filesystem;

// Of two specs and two devices, enough for several pages and an index of more than one level; sorted as a store gives them.
std::vector<Store::Row> many_rows() {
  AttentionSpec lse;
  lse.lse = true;
  Environment other = sample_environment();
  other.device = "NVIDIA H20";
  other.processors = 78;
  std::vector<Store::Row> rows;
  for (const AttentionSpec& spec : {AttentionSpec{}, lse})
    for (const Environment& environment : {sample_environment(), other})
      for (int i = 0; i < Bucket::kCells; i += 3) rows.push_back(sample_row(Bucket::at(i), spec, environment));
  std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) {
    return std::tie(a.winner.env_key, a.winner.spec_key, a.winner.bucket) < std::tie(b.winner.env_key, b.winner.spec_key, b.winner.bucket);
  });
  return rows;
}

// Faults: a field that is lost or rounded; a row too many or too few; a file that read_source() or a store does not take.
TEST(ExportDb, HoldsTheRowsAndNothingElse) {
  TempDir dir;
  const std::vector<Store::Row> rows = many_rows();
  write_file(dir / "winners.db", export_db(rows));
  Source source = read_source(dir / "winners.db");
  EXPECT_TRUE(source.problems.empty()) << source.problems.front();
  EXPECT_TRUE(source.content.blocks.empty());
  expect_same(source.content.rows, rows);
  SQLite::Database db(dir / "winners.db", SQLite::OPEN_READONLY);
  EXPECT_EQ(db.execAndGet("PRAGMA journal_mode").getString(), "delete");
  EXPECT_EQ(db.execAndGet("PRAGMA integrity_check").getString(), "ok");
  EXPECT_EQ(db.execAndGet("PRAGMA freelist_count").getInt(), 0);
  EXPECT_EQ(db.execAndGet("SELECT count(*) FROM env").getInt(), 2);
  EXPECT_EQ(db.execAndGet("SELECT count(*) FROM spec").getInt(), 2);
  EXPECT_EQ(db.execAndGet("SELECT group_concat(name) FROM (SELECT name FROM meta ORDER BY name)").getString(), "generator_hash,pagetune_version");
  EXPECT_EQ(db.execAndGet("SELECT count(*) FROM winner JOIN spec USING (spec_id) WHERE HEAD_DIM=128 AND KV_HEADS=8").getInt64(), static_cast<int64_t>(rows.size()));
  fs::permissions(dir.path(), fs::perms::owner_all);
  expect_same(Store::open(dir.path())->all_winners(), rows);
}

// Fault: the order of rows, the time, or what lay in memory before in the bytes.
TEST(ExportDb, GivesTheSameBytesForTheSameRows) {
  std::vector<Store::Row> rows = many_rows();
  const std::string bytes = export_db(rows);
  EXPECT_GT(bytes.size(), size_t{100'000});
  std::mt19937 random(7);
  for (int i = 0; i < 4; ++i) {
    std::shuffle(rows.begin(), rows.end(), random);
    EXPECT_TRUE(export_db(rows) == bytes) << "order " << i;
  }
  // The way through files and another store is no part of it either.
  TempDir dir;
  write_file(dir / "shipped.db", bytes);
  EXPECT_TRUE(export_db(read_source(dir / "shipped.db").content.rows) == bytes);
  rows.back().winner.samples += 1;
  EXPECT_FALSE(export_db(rows) == bytes);
}

// Fault: a file that asks for a journal or a lock beside it, which a read-only place cannot give.
TEST(ExportDb, IsReadFromAReadOnlyDirectory) {
  TempDir dir;
  const fs::path system = dir / "system";
  fs::create_directory(system);
  write_file(system / "winners.db", export_db(many_rows()));
  fs::permissions(system / "winners.db", fs::perms::owner_read);
  fs::permissions(system, fs::perms::owner_read | fs::perms::owner_exec);
  {
    SQLite::Database db("file:" + (system / "winners.db").string() + "?immutable=1", SQLite::OPEN_READONLY | SQLite::OPEN_URI);
    EXPECT_EQ(db.execAndGet("SELECT count(*) FROM winner JOIN env USING (env_id) JOIN spec USING (spec_id)").getInt64(), static_cast<int64_t>(many_rows().size()));
    expect_same(read_source(system.string()).content.rows, many_rows());
    EXPECT_EQ(std::distance(fs::directory_iterator(system), fs::directory_iterator{}), 1) << "files beside it";
  }
  fs::permissions(system, fs::perms::owner_all);
}

}  // namespace
}  // namespace pagetune
