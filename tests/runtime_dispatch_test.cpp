// The dispatch table: which config answers a shape, from what, and that ranks can compare it. No device.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/launch_plan.hpp"
#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "codegen_testing.hpp"
#include "runtime/dispatch.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

const AttentionSpec kSpec = testing::decode_spec(32, 8, 128);
const Target kTarget = Target::by_name("sm_90a");

Winner winner(Bucket bucket, const KernelConfig& config) {
  Winner w;
  w.bucket = bucket;
  w.config = config;
  return w;
}

// Configs of the space that differ from one another and from every default.
std::vector<KernelConfig> unusual_configs(size_t count) {
  std::vector<KernelConfig> result;
  for (const KernelConfig& config : ConfigSpace::builtin().candidates(kSpec, kTarget).configs)
    if (config.at("NUM_STAGES") == 6 && result.size() < count) result.push_back(config);
  EXPECT_EQ(result.size(), count);
  return result;
}

std::vector<LayeredWinner> random_winners(Random& random, int count) {
  std::set<Bucket> buckets;
  while (static_cast<int>(buckets.size()) < count) buckets.insert({random.below(Bucket::kBatchCells), Bucket::kMinLenLog2 + random.below(Bucket::kLenCells)});
  const auto configs = unusual_configs(static_cast<size_t>(count));
  std::vector<LayeredWinner> winners;
  for (const Bucket& bucket : buckets) winners.push_back(winner(bucket, configs[winners.size()]));
  return winners;
}

// What dispatch.hpp promises, cell by cell: the nearest winner with at most kReach octaves on each axis, of equals the smaller bucket.
const Choice* expected_answer(const std::vector<LayeredWinner>& winners, Bucket bucket) {
  const Choice* best = nullptr;
  int best_distance = INT_MAX;
  for (const LayeredWinner& one : winners) {
    const Choice& w = one.winner;
    const int batch = std::abs(w.bucket.batch_log2 - bucket.batch_log2), len = std::abs(w.bucket.len_log2 - bucket.len_log2);
    if (batch > DispatchTable::kReach || len > DispatchTable::kReach) continue;
    const bool better = batch + len < best_distance || (best != nullptr && batch + len == best_distance && w.bucket < best->bucket);
    if (!better) continue;
    best = &w;
    best_distance = batch + len;
  }
  return best;
}

template <class Body>
void for_each_bucket(const Body& body) {
  for (int b = 0; b < Bucket::kBatchCells; ++b)
    for (int l = 0; l < Bucket::kLenCells; ++l) body(Bucket{b, Bucket::kMinLenLog2 + l});
}

// Fault: a cell takes a winner that is too far, the farther of two, or the default beside a winner; a label that does not fit.
TEST(Dispatch, EveryCellTakesTheNearestWinnerInReachElseTheDefault) {
  Random random(7);
  int nearest = 0, tuned = 0, by_default = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<LayeredWinner> winners = random_winners(random, 1 + round);
    const DispatchTable table(kSpec, kTarget, winners);
    for_each_bucket([&](Bucket bucket) {
      const Selection selection = table.at(bucket);
      const KernelConfig& config = table.configs().at(selection.index);
      const Choice* expected = expected_answer(winners, bucket);
      if (expected == nullptr) {
        EXPECT_EQ(selection.source, Source::analytic_default) << bucket.text();
        EXPECT_EQ(config, default_config(kSpec, kTarget, bucket)) << bucket.text();
        ++by_default;
      } else {
        EXPECT_EQ(selection.source, expected->bucket == bucket ? Source::tuned : Source::nearest) << bucket.text();
        EXPECT_EQ(config, expected->config) << bucket.text() << " was answered by another than " << expected->bucket.text();
        ++(expected->bucket == bucket ? tuned : nearest);
      }
    });
  }
  EXPECT_GT(nearest, 100);
  EXPECT_GT(tuned, 50);
  EXPECT_GT(by_default, 100);
}

