// Counting calls, and the thread that writes the counts, without a device.
#include "runtime/untuned.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "store_samples.hpp"

namespace pagetune {
namespace {

using namespace std::chrono_literals;

uint64_t hits(const Store& store) {
  uint64_t all = 0;
  for (const Store::Untuned& call : store.untuned()) all += call.hits;
  return all;
}

// Fault: counts wait for the end of a process that is killed, or are written once and never again.
TEST(UntunedCalls, AreWrittenEveryPeriod) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  const auto calls = std::make_shared<UntunedCalls>(store, sample_environment(), AttentionSpec{});
  UntunedWriter writer(5ms);
  writer.add(calls);
  for (uint64_t round = 1; round <= 3; ++round) {
    calls->count({3, 12});
    for (int i = 0; i < 1000 && hits(*store) < round; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(hits(*store), round);
  }
}

// Fault: what was counted last is lost, or written twice.
TEST(UntunedCalls, AreWrittenAtTheWritersEndAndAtTheirOwn) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  auto kept = std::make_shared<UntunedCalls>(store, sample_environment(), AttentionSpec{}), gone = std::make_shared<UntunedCalls>(store, sample_environment(), AttentionSpec{});
  {
    UntunedWriter writer(1h);
    writer.add(kept);
    writer.add(gone);
    kept->count({3, 12});
    gone->count({3, 12});
    gone.reset();
    EXPECT_EQ(hits(*store), 1u);
  }
  EXPECT_EQ(hits(*store), 2u);
  kept.reset();
  EXPECT_EQ(hits(*store), 2u);
}

// Fault: hits are lost while they are written.
TEST(UntunedCalls, LoseNoHitOfManyThreads) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  const auto calls = std::make_shared<UntunedCalls>(store, sample_environment(), AttentionSpec{});
  {
    UntunedWriter writer(1ms);
    writer.add(calls);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20'000; ++i) calls->count(Bucket::at((t * 131 + i) % Bucket::kCells));
      });
  }
  EXPECT_EQ(hits(*store), 80'000u);
  EXPECT_EQ(store->untuned().size(), static_cast<size_t>(Bucket::kCells));
}

}  // namespace
}  // namespace pagetune
