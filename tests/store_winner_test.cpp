#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/directory.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

// Fault: a field that is not written, not read, or loses bits on the way.
TEST(StoreWinners, EveryFieldComesBackBitForBitAfterReopening_B182) {
  TempDir dir;
  Store::Row row = sample_row();
  row.winner.median_us = std::nextafter(0.1, 1);
  row.winner.ci_low_us = std::numeric_limits<double>::denorm_min();
  row.winner.ci_high_us = std::numeric_limits<double>::max();
  row.winner.floor_us = 4;  // SQLite stores it as an integer
  put(*Store::open(dir.path()), row);
  auto store = Store::open(dir.path());
  std::vector<Store::Row> rows = store->all_winners();
  ASSERT_EQ(rows.size(), 1u);
  expect_same(rows[0], row);
  EXPECT_EQ(store->winners(row.winner.env_key, row.winner.spec_key), std::vector<Winner>{row.winner});
  EXPECT_TRUE(store->problems().empty()) << store->problems()[0];
  EXPECT_EQ(store->usage().winners, 1);
}

// Fault: a key that leaves out a field of the spec or the environment, so that one winner overwrites another.
TEST(StoreWinners, SpecsAndEnvironmentsThatDifferInOneFieldHaveRowsOfTheirOwn_B175) {
  TempDir dir;
  AttentionSpec base, lse, layout, checked, sinks, capped;
  sinks.sinks = true;
  capped.soft_cap = true;
  lse.lse = true;
  layout.layout = Layout::hnd;
  checked.checked = true;
  Environment other_driver = sample_environment();
  other_driver.driver = "13.1";
  auto store = Store::open(dir.path());
  for (const auto& spec : {base, lse, layout, checked, sinks, capped}) put(*store, sample_row({0, 4}, spec));
  put(*store, sample_row({0, 4}, base, other_driver));
  put(*store, sample_row({1, 4}, base));
  EXPECT_EQ(store->all_winners().size(), 8u);
  EXPECT_EQ(store->winners(sample_environment().key(), spec_key(base)).size(), 2u);
  EXPECT_EQ(store->winners(other_driver.key(), spec_key(base)).size(), 1u);
  EXPECT_EQ(store->winners(sample_environment().key(), spec_key(lse)).size(), 1u);
}

// Fault: a second measurement that adds a row or is ignored.
TEST(StoreWinners, ALaterWinnerReplacesTheEarlierOne) {
  TempDir dir;
  Store::Row row = sample_row();
  auto store = Store::open(dir.path());
  put(*store, row);
  row.winner.config.set("NUM_SPLITS", 24);
  row.winner.median_us = 1.5;
  row.winner.runner_up = {};
  put(*store, row);
  store.reset();
  std::vector<Store::Row> rows = Store::open(dir.path())->all_winners();
  ASSERT_EQ(rows.size(), 1u);
  expect_same(rows[0], row);
}

// Fault: rows in insertion order, or buckets sorted as text (16 before 2).
TEST(StoreWinners, AreSortedByEnvironmentSpecAndBucket) {
  TempDir dir;
  auto store = Store::open(dir.path());
  for (Bucket bucket : {Bucket{4, 5}, Bucket{1, 5}, Bucket{1, 10}, Bucket{0, 22}}) put(*store, sample_row(bucket));
  std::vector<Winner> winners = store->winners(sample_environment().key(), spec_key(AttentionSpec{}));
  ASSERT_EQ(winners.size(), 4u);
  std::vector<Store::Row> rows = store->all_winners();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(rows[i].winner, winners[i]);
  EXPECT_EQ(winners[0].bucket, (Bucket{0, 22}));
  EXPECT_EQ(winners[1].bucket, (Bucket{1, 5}));
  EXPECT_EQ(winners[3].bucket, (Bucket{4, 5}));
}

// Fault: dispatch parameters missing as columns, or a new one of codegen that the table does not know.
TEST(StoreWinners, CanBeQueriedInTheWordsOfTheTemplateConfig) {
  std::set<std::string> columns(kDispatchColumns.begin(), kDispatchColumns.end());
  for (const auto& [name, value] : dispatch_values(AttentionSpec{})) EXPECT_TRUE(columns.contains(name)) << name << " has no column";
  TempDir dir;
  AttentionSpec small;
  small.head_dim_k = small.head_dim_v = 64;
  small.page_size = 32;
  {
    auto store = Store::open(dir.path());
    put(*store, sample_row());
    put(*store, sample_row({0, 4}, small));
  }
  SQLite::Database db(dir / "winners.db", SQLite::OPEN_READONLY);
  for (const auto& [name, value] : dispatch_values(small)) {
    SQLite::Statement query(db, std::string("SELECT ") + name + " FROM winner JOIN spec USING (spec_id) WHERE HEAD_DIM=64 AND BLOCK_SIZE=32");
    ASSERT_TRUE(query.executeStep());
    EXPECT_EQ(query.getColumn(0).getInt(), value) << name;
    EXPECT_FALSE(query.executeStep());
  }
  EXPECT_EQ(db.execAndGet("SELECT device FROM env").getString(), "NVIDIA H200");
  EXPECT_EQ(db.execAndGet("SELECT len FROM winner JOIN spec USING (spec_id) WHERE HEAD_DIM=128").getInt(), 4096);
}

