// Looking at a store without opening it, repairing it, and taking out what nobody needs.
#include <SQLiteCpp/SQLiteCpp.h>

#include <map>

#include "cache_db/binary_table.hpp"
#include "cache_db/blocklist.hpp"
#include "cache_db/database.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/file_system.hpp"
#include "cache_db/garbage.hpp"
#include "cache_db/inspection.hpp"
#include "cache_db/repair.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

void change(const std::string& file, const std::string& sql) { SQLite::Database(file, SQLite::OPEN_READWRITE).exec(sql); }

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Fault: a network file system, where locks fail, passes for a local one; or a local one for a network's.
TEST(StoreCare, KnowsNetworkFileSystems) {
  for (const uint64_t magic : {0x6969u, 0xff534d42u, 0xfe534d42u, 0x0bd00bd0u, 0x47504653u, 0x65735546u, 0x01021997u, 0x19830326u}) EXPECT_TRUE(file_system_kind(magic).network) << std::hex << magic;
  for (const uint64_t magic : {0xef53u, 0x58465342u, 0x9123683eu, 0x01021994u, 0x794c7630u, 0x12345678u}) EXPECT_FALSE(file_system_kind(magic).network) << std::hex << magic;
  EXPECT_EQ(file_system_kind(0xff534d42).name, "cifs");
  EXPECT_EQ(file_system_kind(0x12345678).name, "0x12345678");
  const std::optional<FileSystem> here = file_system_of("/");
  ASSERT_TRUE(here);
  EXPECT_FALSE(here->kind.name.empty());
  EXPECT_FALSE(file_system_of("/no/such/path"));
}

// Fault: what inspection finds differs from what the store answers, or looking leaves a trace.
TEST(StoreCare, InspectionFindsWhatTheStoreHolds) {
  TempDir dir;
  EXPECT_EQ(inspect_store(dir.path()).winners_db.state, FileState::missing);
  EXPECT_TRUE(names_in(dir.path()).empty());
  {
    auto store = Store::open(dir.path());
    AttentionSpec lse;
    lse.lse = true;
    for (const Bucket bucket : {Bucket{4, 9}, Bucket{3, 12}}) {
      put(*store, sample_row(bucket));
      put(*store, sample_row(bucket, lse));
    }
    const Store::Row row = sample_row();
    store->block(row.winner.env_key, row.winner.spec_key, row.winner.config, "wrong");
    store->put_binary(sample_binary("x", 700));
    store->add_untuned({{row.environment, row.spec, {1, 9}, 4}});
  }
  const std::vector<std::string> names = names_in(dir.path());
  const StoreReport report = inspect_store(dir.path(), true);
  EXPECT_EQ(names_in(dir.path()), names);
  for (const FileReport* file : report.files()) {
    EXPECT_EQ(file->state, FileState::sound) << file->why;
    EXPECT_TRUE(file->wrong.empty());
    EXPECT_EQ(file->schema_version, file == &report.winners_db ? kWinnersVersion : 1);
  }
  expect_same(report.rows, Store::open(dir.path())->all_winners());
  EXPECT_EQ(report.blocks.size(), 1u);
  EXPECT_EQ(report.untuned.at(0).hits, 4u);
  EXPECT_EQ(report.binaries, (std::vector<StoredBinary>{{sample_binary("x", 700).key, "sm_90a", "cubin", 700, days_since_1970()}}));
}

// Faults: a WAL file that another SQLite left cannot be looked at, or what is not counted goes unsaid, or side files are made.
TEST(StoreCare, WalFilesAreLookedAtWithoutATrace) {
  TempDir dir;
  { put(*Store::open(dir.path()), sample_row()); }
  change(dir / "winners.db", "PRAGMA journal_mode=WAL");
  EXPECT_EQ(inspect_store(dir.path()).rows.size(), 1u);
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"kernels.db", "winners.db"}));
  SQLite::Database writer(dir / "winners.db", SQLite::OPEN_READWRITE);
  writer.exec("UPDATE meta SET value='x'");
  const StoreReport report = inspect_store(dir.path());
  EXPECT_EQ(report.winners_db.state, FileState::sound);
  EXPECT_NE(report.winners_db.why.find("winners.db-wal"), std::string::npos) << report.winners_db.why;
}

