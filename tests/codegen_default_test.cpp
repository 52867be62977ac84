#include "codegen/default_config.hpp"

#include <gtest/gtest.h>

#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::decode_spec;

// Catches a default that the space refuses: the fallback of every untuned call must exist for every supported spec and target.
TEST(DefaultConfig, IsAdmittedEverywhere) {
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    for (int dim = 8; dim <= 256; dim += 8) {
      for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 71}) {
        for (int page : {1, 7, 16, 64, 528}) {
          const AttentionSpec spec = decode_spec(group, 1, dim, page);
          const Support shape = supports(spec, default_shape(spec, target), target);
          ASSERT_TRUE(shape) << name << ": " << shape.reason;
        }
        for (Bucket bucket : {Bucket{0, 4}, Bucket{2, 10}, Bucket{16, 22}}) {
          const AttentionSpec spec = decode_spec(2 * group, 2, dim);
          const KernelConfig config = default_config(spec, target, bucket);
          ASSERT_EQ(ConfigSpace::builtin().refusal(spec, config, target, bucket), "") << name;
        }
      }
    }
  }
}

// Catches a bucket whose default breaks a bucket condition: walks the whole grid.
TEST(DefaultConfig, IsAdmittedInEveryBucket) {
  for (const char* name : {"sm_87", "sm_90a", "sm_120", "cpu"}) {
    const Target target = Target::by_name(name);
    for (int kv_heads : {1, 8, 64}) {
      const AttentionSpec spec = decode_spec(kv_heads * 4, kv_heads, 128);
      for (int b = 0; b < Bucket::kBatchCells; ++b) {
        for (int l = 0; l < Bucket::kLenCells; ++l) {
          const Bucket bucket{b, Bucket::kMinLenLog2 + l};
          ASSERT_EQ(ConfigSpace::builtin().refusal(spec, default_config(spec, target, bucket), target, bucket), "") << name << " " << bucket.text();
        }
      }
    }
  }
}

// Catches a default that leaves the device empty at batch 1, splits a batch that fills it, or splits what a merge costs more than it saves.
// H200: 132 processors, one CTA of a split each.
TEST(DefaultConfig, SplitsUntilTheDeviceIsFull) {
  const Target target = Target::by_name("sm_90a");
  const AttentionSpec spec = decode_spec(32, 8, 128);
  auto splits = [&](int batch_log2, int len_log2) {
    const KernelConfig config = default_config(spec, target, {batch_log2, len_log2});
    EXPECT_EQ(config.variant(), config.num_splits() == 1 ? 1 : 2);
    return config.num_splits();
  };
  EXPECT_EQ(splits(0, 17), 16);  // 8 CTAs: 16.5 or fewer
  EXPECT_EQ(splits(0, 10), 8);   // 1024 tokens are 8 tiles of 128
  EXPECT_EQ(splits(0, 7), 1);    // one tile
  EXPECT_EQ(splits(3, 17), 2);   // 64 CTAs: 2.06 or fewer
  EXPECT_EQ(splits(3, 10), 1);   // a split would take 256 KiB off a CTA: less than a merge costs
  EXPECT_EQ(splits(4, 17), 1);   // 128 CTAs
  EXPECT_EQ(splits(16, 17), 1);
  // A group of 32 has two CTAs for each KV head.
  EXPECT_EQ(default_config(decode_spec(64, 2, 128), target, {3, 17}).num_splits(), 4);  // 8 * 2 * 2 CTAs: 4.1 or fewer
}

// Catches a small batch whose CTAs have a multiprocessor each and too few warps to keep its memory busy, and the reverse.
TEST(DefaultConfig, ACtaAloneOnItsProcessorTakesMoreWarps) {
  const Target target = Target::by_name("sm_90a");
  EXPECT_EQ(default_config(decode_spec(32, 8, 128), target, {3, 10}).at("NUM_WARPS"), 8);  // 64 CTAs in one pass
  EXPECT_EQ(default_config(decode_spec(32, 8, 128), target, {0, 13}).at("NUM_WARPS"), 8);  // 128 of splits
  EXPECT_EQ(default_config(decode_spec(32, 8, 128), target, {6, 13}).at("NUM_WARPS"), 4);  // 512 in one pass
}

// Catches a CPU default that leaves threads idle.
TEST(DefaultConfig, CpuSplitsUntilThreadsHaveTwoPieces) {
  Target target = Target::by_name("cpu");
  target.processors = 16;
  const AttentionSpec spec = decode_spec(32, 8, 128);
  EXPECT_EQ(default_config(spec, target, {0, 12}).num_splits(), 4);
  EXPECT_EQ(default_config(spec, target, {1, 12}).num_splits(), 2);
  EXPECT_EQ(default_config(spec, target, {2, 12}).variant(), 1);
  EXPECT_EQ(default_config(spec, target, {0, 4}).variant(), 1);  // one tile
  for (int bits : {128, 256, 512, 1024}) {
    target.vector_bits = bits;
    EXPECT_EQ(default_shape(spec, target).at("VECTOR_BITS"), std::min(bits, 512));
  }
  EXPECT_EQ(default_shape(decode_spec(8, 8, 64), target).at("TILE_KV"), 64);
  EXPECT_EQ(default_shape(decode_spec(8, 8, 256, 16, DType::fp32), target).at("TILE_KV"), 16);
}

// Catches a batch-invariant kernel whose split follows the batch.
TEST(DefaultConfig, BatchInvariantIgnoresTheBucket) {
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    AttentionSpec spec;
    spec.batch_invariant = true;
    const KernelConfig first = default_config(spec, target, {0, 4});
    EXPECT_EQ(first.variant(), 2);
    EXPECT_EQ(first.num_splits(), 8);
    EXPECT_TRUE(supports(spec, first, target));
    for (int b = 0; b < Bucket::kBatchCells; ++b) EXPECT_EQ(default_config(spec, target, {b, 4 + b}), first);
  }
}

// Catches an unsupported spec that gets a config all the same, and shapes that do not follow shared memory.
TEST(DefaultConfig, ShapeFollowsTheTarget) {
  AttentionSpec windowed;
  windowed.window = true;
  testing::error_text([&] { default_shape(windowed, Target::by_name("sm_90a")); }, ErrorCode::unsupported);
  auto shape = [](int dim, const char* target) {
    const KernelConfig config = default_shape(decode_spec(32, 8, dim), Target::by_name(target));
    return std::make_pair(config.at("NUM_WARPS"), config.at("NUM_STAGES"));
  };
  EXPECT_EQ(shape(128, "sm_90a"), std::make_pair(4, 3));
  EXPECT_EQ(shape(256, "sm_90a"), std::make_pair(4, 2));
  EXPECT_EQ(shape(128, "sm_89"), std::make_pair(4, 2));  // 104,640 bytes for three stages, 100,352 allowed
  EXPECT_EQ(shape(256, "sm_89"), std::make_pair(2, 2));
}

}  // namespace
}  // namespace pagetune