// Fault: select() asks another bucket than the tuner measured.
TEST(Dispatch, SelectUsesTheOneBucketMapping) {
  Random random(3);
  const DispatchTable table(kSpec, kTarget, random_winners(random, 12));
  for (int i = 0; i < 20'000; ++i) {
    const int batch = 1 << random.below(17), len = 1 + random.below(1 << (1 + random.below(20)));
    const int64_t total = i % 3 == 0 ? 0 : 1 + random.below(1 << 20);
    const Selection a = table.select(batch, len, total), b = table.at(call_shape(batch, len, total));
    ASSERT_EQ(a.index, b.index);
    ASSERT_EQ(a.source, b.source);
  }
}

// Fault: one pass, or a fixed split, over sequences of one length wins its bucket, and a ragged batch then waits for the CTAs of its longest sequence; or an even share
// among few CTAs wins there, where many short sequences want more.
TEST(Dispatch, WhatSplitsAllSequencesAlikeAnswersOnlyWhereLengthsAre) {
  KernelConfig one_pass = default_shape(kSpec, kTarget);
  ASSERT_EQ(one_pass.variant(), 1);
  const Bucket bucket{6, 12};
  const DispatchTable table(kSpec, kTarget, {winner(bucket, one_pass)});
  const auto picked = [&](int batch, int64_t total) { return table.select(batch, 4096, total); };
  const int64_t full = int64_t{64} * 4096;
  for (const int64_t total : {full, full * 7 / 8}) {
    EXPECT_EQ(table.configs()[picked(64, total).index], one_pass) << total;
    EXPECT_EQ(picked(64, total).source, Source::tuned) << total;
  }
  for (const int64_t total : {full * 7 / 8 - 1, int64_t{0}}) {
    EXPECT_EQ(table.configs()[picked(64, total).index], default_config(kSpec, kTarget, {bucket, false})) << total;
    EXPECT_EQ(picked(64, total).source, Source::analytic_default) << total;
  }
  EXPECT_TRUE(default_config(kSpec, kTarget, bucket).even_share());
  const KernelConfig clusters = default_config(kSpec, kTarget, Bucket{0, 10}), unlike = default_config(kSpec, kTarget, {{8, 12}, false});
  ASSERT_GT(clusters.num_splits(), 1);
  ASSERT_TRUE(unlike.even_share());
  KernelConfig larger_ring = unlike, fewer = unlike;
  larger_ring.set("NUM_STAGES", unlike.at("NUM_STAGES") * 2);
  fewer.set("CTA_QUARTERS", unlike.at("CTA_QUARTERS") / 2);
  const DispatchTable both(kSpec, kTarget, {winner({3, 12}, clusters), winner({8, 12}, larger_ring), winner({8, 17}, fewer)});
  EXPECT_EQ(both.at({{3, 12}, true}).source, Source::tuned);
  EXPECT_EQ(both.at({{3, 12}, false}).source, Source::analytic_default);
  EXPECT_EQ(both.at({{8, 12}, false}).source, Source::tuned) << "an even share among as many serves any lengths";
  EXPECT_EQ(both.configs()[both.at({{8, 12}, false}).index], larger_ring);
  EXPECT_EQ(both.at({{8, 17}, true}).source, Source::tuned);
  EXPECT_EQ(both.configs()[both.at({{8, 17}, false}).index], default_config(kSpec, kTarget, {{8, 17}, false}));
  testing::expect_mentions(table.explain({bucket, false}), {"bucket 64x4096", "lengths differ", "analytic default"});
  // A single sequence has one length.
  const DispatchTable one(kSpec, kTarget, {winner({0, 12}, one_pass)});
  EXPECT_EQ(one.configs()[one.select(1, 4096, 0).index], one_pass);
}

// Fault: between two winners at one distance the order of the rows decides, and two ranks run different kernels.
TEST(Dispatch, OrderOfWinnersDoesNotMatter) {
  Random random(11);
  std::vector<LayeredWinner> winners = random_winners(random, 10);
  const auto configs = unusual_configs(12);
  winners.push_back(winner({4, 10}, configs[10]));
  winners.push_back(winner({4, 12}, configs[11]));  // {4, 11} lies between both
  winners.push_back(winner({4, 12}, configs[0]));   // two layers may bring the same bucket
  const DispatchTable table(kSpec, kTarget, winners);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = winners.size(); i > 1; --i) std::swap(winners[i - 1], winners[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    const DispatchTable shuffled(kSpec, kTarget, winners);
    ASSERT_EQ(shuffled.digest(), table.digest());
    for_each_bucket([&](Bucket bucket) { ASSERT_EQ(shuffled.configs()[shuffled.at(bucket).index], table.configs()[table.at(bucket).index]) << bucket.text(); });
  }
}

