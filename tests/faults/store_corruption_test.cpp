#include <SQLiteCpp/SQLiteCpp.h>

#include <random>

#include "../store_expect.hpp"
#include "cache_db/database.hpp"

namespace pagetune {
namespace {

constexpr auto kPrivate = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

// A store with some pages in either file, made once, and what stands in it.
struct Original {
  std::string winners_db, kernels_db;
  std::map<std::pair<std::string, Bucket>, Winner> winners;  // by spec and bucket

  Original() {
    TempDir dir;
    auto store = Store::open(dir.path());
    AttentionSpec lse;
    lse.lse = true;
    for (int i = 0; i < 12; ++i) {
      Store::Row row = sample_row({i, 4 + i}, i % 2 ? lse : AttentionSpec{});
      put(*store, row);
      winners[{row.winner.spec_key, row.winner.bucket}] = row.winner;
    }
    store->block(sample_environment().key(), spec_key(lse), KernelConfig({{"TILE", 1}}), "wrong");  // an empty table's page can be cut without a loss
    store->put_binary(sample_binary("x", 20'000));
    store->put_binary(sample_binary("y", 300));
    store.reset();
    winners_db = read_file(dir / "winners.db");
    kernels_db = read_file(dir / "kernels.db");
  }
};

const Original& original() {
  static const Original once;
  return once;
}

size_t set_aside_files(const TempDir& dir) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) count += entry.path().string().find(".corrupt-") != std::string::npos;
  return count;
}

// Whatever the bytes: no exception, no altered winner, no altered code, and new results can be kept (in the file or in memory).
void expect_right_answers(const std::string& winners_db, const std::string& kernels_db, const std::string& what) {
  SCOPED_TRACE(what);
  TempDir dir;
  write_file(dir / "winners.db", winners_db);
  write_file(dir / "kernels.db", kernels_db);
  std::filesystem::permissions(dir / "winners.db", kPrivate);
  std::filesystem::permissions(dir / "kernels.db", kPrivate);
  auto store = Store::open(dir.path());
  std::vector<Winner> found;
  for (const auto& row : store->all_winners()) found.push_back(row.winner);
  for (const auto& [key, winner] : original().winners) {
    for (const auto& one : store->winners(winner.env_key, key.first)) found.push_back(one);
  }
  for (const auto& winner : found) {
    auto known = original().winners.find({winner.spec_key, winner.bucket});
    ASSERT_NE(known, original().winners.end());
    EXPECT_EQ(winner, known->second);
  }
  int compiles = 0;
  for (const Binary& wanted : {sample_binary("x", 20'000), sample_binary("y", 300)}) {
    Binary got = store->get_or_compile(wanted.key, [&] {
      ++compiles;
      return wanted;
    });
    EXPECT_TRUE(got.data == wanted.data);
    EXPECT_EQ(got.sha256, wanted.sha256);
  }
  Store::Row row = sample_row({2, 9});
  const size_t aside = set_aside_files(dir);
  put(*store, row);
  std::vector<Winner> after = store->winners(row.winner.env_key, row.winner.spec_key);
  // Damage that shows only now takes along what the file has just taken; it lies in the file that was set aside.
  if (set_aside_files(dir) == aside) {
    EXPECT_EQ(std::count(after.begin(), after.end(), row.winner), 1);
  }
  // A row lost to a changed key cannot be missed, but a cut file always loses something and must say so. (SQLite takes one byte for none.)
  if (winners_db.size() < original().winners_db.size() && winners_db.size() > 1) {
    EXPECT_FALSE(store->problems().empty());
  }
}

// Fault: a changed byte that is served as a result, or that stops the program. Every 149th byte: it hits all parts of every page.
TEST(StoreCorruption, FlippedBytesNeverGiveAWrongAnswer) {
  for (size_t at = 0; at < original().winners_db.size(); at += 149) {
    std::string bytes = original().winners_db;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    expect_right_answers(bytes, original().kernels_db, "winners.db, byte " + std::to_string(at));
  }
  for (size_t at = 0; at < original().kernels_db.size(); at += 149) {
    std::string bytes = original().kernels_db;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    expect_right_answers(original().winners_db, bytes, "kernels.db, byte " + std::to_string(at));
  }
}

// Fault: several damages at once, of which each alone would be found.
TEST(StoreCorruption, RandomDamageNeverGivesAWrongAnswer) {
  std::mt19937 random(11);  // NOLINT(bugprone-random-generator-seed): the same cases each time
  const auto damaged = [&](std::string bytes) {
    for (int flips = 1 << random() % 8; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    return bytes;
  };
  for (int round = 0; round < 300; ++round) expect_right_answers(damaged(original().winners_db), damaged(original().kernels_db), "round " + std::to_string(round));
}

// Fault: a damaged hint, which untuned.db is, ends the program, makes up calls, or takes winners along.
TEST(StoreCorruption, DamagedCountsCostNothingElse) {
  std::string whole;
  {
    TempDir dir;
    for (int i = 0; i < 20; ++i) Store::open(dir.path())->add_untuned({{sample_environment(), AttentionSpec{}, Bucket::at(i), 7}});
    whole = read_file(dir / "untuned.db");
  }
  const auto expect_right = [](const std::string& bytes, const std::string& what) {
    SCOPED_TRACE(what);
    TempDir dir;
    write_file(dir / "untuned.db", bytes);
    std::filesystem::permissions(dir / "untuned.db", kPrivate);
    auto store = Store::open(dir.path());
    for (const Store::Untuned& call : store->untuned()) {
      EXPECT_EQ(call.environment, sample_environment());
      EXPECT_EQ(call.spec, AttentionSpec{});
    }
    store->add_untuned({{sample_environment(), AttentionSpec{}, {9, 9}, 1}});
    put(*store, sample_row());
    EXPECT_EQ(store->all_winners().size(), 1u);
    const auto calls = store->untuned();
    const bool counted = std::any_of(calls.begin(), calls.end(), [](const Store::Untuned& call) { return call.bucket == Bucket{9, 9}; });
    EXPECT_TRUE(counted || !store->problems().empty()) << "a count is lost, and nothing was said";
  };
  for (size_t size = 0; size < whole.size(); size += 2048) expect_right(whole.substr(0, size), "cut to " + std::to_string(size));
  for (size_t at = 0; at < whole.size(); at += 61) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    expect_right(bytes, "byte " + std::to_string(at));
  }
}

// Fault: a file cut by a full disk or a broken copy.
TEST(StoreCorruption, TruncatedFilesAreSetAsideOrRead) {
  constexpr size_t kPage = 4096;
  ASSERT_EQ(original().winners_db.size() % kPage, 0u);
  for (size_t size = 0; size < original().winners_db.size(); size += kPage) {
    for (size_t extra : {size_t{0}, size_t{1}, kPage / 2})
      expect_right_answers(original().winners_db.substr(0, size + extra), original().kernels_db, "winners.db cut to " + std::to_string(size + extra));
  }
  for (size_t size = 0; size < original().kernels_db.size(); size += kPage) {
    for (size_t extra : {size_t{0}, size_t{1}, kPage / 2})
      expect_right_answers(original().winners_db, original().kernels_db.substr(0, size + extra), "kernels.db cut to " + std::to_string(size + extra));
  }
}

// Fault: damage that is deleted (a person may want to rescue it), said more than once, or met again at the next start.
TEST(StoreCorruption, ADamagedFileIsSetAsideOnceAndReplaced) {
  for (const std::string& bytes : {std::string("not a database at all\n"), original().winners_db.substr(0, original().winners_db.size() / 2),
                                   std::string(8192, '\xff')}) {
    TempDir dir;
    write_file(dir / "winners.db", bytes);
    std::filesystem::permissions(dir / "winners.db", kPrivate);
    auto store = Store::open(dir.path());
    ASSERT_EQ(store->problems().size(), 1u);
    EXPECT_NE(store->problems()[0].find(dir / "winners.db.corrupt-"), std::string::npos) << store->problems()[0];
    put(*store, sample_row());
    store->all_winners();
    EXPECT_EQ(store->problems().size(), 1u);
    EXPECT_GE(set_aside_files(dir), 1u);
    store.reset();
    store = Store::open(dir.path());
    EXPECT_TRUE(store->problems().empty());
    EXPECT_EQ(store->all_winners().size(), 1u);
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
      std::string path = entry.path().string();
      if (path.find(".corrupt-") == std::string::npos) continue;
      EXPECT_EQ(read_file(path), bytes);
    }
  }
}

// Fault: damage in a part that is not read at first is met only after new results were added to the file, which then go with it.
TEST(StoreCorruption, DamageOfWinnersIsFoundAtOpening) {
  TempDir dir;
  put(*Store::open(dir.path()), sample_row());
  size_t root;
  {
    SQLite::Database db(dir / "winners.db", SQLite::OPEN_READONLY);
    root = static_cast<size_t>(db.execAndGet("SELECT rootpage FROM sqlite_master WHERE name='blocklist'").getInt());
  }
  std::string bytes = read_file(dir / "winners.db");
  write_file(dir / "winners.db", bytes.replace((root - 1) * 4096, 64, 64, '\xff'));
  EXPECT_EQ(Store::open(dir.path())->problems().size(), 1u);
  EXPECT_EQ(set_aside_files(dir), 1u);
}

// Fault: damage that appears while the store is open ends the process or is never repaired.
TEST(StoreCorruption, DamageUnderAnOpenStoreIsRepaired) {
  TempDir dir;
  auto store = Store::open(dir.path());
  put(*store, sample_row());
  write_file(dir / "winners.db", std::string(read_file(dir / "winners.db").size(), '\x5a'));
  put(*store, sample_row({1, 4}));
  EXPECT_EQ(store->all_winners().size(), 1u);
  EXPECT_EQ(store->problems().size(), 1u);
  store.reset();
  EXPECT_EQ(Store::open(dir.path())->all_winners().size(), 1u);
}

// Runs the store on a winners.db changed by `sql`; expects it untouched and out of use, with one sentence that holds `word`.
void expect_left_alone(const std::string& sql, const std::string& word) {
  SCOPED_TRACE(sql);
  TempDir dir;
  put(*Store::open(dir.path()), sample_row());
  { SQLite::Database(dir / "winners.db", SQLite::OPEN_READWRITE).exec(sql); }
  std::string before = read_file(dir / "winners.db");
  {
    auto store = Store::open(dir.path());
    ASSERT_EQ(store->problems().size(), 1u);
    EXPECT_NE(store->problems()[0].find("winners.db"), std::string::npos);
    EXPECT_NE(store->problems()[0].find(word), std::string::npos) << store->problems()[0];
    EXPECT_TRUE(store->all_winners().empty());
    put(*store, sample_row({1, 4}));
    EXPECT_EQ(store->all_winners().size(), 1u) << "memory does not answer";
    store->put_binary(sample_binary("x"));
    EXPECT_EQ(store->usage().binaries, 1) << "the other file is affected";
    EXPECT_EQ(store->problems().size(), 1u);
  }
  EXPECT_TRUE(read_file(dir / "winners.db") == before) << "the file was touched";
  EXPECT_EQ(set_aside_files(dir), 0u);
}

// Fault: a newer program's results are overwritten, or another program's file is taken over.
TEST(StoreCorruption, FilesOfOthersAreLeftAlone_B182) {
  expect_left_alone("PRAGMA user_version=999", "999");
  expect_left_alone("PRAGMA user_version=0", "version 0");
  expect_left_alone("PRAGMA application_id=7", "not a database of pagetune");
  expect_left_alone("ALTER TABLE winner DROP COLUMN tied", "tied");
  expect_left_alone("ALTER TABLE spec DROP COLUMN IsFP8", "IsFP8");
  expect_left_alone("DROP TABLE blocklist", "blocklist");
  expect_left_alone("CREATE TRIGGER t AFTER INSERT ON winner BEGIN DELETE FROM winner; END", "triggers");
}

// Fault: WAL on an SQLite that can lose commits of several processes with it, or its absence where it is safe.
TEST(StoreCorruption, WalIsUsedOnlyWhereSqliteIsRepaired) {
  for (int bad : {3'007'000, 3'040'001, 3'044'005, 3'045'000, 3'050'006, 3'051'002}) EXPECT_FALSE(wal_is_safe(bad)) << bad;
  for (int good : {3'044'006, 3'050'007, 3'051'003, 3'053'000}) EXPECT_TRUE(wal_is_safe(good)) << good;
  TempDir dir;
  put(*Store::open(dir.path()), sample_row());
  { SQLite::Database(dir / "winners.db", SQLite::OPEN_READWRITE).execAndGet("PRAGMA journal_mode=WAL"); }
  EXPECT_EQ(Store::open(dir.path())->all_winners().size(), 1u);
  SQLite::Database db(dir / "winners.db", SQLite::OPEN_READONLY);
  EXPECT_EQ(db.execAndGet("PRAGMA journal_mode").getString(), wal_is_safe(SQLite::getLibVersionNumber()) ? "wal" : "delete");
}

// Fault: a file in WAL mode, as another SQLite leaves it, that was copied without its side files or with some of them is taken for damage, or what it holds itself is lost.
TEST(StoreCorruption, AWalFileWithoutItsSideFilesIsReadAsFarAsItGoes) {
  TempDir live;
  for (int i = 0; i < 3; ++i) put(*Store::open(live.path()), sample_row({i, 4}));
  SQLite::Database writer(live / "winners.db", SQLite::OPEN_READWRITE);
  writer.execAndGet("PRAGMA journal_mode=WAL");
  writer.exec("DELETE FROM winner WHERE batch=4");  // stands in winners.db-wal alone while the connection is open
  struct Case {
    std::vector<std::string> copied;
    size_t rows;
  };
  for (const auto& [copied, rows] : {Case{{"winners.db"}, 3}, Case{{"winners.db", "winners.db-shm"}, 3}, Case{{"winners.db", "winners.db-wal"}, 2}, Case{{"winners.db", "winners.db-wal", "winners.db-shm"}, 2}}) {
    SCOPED_TRACE(::testing::PrintToString(copied));
    TempDir dir;
    for (const std::string& name : copied) std::filesystem::copy(live / name, dir / name);
    auto store = Store::open(dir.path());
    EXPECT_EQ(store->all_winners().size(), rows);
    put(*store, sample_row({9, 9}));
    EXPECT_TRUE(store->problems().empty()) << store->problems()[0];
    store.reset();
    EXPECT_EQ(Store::open(dir.path())->all_winners().size(), rows + 1);
    EXPECT_EQ(set_aside_files(dir), 0u);
  }
}

}  // namespace
}  // namespace pagetune