// Faults: a link or a file that others can write is read; another program's database is taken for damage.
TEST(StoreCare, WhatTheStoreWouldRefuseIsRefused) {
  for (const char* how : {"link", "mode", "version", "program", "garbage", "empty"}) {
    TempDir dir;
    { put(*Store::open(dir.path()), sample_row()); }
    const std::string file = dir / "winners.db", how_text = how;
    if (how_text == "link") {
      std::filesystem::rename(file, dir / "elsewhere");
      std::filesystem::create_symlink(dir / "elsewhere", file);
    } else if (how_text == "mode") {
      std::filesystem::permissions(file, std::filesystem::perms(0666));
    } else if (how_text == "version") {
      change(file, "PRAGMA user_version=1000");
    } else if (how_text == "program") {
      change(file, "PRAGMA application_id=7");
    } else {
      write_file(file, how_text == "garbage" ? std::string(5000, 'g') : "");
    }
    const FileReport report = inspect_store(dir.path()).winners_db;
    EXPECT_EQ(report.state, how_text == "garbage" ? FileState::damaged : how_text == "empty" ? FileState::sound : FileState::refused) << how << report.why;
    EXPECT_EQ(report.why.empty(), how_text == "empty") << how;
  }
}

struct Wrong {
  const char *file, *sql, *reason;
};

// Faults: a kind of wrong row that no check finds; a repair that leaves it or takes more.
TEST(StoreCare, EveryKindOfWrongRowIsFoundAndRemoved) {
  const Wrong cases[] = {
      {"winners.db", "UPDATE text SET value='{}' WHERE text_id=(SELECT config FROM winner)", "digest"},
      {"winners.db", "PRAGMA foreign_keys=0; DELETE FROM text WHERE text_id=(SELECT config FROM winner)", "digest"},
      {"winners.db", "UPDATE winner SET seal=seal+1", "seal"},
      {"winners.db", "UPDATE winner SET median_us=1", "digest"},
      {"winners.db", "UPDATE winner SET batch=16", "digest"},
      {"winners.db", "UPDATE winner SET session=config", "digest"},
      {"winners.db", "UPDATE winner SET reason=CAST(x'ff' AS TEXT)", "digest"},
      {"winners.db", "UPDATE env SET json='{}'", "environment"},
      // The next row takes the deleted one's id: the digest covers what the id stood for.
      {"winners.db", "PRAGMA foreign_keys=0; DELETE FROM env", "digest"},
      {"winners.db", "UPDATE spec SET json=replace(json,'128','64')", "spec"},
      {"winners.db", "PRAGMA foreign_keys=0; DELETE FROM spec", "digest"},
      {"winners.db", "UPDATE blocklist SET config='[1'", "not a config"},
      {"winners.db", "UPDATE blocklist SET env_key='e'", "64 hexadecimal"},
      {"kernels.db", "UPDATE blob SET binary_key='../../key'", "64 hexadecimal"},
      {"kernels.db", "UPDATE blob SET kind='script'", "its kind"},
      {"kernels.db", "UPDATE blob SET arch=''", "architecture"},
      {"kernels.db", "UPDATE blob SET size=7", "bytes where its size"},
      {"kernels.db", "UPDATE blob SET data='text'", "bytes where its size"},
      {"kernels.db", "UPDATE blob SET sha256='0'", "sha256"},
      {"kernels.db", "UPDATE blob SET data=CAST(x'00'||substr(data,2) AS BLOB)", "sha256"},
      {"untuned.db", "UPDATE untuned SET hits=0", "do not match"},
      {"untuned.db", "UPDATE untuned SET spec_key=env_id", "do not match"},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.sql);
    TempDir dir;
    const Store::Row row = sample_row();
    Environment other_device = sample_environment();
    other_device.device = "another";
    AttentionSpec other_spec;
    other_spec.lse = true;
    const Store::Row other = sample_row({5, 9}, other_spec, other_device);
    const std::string other_key = sample_binary("other").key;
    {
      auto store = Store::open(dir.path());
      put(*store, row);
      store->block(row.winner.env_key, row.winner.spec_key, row.winner.config, "wrong");
      store->put_binary(sample_binary("x"));
      store->add_untuned({{row.environment, row.spec, {1, 9}, 4}});
    }
    change(dir / wrong.file, wrong.sql);
    {
      auto store = Store::open(dir.path());  // a right one beside each
      put(*store, other);
      store->put_binary(sample_binary("other"));
      store->add_untuned({{other.environment, other.spec, {1, 9}, 4}});
    }
    const StoreReport found = inspect_store(dir.path(), true);
    size_t wrong_rows = 0;
    bool named = false;
    for (const FileReport* file : found.files()) {
      wrong_rows += file->wrong.size();
      for (const WrongRow& one : file->wrong) named |= one.reason.find(wrong.reason) != std::string::npos;
      EXPECT_EQ(!file->wrong.empty(), file->path == dir / wrong.file);
    }
    EXPECT_GE(wrong_rows, 1u);
    EXPECT_TRUE(named);
    Problems problems;
    const std::vector<FileRepair> repairs = repair_store(dir.path(), found, problems);
    ASSERT_EQ(repairs.size(), 1u);
    EXPECT_TRUE(repairs[0].done);
    EXPECT_FALSE(repairs[0].renewed);
    EXPECT_EQ(repairs[0].removed.size(), wrong_rows);
    EXPECT_TRUE(problems.all().empty());
    const StoreReport after = inspect_store(dir.path(), true);
    for (const FileReport* file : after.files()) EXPECT_TRUE(file->wrong.empty());
    expect_same(after.rows.at(after.rows.size() == 1 || after.rows[0].winner == other.winner ? 0 : 1), other);
    EXPECT_TRUE(Store::open(dir.path())->find_binary(other_key));
    EXPECT_GE(after.untuned.size(), 1u);
    // What was repaired takes the right row again.
    put(*Store::open(dir.path()), row);
    EXPECT_EQ(inspect_store(dir.path()).rows.size(), 2u);
  }
}

