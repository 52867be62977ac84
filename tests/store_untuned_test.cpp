#include <SQLiteCpp/SQLiteCpp.h>

#include <fstream>
#include <thread>

#include "store_expect.hpp"

namespace pagetune {
namespace {

Store::Untuned call_of(Bucket bucket, uint64_t hits, const AttentionSpec& spec = {}, const Environment& environment = sample_environment()) { return {environment, spec, bucket, hits}; }

// The bucket's hits, or 0.
uint64_t hits_of(const Store& store, Bucket bucket, const AttentionSpec& spec = {}) {
  for (const Store::Untuned& call : store.untuned())
    if (call.bucket == bucket && call.spec == spec) return call.hits;
  return 0;
}

// Fault: hits replace those of before, are lost when the store is opened again, or buckets, specs and devices share a count.
TEST(StoreUntuned, HitsAddUpForEachBucketSpecAndEnvironment) {
  const TempDir dir;
  AttentionSpec other;
  other.page_size = 64;
  Environment elsewhere = sample_environment();
  elsewhere.driver = "13.1";
  Store::open(dir.path())->add_untuned({call_of({3, 12}, 5), call_of({3, 12}, 2, other), call_of({3, 13}, 1)});
  auto store = Store::open(dir.path());
  store->add_untuned({call_of({3, 12}, 7), call_of({3, 12}, 11, {}, elsewhere)});
  const auto calls = store->untuned();
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(hits_of(*store, {3, 12}, other), 2u);
  EXPECT_EQ(hits_of(*store, {3, 13}), 1u);
  std::map<std::string, uint64_t> by_driver;
  for (const Store::Untuned& call : calls)
    if (call.bucket == Bucket{3, 12} && call.spec == AttentionSpec{}) by_driver[call.environment.driver] = call.hits;
  EXPECT_EQ(by_driver, (std::map<std::string, uint64_t>{{"13.0", 12}, {"13.1", 11}}));
  EXPECT_TRUE(store->problems().empty());
}

// Fault: two writers at once lose each other's hits.
TEST(StoreUntuned, WritersAtOnceLoseNothing) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) store->add_untuned({call_of({1, 9}, 1)});
      });
  }
  EXPECT_EQ(hits_of(*store, {1, 9}), 160u);
}

// Fault: a row that somebody damaged or made up is taken for a call, or takes the others with it.
TEST(StoreUntuned, DamagedRowsAreIgnoredAndSaid) {
  for (const char* damage : {"UPDATE untuned SET batch = 3", "UPDATE untuned SET batch = 131072", "UPDATE untuned SET len = 8", "UPDATE untuned SET len = -16", "UPDATE untuned SET hits = 0",
                             "UPDATE untuned SET hits = 'many'", "UPDATE untuned SET spec = '{}'", "UPDATE untuned SET spec = 'no JSON'", "UPDATE untuned SET environment = '[]'", "UPDATE untuned SET spec_key = 'x'",
                             "UPDATE untuned SET env_id = 'x'"}) {
    const TempDir dir;
    AttentionSpec other;
    other.page_size = 64;
    Store::open(dir.path())->add_untuned({call_of({3, 12}, 5)});
    {
      SQLite::Database db(dir / "untuned.db", SQLite::OPEN_READWRITE);
      db.exec(damage);
    }
    const auto store = Store::open(dir.path());
    store->add_untuned({call_of({2, 10}, 4, other)});
    const auto calls = store->untuned();
    ASSERT_EQ(calls.size(), 1u) << damage;
    EXPECT_EQ(calls[0].spec, other) << damage;
    ASSERT_EQ(store->problems().size(), 1u) << damage;
    EXPECT_NE(store->problems()[0].find("rows that no kernel counted"), std::string::npos) << store->problems()[0];
  }
}

// Fault: the file grows for ever with shapes that nobody calls any more, or forgets those that somebody does.
TEST(StoreUntuned, WhatNobodyCallsForNinetyDaysIsForgotten) {
  const TempDir dir;
  Store::open(dir.path())->add_untuned({call_of({0, 8}, 5), call_of({1, 8}, 5), call_of({2, 8}, 5)});
  {
    SQLite::Database db(dir / "untuned.db", SQLite::OPEN_READWRITE);
    db.exec("UPDATE untuned SET last_day = last_day - 91 WHERE batch < 4");
    db.exec("UPDATE untuned SET last_day = last_day - 89 WHERE batch = 4");
  }
  const auto store = Store::open(dir.path());
  store->add_untuned({call_of({1, 8}, 1)});
  EXPECT_EQ(hits_of(*store, {0, 8}), 0u);
  EXPECT_EQ(hits_of(*store, {1, 8}), 6u);
  EXPECT_EQ(hits_of(*store, {2, 8}), 5u);
}

// Fault: counts that cannot be kept are an error, touch the winners, or are said to be kept.
TEST(StoreUntuned, AFileThatCannotBeWrittenLosesTheCountsAndNothingElse) {
  const TempDir dir;
  std::ofstream(dir / "untuned.db") << "something else entirely, which is long enough to have a header of a database that is none at all; it is not pagetune's";
  std::filesystem::permissions(dir / "untuned.db", std::filesystem::perms::owner_read | std::filesystem::perms::group_write | std::filesystem::perms::owner_write);
  const auto store = Store::open(dir.path());
  store->add_untuned({call_of({0, 8}, 5)});
  EXPECT_TRUE(store->untuned().empty());
  put(*store, sample_row());
  EXPECT_EQ(Store::open(dir.path())->all_winners().size(), 1u);
  ASSERT_EQ(store->problems().size(), 1u);
  EXPECT_NE(store->problems()[0].find("are not counted"), std::string::npos) << store->problems()[0];
  const auto nothing = Store::open(":memory:");
  nothing->add_untuned({call_of({0, 8}, 5)});
  EXPECT_TRUE(nothing->untuned().empty() && nothing->problems().empty());
}

// Fault: a program that counts nothing makes the file.
TEST(StoreUntuned, NoCallsMakeNoFile) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  store->add_untuned({});
  EXPECT_FALSE(std::filesystem::exists(dir / "untuned.db"));
}

}  // namespace
}  // namespace pagetune
