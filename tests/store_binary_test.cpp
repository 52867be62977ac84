#include <SQLiteCpp/SQLiteCpp.h>
#include <dirent.h>

#include <atomic>
#include <latch>
#include <thread>

#include "cache_db/binary_table.hpp"
#include "cache_db/key_lock.hpp"
#include "cache_db/memory_binaries.hpp"
#include "cache_db/single_flight.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

void expect_same_code(const Binary& a, const Binary& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.arch, b.arch);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.sha256, b.sha256);
  EXPECT_TRUE(a.data == b.data);
}

// Fault: bytes that are cut at a zero, or changed by an encoding.
TEST(StoreBinaries, ComeBackByteForByte) {
  TempDir dir;
  Binary binary = sample_binary("x", 100'000), empty = sample_binary("empty", 0);
  {
    auto store = Store::open(dir.path());
    store->put_binary(binary);
    store->put_binary(empty);
  }
  auto store = Store::open(dir.path());
  for (const Binary& wanted : {binary, empty}) {
    std::optional<Binary> found = store->find_binary(wanted.key);
    ASSERT_TRUE(found);
    expect_same_code(*found, wanted);
  }
  EXPECT_FALSE(store->find_binary(sha256_hex("other")));
  EXPECT_EQ(store->counters().hits, 2u);
  EXPECT_EQ(store->usage().binaries, 2);
  EXPECT_EQ(store->usage().binary_bytes, 100'000);
}

// Fault: launch facts taken from a database or a memory instead of the code, so that host and device disagree.
TEST(StoreBinaries, NeverCarryLaunchFacts) {
  auto store = Store::open(":memory:");
  Binary binary = sample_binary("x");
  binary.facts.threads = 128;
  EXPECT_EQ(store->get_or_compile(binary.key, [&] { return binary; }).facts.threads, 0);
  EXPECT_EQ(store->find_binary(binary.key)->facts.threads, 0);
}

// Fault: damaged code handed to the driver. 0 bytes, half of it, one flipped bit, a longer one, a wrong size.
TEST(StoreBinaries, DamagedOnesAreRemovedCountedAndCompiledOnceMore) {
  for (const char* damage : {"data=x''", "data=substr(data,1,2500)", "data=CAST(substr(data,1,100)||x'00'||substr(data,102) AS BLOB)",
                             "data=data||x'00'", "size=4999", "sha256='0'", "data=NULL||'text'"}) {
    TempDir dir;
    Binary binary = sample_binary("x");
    ASSERT_NE(binary.data[100], 0);
    Store::open(dir.path())->put_binary(binary);
    {
      SQLite::Database db(dir / "kernels.db", SQLite::OPEN_READWRITE);
      if (std::string(damage).ends_with("'text'")) {
        db.exec("UPDATE blob SET data='text'");
      } else {
        db.exec(std::string("UPDATE blob SET ") + damage);
      }
    }
    auto store = Store::open(dir.path());
    EXPECT_FALSE(store->find_binary(binary.key)) << damage;
    EXPECT_EQ(store->counters().corrupt, 1u) << damage;
    ASSERT_EQ(store->problems().size(), 1u) << damage;
    EXPECT_NE(store->problems()[0].find("kernels.db"), std::string::npos);
    EXPECT_EQ(store->usage().binaries, 0) << damage;
    int compiles = 0;
    for (int i = 0; i < 2; ++i) {
      expect_same_code(store->get_or_compile(binary.key, [&] {
        ++compiles;
        return binary;
      }),
                       binary);
    }
    EXPECT_EQ(compiles, 1) << damage;
    store.reset();
    expect_same_code(Store::open(dir.path())->find_binary(binary.key).value(), binary);
  }
}

// Fault: a memory layer that is never filled (the second look goes to the disk again).
TEST(StoreBinaries, TheSecondLookNeedsNoDisk) {
  TempDir dir;
  Binary binary = sample_binary("x");
  Store::open(dir.path())->put_binary(binary);
  auto store = Store::open(dir.path());
  ASSERT_TRUE(store->find_binary(binary.key));
  SQLite::Database(dir / "kernels.db", SQLite::OPEN_READWRITE).exec("DELETE FROM blob");
  EXPECT_TRUE(store->find_binary(binary.key));
}

// Fault: bytes that do not belong to their sha256 or key get into the store and are served for ever.
TEST(StoreBinaries, InconsistentOnesAreRefused) {
  auto store = Store::open(":memory:");
  Binary binary = sample_binary("x");
  binary.data += 'x';
  EXPECT_THROW(store->put_binary(binary), Error);
  EXPECT_THROW(store->get_or_compile(sha256_hex("other"), [] { return sample_binary("x"); }), Error);
  EXPECT_FALSE(store->find_binary(sha256_hex("other")));
}

// Fault: a cache that grows without bound, or that evicts what is used or what it has just stored.
TEST(StoreBinaries, TheLeastRecentlyUsedGoFirstAboveTheLimit) {
  TempDir dir;
  Problems problems;
  BinaryTable table(dir.path(), problems, 10'000);
  Binary a = sample_binary("a", 4000), b = sample_binary("b", 4000), c = sample_binary("c", 4000), huge = sample_binary("huge", 10'001);
  table.put(a);
  table.put(b);
  {
    SQLite::Database db(dir / "kernels.db", SQLite::OPEN_READWRITE);
    db.exec("UPDATE blob SET last_used_day = CASE binary_key WHEN '" + a.key + "' THEN 100 ELSE 200 END");
  }
  ASSERT_TRUE(table.find(a.key));  // used today: b is now the older one
  table.put(c);
  EXPECT_TRUE(table.find(a.key));
  EXPECT_FALSE(table.find(b.key));
  EXPECT_TRUE(table.find(c.key));
  EXPECT_EQ(table.usage()->bytes, 8000);
  table.put(huge);
  EXPECT_EQ(table.usage()->count, 2);
  EXPECT_EQ(problems.all().size(), 1u);
}

// Fault: a write per read (the day is only written when it has changed).
TEST(StoreBinaries, TheDayOfUseIsWrittenOncePerDay) {
  TempDir dir;
  Problems problems;
  BinaryTable table(dir.path(), problems);
  Binary a = sample_binary("a");
  table.put(a);
  auto changes = [&] {
    SQLite::Database db(dir / "kernels.db", SQLite::OPEN_READONLY);
    return read_file(dir / "kernels.db").substr(24, 4);  // the file change counter of SQLite's header
  };
  { SQLite::Database(dir / "kernels.db", SQLite::OPEN_READWRITE).exec("UPDATE blob SET last_used_day=1"); }
  std::string old = changes();
  ASSERT_TRUE(table.find(a.key));
  std::string used = changes();
  EXPECT_NE(used, old);
  ASSERT_TRUE(table.find(a.key));
  EXPECT_EQ(changes(), used);
}

// Fault: a process that tunes for hours keeps every binary in memory.
TEST(MemoryBinaries, AreBounded) {
  MemoryBinaries memory(10'000);
  memory.put(sample_binary("a", 4000));
  memory.put(sample_binary("b", 4000));
  ASSERT_TRUE(memory.find(sha256_hex("a")));
  memory.put(sample_binary("c", 4000));
  EXPECT_TRUE(memory.find(sha256_hex("a")));
  EXPECT_FALSE(memory.find(sha256_hex("b")));
  memory.put(sample_binary("c", 3000));
  EXPECT_EQ(memory.bytes(), 7000);
  EXPECT_EQ(memory.count(), 2);
}

// Fault: threads that compile the same kernel side by side.
TEST(SingleFlight, ThreadsShareOneCompile) {
  for (const bool on_disk : {false, true}) {
    TempDir dir;
    auto store = Store::open(on_disk ? dir.path() : ":memory:");
    std::atomic<int> compiles{0};
    std::latch start(8);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        Binary binary = store->get_or_compile(sample_binary("x").key, [&] {
          ++compiles;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          return sample_binary("x");
        });
        EXPECT_EQ(binary.sha256, sample_binary("x").sha256);
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(compiles, 1);
    EXPECT_EQ(store->counters().compiles, 1u);
    EXPECT_EQ(store->counters().hits, 7u);
  }
}

// Fault: waiters that hang, get another error, or a failure that is remembered.
TEST(SingleFlight, AnExceptionReachesAllWaitersAndIsForgotten) {
  SingleFlight flights(std::chrono::hours(1));
  std::atomic<int> waiting{0};
  std::latch failing(1);
  auto nothing = [&]() -> std::optional<Binary> {
    ++waiting;
    return std::nullopt;
  };
  std::atomic<int> caught{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      try {
        flights.run("k", nothing, [&]() -> Binary {
          failing.wait();
          throw Error(ErrorCode::compile_failed, "log");
        });
      } catch (const Error& error) {
        if (error.code() == ErrorCode::compile_failed && std::string(error.what()) == "log") ++caught;
      }
    });
  }
  while (waiting < 4) std::this_thread::yield();
  failing.count_down();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(caught, 4);
  EXPECT_EQ(flights.run("k", nothing, [] { return sample_binary("k"); }).key, sample_binary("k").key);
}

// Fault: a waiter that waits for ever for a leader that hangs. (Broken, this test never ends.)
TEST(SingleFlight, AWaiterLosesPatience) {
  SingleFlight flights(std::chrono::milliseconds(1));
  auto nothing = []() -> std::optional<Binary> { return std::nullopt; };
  std::latch leading(1), done(1);
  std::thread leader([&] {
    flights.run("k", nothing, [&] {
      leading.count_down();
      done.wait();
      return sample_binary("leader");
    });
  });
  leading.wait();
  EXPECT_EQ(flights.run("k", nothing, [] { return sample_binary("waiter"); }).key, sample_binary("waiter").key);
  done.count_down();
  leader.join();
}

// Fault: one lock for all keys, a lock that is not exclusive, not released, or waited for without end.
TEST(KeyLock, IsExclusivePerKey) {
  TempDir dir;
  constexpr auto kNow = std::chrono::milliseconds(0);
  {
    KeyLock a(dir.path(), "a", kNow), b(dir.path(), "b", kNow), second(dir.path(), "a", kNow);
    EXPECT_TRUE(a.held());
    EXPECT_TRUE(b.held());
    EXPECT_FALSE(second.held());
  }
  EXPECT_TRUE(KeyLock(dir.path(), "a", kNow).held());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "lock files pile up";
  EXPECT_EQ(std::filesystem::file_size(dir / "compile.lock"), 0u);
}

// Fault: following a planted link out of the directory.
TEST(KeyLock, DoesNotFollowLinks) {
  TempDir dir;
  std::filesystem::create_symlink(dir / "target", dir / "compile.lock");
  EXPECT_FALSE(KeyLock(dir.path(), "a", std::chrono::milliseconds(0)).held());
  EXPECT_FALSE(std::filesystem::exists(dir / "target"));
}

// Fault: descriptors that stay open (a long-lived server runs out of them).
TEST(Store, LeaksNoDescriptors) {
  TempDir dir;
  auto open_descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  auto use = [&](int i) {
    auto store = Store::open(dir.path());
    store->get_or_compile(sample_binary(std::to_string(i)).key, [&] { return sample_binary(std::to_string(i)); });
    put(*store, sample_row());
  };
  use(0);
  auto before = open_descriptors();
  for (int i = 1; i < 20; ++i) use(i);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace pagetune