// Fault: the digest misses something, and ranks that run different kernels agree.
TEST(Dispatch, DigestTellsSpecConfigAndCellApart) {
  const auto configs = unusual_configs(2);
  std::set<std::string> digests;
  const auto add = [&](const AttentionSpec& spec, const std::vector<LayeredWinner>& winners) { digests.insert(DispatchTable(spec, kTarget, winners).digest()); };
  add(kSpec, {});
  add(kSpec, {winner({3, 12}, configs[0])});
  add(kSpec, {winner({3, 12}, configs[1])});
  add(kSpec, {winner({4, 12}, configs[0])});
  add(kSpec, {winner({3, 12}, configs[0]), winner({4, 12}, configs[1])});
  add(kSpec, {winner({3, 12}, configs[1]), winner({4, 12}, configs[0])});
  AttentionSpec other = kSpec;
  other.lse = true;  // has the same configs everywhere
  add(other, {});
  other.lse = false;
  other.layout = Layout::hnd;
  add(other, {});
  EXPECT_EQ(digests.size(), 8u);
  for (const auto& digest : digests) EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(DispatchTable(kSpec, kTarget, {}).digest(), DispatchTable(kSpec, kTarget, {}).digest());
}

// Fault: a winner of an older space is loaded although no such kernel can be generated any more, or vanishes without a word.
TEST(Dispatch, AWinnerThatIsNotSupportedIsLeftOutAndNamed) {
  KernelConfig broken = unusual_configs(1)[0];
  broken.set("NUM_WARPS", 5);
  const Bucket bucket{3, 12};
  const DispatchTable table(kSpec, kTarget, {winner(bucket, broken)});
  EXPECT_EQ(table.at(bucket).source, Source::analytic_default);
  EXPECT_EQ(table.configs()[table.at(bucket).index], default_config(kSpec, kTarget, bucket));
  const Support support = supports(kSpec, broken, kTarget);
  ASSERT_FALSE(support);
  testing::expect_mentions(table.explain(bucket), {"the winner of 8x4096 was left out", support.reason, "analytic default"});
  EXPECT_EQ(table.digest(), DispatchTable(kSpec, kTarget, {}).digest());
}

// Fault: a measured split per bucket lets a sequence's bits depend on its neighbours.
TEST(Dispatch, BatchInvariantSpecsIgnoreWinners) {
  AttentionSpec spec = kSpec;
  spec.batch_invariant = true;
  const DispatchTable table(spec, kTarget, {winner({3, 12}, unusual_configs(1)[0])});
  ASSERT_EQ(table.configs().size(), 1u);
  EXPECT_EQ(table.configs()[0], default_config(spec, kTarget, Bucket{0, 4}));
  for_each_bucket([&](Bucket bucket) { EXPECT_EQ(table.at(bucket).source, Source::analytic_default); });
  testing::expect_mentions(table.explain(Bucket{3, 12}), {"bucket 8x4096", "batch-invariant", table.configs()[0].canonical_json()});
  EXPECT_EQ(table.digest(), DispatchTable(spec, kTarget, {}).digest());
}

// Fault: a kernel that a later session found wrong goes on answering, in its bucket, as the nearest, or under another split count; or one of another build's is taken for it.
TEST(Dispatch, AWinnerThatIsBlockedSinceIsLeftOutAndNamed) {
  const auto configs = unusual_configs(2);
  const std::vector<LayeredWinner> winners = {winner({3, 12}, configs[0]), winner({3, 18}, configs[1])};
  KernelConfig other_split = configs[0];
  if (other_split.variant() == 2) other_split.set("NUM_SPLITS", other_split.at("NUM_SPLITS") * 2);
  ASSERT_EQ(shape_of(other_split), shape_of(configs[0]));
  ASSERT_NE(shape_of(configs[1]), shape_of(configs[0]));
  const DispatchTable table(kSpec, kTarget, winners, Blocklist({{other_split, Blocklist::text("wrong result")}}));
  EXPECT_EQ(table.digest(), DispatchTable(kSpec, kTarget, {winners[1]}).digest());
  testing::expect_mentions(table.explain(Bucket{3, 12}), {"bucket 8x4096", "analytic default", "the winner of 8x4096 was left out", "blocked", "wrong result"});
  EXPECT_TRUE(table.wants_winner({3, 12}));
  EXPECT_EQ(DispatchTable(kSpec, kTarget, winners, Blocklist({{configs[0], "wrong result (generator 000000000000)"}})).digest(), DispatchTable(kSpec, kTarget, winners).digest());
}