// Faults: a winner of another build's space counts as damage; one that claims this build's space and is not of it passes.
TEST(StoreCare, OnlyThisSpacesWinnersMustBeAdmitted) {
  for (const bool claims : {false, true}) {
    TempDir dir;
    Store::Row row = sample_row();
    row.winner.config.set("NUM_WARPS", 77);
    if (claims) row.winner.space_hash = ConfigSpace::builtin().hash(ConfigSpace::builtin().family(row.spec.kind, Backend::cuda));
    put(*Store::open(dir.path()), row);
    EXPECT_EQ(inspect_store(dir.path()).winners_db.wrong.size(), claims ? 1u : 0u);
  }
}

// Fault: one damaged page of winners costs all of them, or what is brought back is not what was stored.
TEST(StoreCare, RepairBringsBackTheWinnersBeforeADamagedPage) {
  TempDir dir;
  std::map<Bucket, Winner> stored;
  {
    auto store = Store::open(dir.path());
    for (int i = 0; i < 60; ++i) {
      const Store::Row row = sample_row({i % 12, 6 + i / 12});
      put(*store, row);
      stored[row.winner.bucket] = row.winner;
    }
  }
  // The page of the last row. Its text is found in it, since texts stand in pages as they are.
  std::string bytes = read_file(dir / "winners.db");
  const std::string digest = SQLite::Database(dir / "winners.db").execAndGet("SELECT digest FROM winner ORDER BY rowid DESC LIMIT 1").getString();
  const size_t at = bytes.find(digest);
  ASSERT_NE(at, std::string::npos);
  write_file(dir / "winners.db", bytes.replace(at / 4096 * 4096, 4096, 4096, 'x'));
  const StoreReport found = inspect_store(dir.path());
  EXPECT_EQ(found.winners_db.state, FileState::damaged);
  Problems problems;
  const std::vector<FileRepair> repairs = repair_store(dir.path(), found, problems);
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_TRUE(repairs[0].done && repairs[0].renewed);
  const std::vector<Store::Row> rows = Store::open(dir.path())->all_winners();
  EXPECT_GE(rows.size(), 20u);
  EXPECT_LT(rows.size(), 60u);
  for (const Store::Row& row : rows) EXPECT_EQ(row.winner, stored.at(row.winner.bucket));
}