// Fault: NaN becomes NULL in SQLite, and a row under a foreign key would answer for another device.
TEST(StoreWinners, ValuesThatCannotBeStoredAreRefused) {
  TempDir dir;
  auto store = Store::open(dir.path());
  Store::Row bad = sample_row();
  bad.winner.median_us = std::nan("");
  EXPECT_THROW(put(*store, bad), Error);
  bad = sample_row();
  bad.winner.error = -1;
  EXPECT_THROW(put(*store, bad), Error);
  bad = sample_row();
  bad.winner.env_key = std::string(64, '0');
  EXPECT_THROW(put(*store, bad), Error);
  bad = sample_row();
  bad.winner.bucket = {17, 4};
  EXPECT_THROW(put(*store, bad), Error);
  EXPECT_TRUE(store->all_winners().empty());
}

// Fault: a blocked config that is forgotten, or that blocks another spec or environment.
TEST(StoreBlocklist, KeepsConfigsWithTheirReasons) {
  TempDir dir;
  KernelConfig a({{"VARIANT", 1}}), b({{"VARIANT", 2}, {"NUM_SPLITS", 8}});
  {
    auto store = Store::open(dir.path());
    store->block("env", "spec", a, "wrong");
    store->block("env", "spec", b, "crashed");
    store->block("env", "spec", a, "wrong twice");
    store->block("env", "other", a, "timeout");
  }
  auto store = Store::open(dir.path());
  std::map<std::string, std::string> found;
  for (const auto& [config, reason] : store->blocked("env", "spec")) found[config.canonical_json()] = reason;
  EXPECT_EQ(found, (std::map<std::string, std::string>{{a.canonical_json(), "wrong twice"}, {b.canonical_json(), "crashed"}}));
  EXPECT_TRUE(store->blocked("other", "spec").empty());
}

// Fault: a value that the digest does not cover, so that a changed row is served.
TEST(StoreWinners, ARowThatWasChangedInTheFileIsNotServed) {
  const std::pair<const char*, bool> changes[] = {{"UPDATE text SET value='{\"NUM_SPLITS\":9}' WHERE text_id=(SELECT config FROM winner)", true},
                                                  {"UPDATE text SET value='nonsense' WHERE text_id=(SELECT config FROM winner)", true},
                                                  {"UPDATE text SET value='x' WHERE text_id=(SELECT generator_hash FROM winner)", true},
                                                  {"DELETE FROM text", true},
                                                  {"UPDATE winner SET median_us=1", true},
                                                  {"UPDATE winner SET ci_high_us=1", true},
                                                  {"UPDATE winner SET runner_up_us=1", true},
                                                  {"UPDATE winner SET len=2048", true},
                                                  {"UPDATE winner SET len=2047", true},
                                                  {"UPDATE winner SET batch=-1", true},
                                                  {"UPDATE winner SET runner_up=space_hash", true},
                                                  {"UPDATE winner SET env_id=7", true},
                                                  {"UPDATE winner SET samples=1", false},
                                                  {"UPDATE winner SET policy_hash=space_hash", false},
                                                  {"UPDATE winner SET digest='x'", false}};
  for (const auto& [change, is_of_dispatch] : changes) {
    TempDir dir;
    put(*Store::open(dir.path()), sample_row());
    SQLite::Database(dir / "winners.db", SQLite::OPEN_READWRITE).exec(std::string("PRAGMA foreign_keys=0; ") + change);
    auto store = Store::open(dir.path());
    EXPECT_TRUE(store->all_winners().empty()) << change;
    EXPECT_TRUE(store->winners(sample_environment().key(), spec_key(AttentionSpec{})).empty()) << change;
    ASSERT_EQ(store->problems().size(), 1u) << change;
    EXPECT_NE(store->problems()[0].find("winners.db"), std::string::npos);
    const auto dispatched = Store::open(dir.path());  // what it reads of a row has a seal of its own
    EXPECT_EQ(dispatched->layered_winners(sample_environment(), spec_key(AttentionSpec{})).empty(), is_of_dispatch) << change;
    EXPECT_EQ(dispatched->layered_winners(sample_environment()).empty(), is_of_dispatch) << change;
  }
}

// Fault: modes left to the umask; others could plant code or read it.
TEST(StoreDirectory, IsPrivate) {
  TempDir dir;
  std::string path = dir / "deep/cache";
  mode_t before = umask(0);
  auto store = Store::open(path);
  store->get_or_compile(sample_binary("k").key, [] { return sample_binary("k"); });
  umask(before);
  auto mode = [](const std::string& p) {
    struct stat info {};
    EXPECT_EQ(lstat(p.c_str(), &info), 0) << p;
    return info.st_mode & 07777;
  };
  EXPECT_EQ(mode(path), 0700u);
  for (const char* file : {"winners.db", "kernels.db", "compile.lock"}) EXPECT_EQ(mode(path + "/" + file), 0600u) << file;
  EXPECT_EQ(store->dir(), std::filesystem::canonical(path).string());
}

// Fault: two stores for one directory, each with a memory of its own.
TEST(StoreOpen, GivesOneStorePerDirectory) {
  TempDir dir;
  auto a = Store::open(dir.path()), b = Store::open(dir.path() + "/../" + std::filesystem::path(dir.path()).filename().string());
  EXPECT_EQ(a, b);
  EXPECT_NE(Store::open(":memory:"), Store::open(":memory:"));
}

// Fault: a race in the maps or on the connection (run under the thread sanitizer too), or a lost write.
TEST(StoreWinners, ThreadsWriteAndReadAtTheSameTime) {
  TempDir dir;
  auto store = Store::open(dir.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 10; ++i) {
        put(*store, sample_row({t, 4 + i}));
        store->winners(sample_environment().key(), spec_key(AttentionSpec{}));
        store->block("e", "s", KernelConfig({{"VARIANT", t * 10 + i}}), "r");
        store->problems();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->all_winners().size(), 40u);
  EXPECT_EQ(store->blocked("e", "s").size(), 40u);
}

}  // namespace
}  // namespace pagetune