// Fault: what a tuner cannot change is counted for it, or what it could is not: a bucket that has its winner, though that does not answer where lengths differ.
TEST(Dispatch, ABucketWantsAWinnerUntilItHasOne) {
  const DispatchTable table(kSpec, kTarget, {winner({3, 12}, unusual_configs(1)[0])});
  for_each_bucket([&](Bucket bucket) { EXPECT_EQ(table.wants_winner(bucket), (bucket != Bucket{3, 12})) << bucket.text(); });
  AttentionSpec spec = kSpec;
  spec.batch_invariant = true;
  const DispatchTable invariant(spec, kTarget, {});
  for_each_bucket([&](Bucket bucket) { EXPECT_FALSE(invariant.wants_winner(bucket)) << bucket.text(); });
}

// Fault: prepare() leaves out a bucket that a launch within its maxima falls into, and the launch compiles in a capture.
TEST(Dispatch, ReachableCoversEveryLaunchWithinTheMaxima) {
  Random random(5);
  const auto up_to = [&](int limit) { return 1 + static_cast<int>(random.next() % static_cast<uint64_t>(limit)); };
  for (int round = 0; round < 300; ++round) {
    const int max_batch = up_to(1 << (1 + random.below(21))), max_len = up_to(1 << (1 + random.below(24)));
    const auto list = DispatchTable::reachable(max_batch, max_len);
    const std::set<CallShape> reachable(list.begin(), list.end());
    EXPECT_EQ(reachable.size(), list.size());
    ASSERT_FALSE(list.empty());
    const auto probe = [&](int batch, int len, int64_t total) {
      ASSERT_TRUE(reachable.contains(call_shape(batch, len, total))) << batch << " x " << len << ", total " << total << " within " << max_batch << " x " << max_len;
    };
    for (int i = 0; i < 300; ++i) {
      const int batch = up_to(max_batch), len = random.below(20) == 0 ? 0 : up_to(max_len);
      probe(batch, len, 0);
      probe(batch, len, static_cast<int64_t>(random.next() % (static_cast<uint64_t>(batch) * static_cast<uint64_t>(len) + 1)));
    }
    probe(max_batch, max_len, 0);
    probe(max_batch, max_len, 1);
    probe(max_batch, 1, static_cast<int64_t>(max_batch) * 7);
    // No more than needed: the largest cell is that of the maxima.
    EXPECT_EQ(reachable.rbegin()->bucket, bucket_of(max_batch, max_len, 0));
  }
}

// Fault: explain says another reason than the one that decided, or an unfinished sentence.
TEST(Dispatch, ExplainGivesTheReasonOfEachSource) {
  const auto configs = unusual_configs(2);
  const DispatchTable table(kSpec, kTarget, {winner({3, 12}, configs[0]), winner({3, 18}, configs[1])});
  testing::expect_mentions(table.explain(Bucket{3, 12}), {"bucket 8x4096", configs[0].canonical_json(), "measured for this bucket"});
  testing::expect_mentions(table.explain(Bucket{5, 11}), {"bucket 32x2048", configs[0].canonical_json(), "nearest winner, 8x4096", "2 octaves"});
  testing::expect_mentions(table.explain(Bucket{9, 12}), {"bucket 512x4096", "analytic default", "none of the 2 winners"});
  testing::expect_mentions(DispatchTable(kSpec, kTarget, {}).explain(Bucket{3, 12}), {"bucket 8x4096", "analytic default", "no winner"});
}

LayeredWinner elsewhere(Bucket bucket, const KernelConfig& config) { return {winner(bucket, config), true}; }
LayeredWinner unconfirmed(Bucket bucket, const KernelConfig& config) { return {winner(bucket, config), false, false}; }