StoredBinary stored(const std::string& name, int64_t size, int64_t day) { return {sample_binary(name).key, "sm_90a", "cubin", size, day}; }

// Faults: gc follows another order than the store itself; a dry run another one than the real run; the newest day goes before the oldest.
TEST(StoreCare, BinariesGoByLastUseDownToTheLimit) {
  TempDir dir;
  const int64_t today = days_since_1970();
  {
    auto store = Store::open(dir.path());
    for (const char* name : {"a", "b", "c", "d"}) store->put_binary(sample_binary(name, 1000));
  }
  const auto used = [&](const char* name, int64_t days_ago) { change(dir / "kernels.db", "UPDATE blob SET last_used_day=" + std::to_string(today - days_ago) + " WHERE binary_key='" + sample_binary(name).key + "'"); };
  used("a", 5);
  used("b", 90);
  used("c", 40);
  GarbageRule rule;
  rule.max_bytes = 2500;
  for (const bool remove : {false, true}) {
    Problems problems;
    const Garbage garbage = collect_garbage(dir.path(), rule, remove, problems);
    ASSERT_EQ(garbage.binaries.size(), 2u);
    EXPECT_EQ(garbage.binaries[0].binary, stored("b", 1000, today - 90));
    EXPECT_EQ(garbage.binaries[1].binary, stored("c", 1000, today - 40));
    EXPECT_TRUE(garbage.complete);
    EXPECT_EQ(inspect_store(dir.path()).binaries.size(), remove ? 2u : 4u);
  }
  GarbageRule by_age;
  for (const auto& [days, left] : {std::pair{5, 2u}, {4, 1u}}) {
    by_age.idle_days = days;
    Problems problems;
    collect_garbage(dir.path(), by_age, true, problems);
    EXPECT_EQ(inspect_store(dir.path()).binaries.size(), left) << days;
  }
}

// Faults: a binary that cannot be loaded stays; damaged bytes are handed to the loader; what the loader takes goes.
TEST(StoreCare, BinariesThatThisBuildCannotLoadGo) {
  TempDir dir;
  {
    auto store = Store::open(dir.path());
    for (const char* name : {"a", "b", "c"}) store->put_binary(sample_binary(name));
  }
  change(dir / "kernels.db", "UPDATE blob SET data=x'00', size=1 WHERE binary_key='" + sample_binary("c").key + "'");
  GarbageRule rule;
  rule.loads = [](const Binary& binary) {
    EXPECT_EQ(binary.data.size(), 5000u);
    return binary.key != sample_binary("a").key;
  };
  Problems problems;
  const Garbage garbage = collect_garbage(dir.path(), rule, true, problems);
  ASSERT_EQ(garbage.binaries.size(), 1u);
  EXPECT_EQ(garbage.binaries[0].binary.key, sample_binary("a").key);
}

// Fault: a name that only looks like a file set aside is taken for one, or a real one is not.
TEST(StoreCare, KnowsTheNamesOfFilesSetAside) {
  EXPECT_EQ(set_aside_time("winners.db.corrupt-19700102T000001Z"), 86'401);
  EXPECT_EQ(set_aside_time("kernels.db.corrupt-19700102T000001Z-2-journal"), 86'401);
  for (const char* other : {"winners.db", "winners.db.corrupt-", "mine.db.corrupt-19700102T000001Z", "winners.db.corrupt-19700102T000001Z.bak", "winners.db.corrupt-19700102"}) EXPECT_FALSE(set_aside_time(other)) << other;
  // The name that the store itself gives.
  TempDir dir;
  { put(*Store::open(dir.path()), sample_row()); }
  write_file(dir / "winners.db", std::string(5000, 'g'));
  { Store::open(dir.path()); }
  int found = 0;
  for (const std::string& name : names_in(dir.path())) found += set_aside_time(name) ? 1 : 0;
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace pagetune