// Fault: another device's winner answers beside the device's own, or is not told from it, or the default answers although a near relative was measured.
TEST(Dispatch, AnotherDevicesWinnerAnswersForWantOfItsOwn) {
  const auto configs = unusual_configs(3);
  const DispatchTable table(kSpec, kTarget, {elsewhere({3, 12}, configs[0]), elsewhere({9, 12}, configs[1]), winner({3, 14}, configs[2])});
  for (const auto& [bucket, source, config] : {std::tuple{Bucket{3, 12}, Source::nearest, configs[2]}, {Bucket{3, 14}, Source::tuned, configs[2]}, {Bucket{3, 10}, Source::other_device, configs[0]},
                                               {Bucket{9, 12}, Source::other_device, configs[1]}, {Bucket{3, 11}, Source::other_device, configs[0]}}) {
    EXPECT_EQ(table.at(bucket).source, source) << bucket.text();
    EXPECT_EQ(table.configs()[table.at(bucket).index], config) << bucket.text();
  }
  EXPECT_EQ(table.at(Bucket{14, 12}).source, Source::analytic_default);
  testing::expect_mentions(table.explain(Bucket{9, 12}), {"512x4096", configs[1].canonical_json(), "another device of this class"});
  EXPECT_TRUE(table.wants_winner({9, 12})) << "it is not this device's";
  EXPECT_FALSE(table.wants_winner({3, 14}));
}

// Fault: what an older generator measured counts as much as today's, or as nothing.
TEST(Dispatch, AnUnconfirmedWinnerCountsAsAnOctaveFarther) {
  const auto configs = unusual_configs(2);
  const DispatchTable table(kSpec, kTarget, {unconfirmed({3, 12}, configs[0]), winner({3, 14}, configs[1])});
  EXPECT_EQ(table.configs()[table.at(Bucket{3, 12}).index], configs[0]) << "no confirmed one is as near";
  EXPECT_EQ(table.configs()[table.at(Bucket{3, 13}).index], configs[1]);
  EXPECT_EQ(table.configs()[table.at(Bucket{3, 11}).index], configs[0]);
  testing::expect_mentions(table.explain(Bucket{3, 12}), {"measured for this bucket", "unconfirmed"});
  EXPECT_EQ(table.explain(Bucket{3, 13}).find("unconfirmed"), std::string::npos);
}

// Fault: a bucket whose two best are even has another kernel than all around it; or a better winner is given up; or the order of rows decides.
TEST(Dispatch, EvenWinnersGiveWayToWhatTheBucketsAroundHave) {
  const auto configs = unusual_configs(3);
  const auto with_runner_up = [&](double behind, const KernelConfig& runner_up) {
    Winner made = winner({3, 12}, configs[0]);
    made.median_us = 10;
    made.runner_up = runner_up;
    made.runner_up_us = 10 * behind;
    return made;
  };
  const auto picked = [&](const Winner& own, const std::vector<LayeredWinner>& around) {
    std::vector<LayeredWinner> all = around;
    all.push_back(own);
    const DispatchTable table(kSpec, kTarget, all);
    std::reverse(all.begin(), all.end());
    EXPECT_EQ(DispatchTable(kSpec, kTarget, all).digest(), table.digest());
    EXPECT_EQ(table.at(Bucket{3, 12}).source, Source::tuned);
    if (table.configs()[table.at(Bucket{3, 12}).index] != own.config) testing::expect_mentions(table.explain(Bucket{3, 12}), {"its runner-up, 0.5 % slower"});
    return table.configs()[table.at(Bucket{3, 12}).index];
  };
  const std::vector<LayeredWinner> one = {winner({3, 13}, configs[1])}, split = {winner({3, 13}, configs[1]), winner({2, 12}, configs[0])}, two = {winner({3, 13}, configs[1]), winner({2, 12}, configs[1]), winner({4, 12}, configs[0])};
  EXPECT_EQ(picked(with_runner_up(1.005, configs[1]), one), configs[1]);
  EXPECT_EQ(picked(with_runner_up(1.005, configs[1]), two), configs[1]);
  EXPECT_EQ(picked(with_runner_up(1.005, configs[1]), split), configs[0]) << "as many have the winner";
  EXPECT_EQ(picked(with_runner_up(1.02, configs[1]), two), configs[0]) << "2 % is more than even";
  EXPECT_EQ(picked(with_runner_up(1.005, configs[2]), two), configs[0]) << "nobody around has that runner-up";
  EXPECT_EQ(picked(with_runner_up(1.005, configs[1]), {winner({4, 13}, configs[1])}), configs[0]) << "not one of the four around";
  EXPECT_EQ(picked(with_runner_up(1.005, configs[1]), {elsewhere({3, 13}, configs[1])}), configs[0]) << "another device's";
}

// Fault: a rank that was given a snapshot runs other kernels than the one that made it, or agrees on another digest; equal tables give different bytes.
TEST(Dispatch, ASnapshotIsTheTable) {
  Random random(23);
  for (int round = 0; round < 6; ++round) {
    std::vector<LayeredWinner> winners = random_winners(random, 2 * round);
    for (size_t i = 0; i < winners.size(); i += 3) winners[i].other_device = true;
    const DispatchTable table(kSpec, kTarget, winners);
    const DispatchTable copy = DispatchTable::from_snapshot(kSpec, kTarget, table.snapshot());
    EXPECT_EQ(copy.digest(), table.digest());
    EXPECT_EQ(copy.snapshot(), table.snapshot());
    for_each_bucket([&](Bucket bucket) {
      for (const bool alike : {false, true}) {
        const CallShape call(bucket, alike);
        ASSERT_EQ(copy.at(call).source, table.at(call).source);
        ASSERT_EQ(copy.configs()[copy.at(call).index], table.configs()[table.at(call).index]);
      }
    });
    testing::expect_mentions(copy.explain({{3, 12}, true}), {"snapshot"});
  }
}

// Faults: bytes from outside that crash, or that bring a kernel in which this device has not, or cells beyond the configs.
TEST(Dispatch, ASnapshotIsCheckedAsDataFromOutside) {
  const DispatchTable table(kSpec, kTarget, {winner({3, 12}, unusual_configs(1)[0])});
  const std::string good = table.snapshot();
  const auto refused = [&](const std::string& text, ErrorCode code) { return testing::error_text([&] { DispatchTable::from_snapshot(kSpec, kTarget, text); }, code); };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  for (size_t length = 0; length < good.size(); length += 97) testing::expect_mentions(refused(good.substr(0, length), ErrorCode::invalid_argument), {"snapshot"});
  testing::expect_mentions(refused(changed("\"format\":1", "\"format\":2"), ErrorCode::invalid_argument), {"format is 2"});
  testing::expect_mentions(refused(changed("\"q_heads\":32", "\"q_heads\":64"), ErrorCode::mismatch), {"another spec"});
  testing::expect_mentions(refused(changed("\"NUM_WARPS\":4", "\"NUM_WARPS\":5"), ErrorCode::unsupported), {"NUM_WARPS"});
  testing::expect_mentions(refused(changed("\"NUM_WARPS\":4", "\"NUM_WARPS\":4294967300"), ErrorCode::invalid_argument), {"NUM_WARPS", "4294967300"});
  testing::expect_mentions(refused(changed("[0,2,0,2]", "[99,2,0,2]"), ErrorCode::invalid_argument), {"config 99"});
  testing::expect_mentions(refused(changed("[0,2,0,2]", "[0,9,0,2]"), ErrorCode::invalid_argument), {"source is 9"});
  testing::expect_mentions(refused(changed("[0,2,0,2]", "[-1,2,0,2]"), ErrorCode::invalid_argument), {"config -1"});
  testing::expect_mentions(refused(changed("[0,2,0,2]", "[0,2,0]"), ErrorCode::invalid_argument), {"four numbers"});
  testing::expect_mentions(refused(changed("[0,2,0,2],", ""), ErrorCode::invalid_argument), {"cells"});
  testing::expect_mentions(refused(changed("[0,2,0,2]", "[1,2,0,2]"), ErrorCode::invalid_argument), {"digest"});
  refused(std::string(2 << 20, '['), ErrorCode::invalid_argument);
  refused(std::string(500'000, '['), ErrorCode::invalid_argument);
  AttentionSpec small = kSpec;
  testing::error_text([&] { DispatchTable::from_snapshot(small, Target::by_name("sm_80"), good); }, ErrorCode::unsupported);
}

}  // namespace
}  // namespace pagetune
