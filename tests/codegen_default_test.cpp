#include "codegen/default_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "codegen/launch_plan.hpp"
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

// Catches an answer that is left over from an earlier call: one object, asked of every call in a mixed order and twice, against a new one for each.
TEST(DefaultConfig, ManyCallsGetWhatEachGetsAlone) {
  for (const char* name : {"sm_80", "sm_90a", "sm_120", "cpu"}) {
    const Target target = Target::by_name(name);
    for (const bool invariant : {false, true}) {
      AttentionSpec spec = decode_spec(28, 4, 128);
      spec.batch_invariant = invariant;
      DefaultConfigs defaults(spec, target);
      EXPECT_EQ(defaults.shape(), default_shape(spec, target));
      constexpr int kCalls = 2 * Bucket::kCells;
      for (int i = 0; i < 2 * kCalls; ++i) {
        const int turn = i * 101 % kCalls, cell = turn / 2;  // 101 shares no factor with the number of calls
        const CallShape call({cell / Bucket::kLenCells, Bucket::kMinLenLog2 + cell % Bucket::kLenCells}, turn % 2 == 1);
        ASSERT_EQ(defaults.at(call), default_config(spec, target, call)) << name << " " << call.bucket.text();
      }
      EXPECT_EQ(defaults.shape(), default_shape(spec, target));
    }
  }
}

// CTAs of a launch.
int64_t ctas_of(const KernelConfig& config, const AttentionSpec& spec, const Target& target, Bucket bucket) {
  if (config.even_share()) return LaunchPlan(config, target).num_ctas;
  return int64_t{bucket.batch()} * spec.kv_heads * ((spec.rows() + 15) / 16) * config.num_splits();
}

// Catches a default that leaves the device empty although there is work for it, at every batch and length.
TEST(DefaultConfig, FillsTheDevice) {
  for (const char* name : {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    const Target target = Target::by_name(name);
    for (const auto& [q_heads, kv_heads] : {std::pair{32, 8}, {8, 1}, {64, 2}, {64, 64}}) {
      const AttentionSpec spec = decode_spec(q_heads, kv_heads, 128);
      for (int b = 0; b < Bucket::kBatchCells; ++b) {
        for (int l = 0; l < Bucket::kLenCells; ++l) {
          const Bucket bucket{b, Bucket::kMinLenLog2 + l};
          const KernelConfig config = default_config(spec, target, bucket);
          const int64_t pairs = int64_t{bucket.batch()} * spec.kv_heads * ((spec.rows() + 15) / 16), pieces = pairs * (bucket.len() / 512), quarter = target.processors / 4;
          if (pieces < quarter) continue;  // 512 tokens keep a CTA busy
          if (config.variant() == 2 && config.at("MERGE") == 2 && config.num_splits() == 16) continue;  // the widest cluster there is: few heads
          ASSERT_GE(ctas_of(config, spec, target, bucket), pieces >= 16 * quarter ? target.processors : quarter) << name << " " << bucket.text() << " " << config.canonical_json();
        }
      }
    }
  }
}

// Catches clusters where the device has none, where they wait for one another's multiprocessor, or where the even share is faster.
TEST(DefaultConfig, ShortContextsOfSmallBatchesMeetInClusters) {
  const AttentionSpec spec = decode_spec(32, 8, 128);
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    if (target.backend == Backend::cpu) continue;
    const bool has_clusters = target.compute_capability >= 90 && target.compute_capability < 120;
    for (int b = 0; b < Bucket::kBatchCells; ++b) {
      for (int l = 0; l < Bucket::kLenCells; ++l) {
        const Bucket bucket{b, Bucket::kMinLenLog2 + l};
        const KernelConfig config = default_config(spec, target, bucket);
        const bool clusters = config.variant() == 2 && config.at("MERGE") == 2;
        if (clusters) {
          ASSERT_TRUE(has_clusters) << name << " " << bucket.text();
          ASSERT_LE(ctas_of(config, spec, target, bucket), target.processors) << name << " " << bucket.text();
          ASSERT_LE(config.num_splits(), 16) << "the largest size of a cluster";
          ASSERT_LE(bucket.len(), 8192);
        } else if (config.variant() == 2) {
          ASSERT_TRUE(config.even_share()) << name << " " << bucket.text();
          ASSERT_EQ(config.at("MERGE"), 1);
        }
        if (has_clusters && bucket.batch() == 1 && bucket.len() == 1024) {
          ASSERT_TRUE(clusters) << name;
        }
        if (bucket.len() >= 16384 && bucket.batch() <= 1024) {
          ASSERT_TRUE(config.even_share()) << name << " " << bucket.text();
        }
      }
    }
  }
  // A single tile is not worth a merge.
  EXPECT_EQ(default_config(spec, Target::by_name("sm_89"), Bucket{0, 4}).variant(), 1);
}

// Catches a ring that makes the only CTA of a multiprocessor wait for its own tiles, or one that keeps a second CTA out where there are many.
TEST(DefaultConfig, OnePassHasARingOfItsContextWhereCtasAreFew) {
  const AttentionSpec spec = decode_spec(8, 1, 128);
  const Target target = Target::by_name("sm_90a");
  int few = 0, many = 0;
  for (int b = 0; b < Bucket::kBatchCells; ++b) {
    for (int l = 0; l <= 4; ++l) {  // up to 256 tokens
      const Bucket bucket{b, Bucket::kMinLenLog2 + l};
      const KernelConfig config = default_config(spec, target, bucket);
      if (config.variant() != 1) continue;
      const int ring_tokens = config.at("NUM_STAGES") * config.at("TILE_KV");
      if (bucket.batch() <= target.processors) {
        ASSERT_GE(ring_tokens, bucket.len()) << bucket.text() << " " << config.canonical_json();
        ++few;
      } else {
        ASSERT_LE(ring_tokens, 128) << bucket.text() << " " << config.canonical_json();
        ++many;
      }
    }
  }
  EXPECT_GT(few, 10);
  EXPECT_GT(many, 5);
}

// Catches a default for batches whose lengths differ that comes in waves: such a batch has several times the sequences that its bucket says.
TEST(DefaultConfig, ClustersOfRaggedBatchesLeaveRoom) {
  const Target target = Target::by_name("sm_90a");
  int clusters = 0, shares = 0;
  for (const auto& [q_heads, kv_heads, dim] : {std::tuple{32, 8, 128}, {8, 1, 128}, {28, 4, 128}, {64, 8, 64}, {8, 4, 256}}) {
    const AttentionSpec spec = decode_spec(q_heads, kv_heads, dim);
    for (int b = 0; b < Bucket::kBatchCells; ++b) {
      for (int l = 0; l < Bucket::kLenCells; ++l) {
        const Bucket bucket{b, Bucket::kMinLenLog2 + l};
        const KernelConfig config = default_config(spec, target, {bucket, false});
        const bool cluster = config.at("MERGE") == 2;
        const Bucket sequences{cluster ? std::min(b + 2, Bucket::kBatchCells - 1) : b, bucket.len_log2};  // lengths differ: four times as many
        ASSERT_EQ(ConfigSpace::builtin().refusal(spec, config, target, sequences), "") << bucket.text();
        if (cluster) {
          ASSERT_LE(ctas_of(config, spec, target, sequences), target.processors) << bucket.text() << " " << config.canonical_json();
          ++clusters;
        }
        shares += config.even_share() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(clusters, 10);
  EXPECT_GT(shares, 300);
}

// Catches one CTA a multiprocessor where many short pairs end one after the other (ragged batches take 10 to 20 % longer) or gigabytes are read (2 %), two where few pairs are then cut in
// more parts, where long ones are steadier alone, or where two rings find no room together; and a ring of more than 128 KiB for much work of one length (1 %).
TEST(DefaultConfig, ManyShortPairsAndGigabytesTakeTwoCtasAMultiprocessor) {
  const Target target = Target::by_name("sm_90a");
  struct Case {
    AttentionSpec spec;
    Bucket bucket;
    bool alike;
    int quarters;
  };
  const AttentionSpec few = decode_spec(8, 1, 128), some = decode_spec(28, 4, 128), narrow = decode_spec(64, 8, 64), single = decode_spec(16, 16, 128),
                      wide = decode_spec(8, 4, 256), llama = decode_spec(32, 8, 128);
  for (const auto& [spec, bucket, alike, quarters] :
       {Case{some, {6, 10}, true, 8}, Case{some, {6, 12}, true, 8}, Case{some, {6, 13}, true, 8}, Case{some, {3, 15}, true, 4}, Case{llama, {4, 13}, true, 4}, Case{llama, {5, 13}, true, 8}, Case{llama, {3, 15}, true, 8}, Case{llama, {0, 17}, true, 4}, Case{some, {0, 19}, true, 4}, Case{wide, {6, 13}, true, 4}, Case{wide, {6, 10}, true, 8}, Case{wide, {8, 10}, true, 4}, Case{narrow, {6, 13}, true, 4}, Case{narrow, {8, 10}, true, 4}, Case{some, {6, 13}, false, 8}, Case{some, {4, 10}, false, 8}, Case{some, {3, 13}, true, 4},
        Case{some, {3, 13}, false, 4}, Case{few, {5, 10}, false, 4}, Case{few, {6, 10}, false, 8}, Case{single, {2, 10}, false, 4}, Case{few, {8, 10}, true, 8}, Case{narrow, {6, 10}, true, 8}, Case{narrow, {6, 12}, true, 4}, Case{narrow, {6, 12}, false, 8}, Case{single, {3, 17}, false, 4},
        Case{single, {6, 17}, false, 8}}) {
    const KernelConfig config = default_config(spec, target, {bucket, alike});
    EXPECT_EQ(config.get("CTA_QUARTERS", 0), quarters) << spec.kv_heads << " KV heads, " << bucket.text() << (alike ? "" : " unlike") << ": " << config.canonical_json();
    if (quarters == 8) {
      EXPECT_LE(2 * ConfigSpace::builtin().derived("SHARED_BYTES", spec, config, target), target.shared_per_block + 1024) << config.canonical_json();
    }
  }
  for (const auto& [spec, bucket, alike, bytes] : {std::tuple{llama, Bucket{2, 13}, true, 192}, {llama, {3, 13}, true, 128}, {llama, {3, 13}, false, 192}, {some, {0, 17}, true, 128}, {narrow, {6, 12}, true, 128}, {wide, {6, 12}, true, 192}}) {
    const KernelConfig config = default_config(spec, target, {bucket, alike});
    EXPECT_EQ(ConfigSpace::builtin().derived("RING_BYTES", spec, config, target), bytes * 1024) << spec.kv_heads << " KV heads, " << bucket.text() << (alike ? "" : " unlike") << ": " << config.canonical_json();
  }
  AttentionSpec windowed = some;
  windowed.window = true;
  EXPECT_EQ(default_config(windowed, target, Bucket{3, 15}).get("CTA_QUARTERS", 0), 8) << "windows end pairs sooner than the lengths say";
  windowed.headwise = true;
  const KernelConfig mixed = default_config(windowed, target, Bucket{3, 15});
  EXPECT_EQ(mixed.get("CTA_QUARTERS", 0), 4) << "full heads beside windowed ones are long";
  EXPECT_EQ(default_config(windowed, target, Bucket{6, 15}).get("CTA_QUARTERS", 0), 4) << "what the lengths say is not what is read";
  EXPECT_LE(ConfigSpace::builtin().derived("RING_BYTES", windowed, mixed, target), 128 * 1024) << "windows beside full heads end many pairs";
}

// Catches many query rows of one KV head that read its keys once for each 16 of them, and warpgroups where they lose: few rows, few keys, one sequence, other architectures.
TEST(DefaultConfig, ManyRowsTakeWarpgroupsWhereKeysAreMany) {
  struct Case {
    AttentionSpec spec;
    Bucket bucket;
    const char* arch;
    bool wide;
  };
  AttentionSpec drafts = decode_spec(32, 4, 128);
  drafts.q_len = 8;
  for (const auto& [spec, bucket, arch, wide] :
       {Case{decode_spec(64, 1, 128), {6, 12}, "sm_90a", true}, Case{decode_spec(64, 1, 128), {3, 13}, "sm_90a", false}, Case{decode_spec(128, 1, 128), {3, 13}, "sm_90a", true},
        Case{decode_spec(192, 4, 128), {0, 15}, "sm_90a", false}, Case{decode_spec(32, 1, 128), {6, 12}, "sm_90a", false}, Case{drafts, {6, 12}, "sm_90a", true}, Case{drafts, {0, 10}, "sm_90a", false},
        Case{decode_spec(64, 1, 128), {6, 12}, "sm_90", false}, Case{decode_spec(64, 1, 128), {6, 12}, "sm_100a", false}, Case{decode_spec(64, 1, 80), {6, 12}, "sm_90a", false},
        Case{decode_spec(64, 1, 128, 7), {6, 12}, "sm_90a", false}}) {
    const Target target = Target::by_name(arch);
    const KernelConfig config = default_config(spec, target, bucket);
    EXPECT_EQ(ConfigSpace::builtin().derived("WARPGROUPS", spec, config, target) > 0, wide) << canonical_json(spec) << " " << bucket.text() << " " << arch << ": " << config.canonical_json();
  }
}

// Catches a group whose row tiles are not counted as CTAs: 32 query heads to a KV head are two.
TEST(DefaultConfig, CountsRowTiles) {
  const Target target = Target::by_name("sm_90a");
  EXPECT_EQ(default_config(decode_spec(64, 2, 128), target, Bucket{0, 10}).num_splits(), default_config(decode_spec(64, 4, 128), target, Bucket{0, 10}).num_splits());
  EXPECT_EQ(default_config(decode_spec(64, 2, 128), target, Bucket{3, 10}), default_config(decode_spec(64, 4, 128), target, Bucket{3, 10}));
}

// Catches a CPU default that leaves threads idle.
TEST(DefaultConfig, CpuSplitsUntilThreadsHaveTwoPieces) {
  Target target = Target::by_name("cpu");
  target.processors = 16;
  const AttentionSpec spec = decode_spec(32, 8, 128);
  EXPECT_EQ(default_config(spec, target, Bucket{0, 12}).num_splits(), 4);
  EXPECT_EQ(default_config(spec, target, Bucket{1, 12}).num_splits(), 2);
  EXPECT_EQ(default_config(spec, target, Bucket{2, 12}).variant(), 1);
  EXPECT_EQ(default_config(spec, target, Bucket{0, 4}).variant(), 1);  // one tile
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
    const KernelConfig first = default_config(spec, target, Bucket{0, 4});
    EXPECT_EQ(first.variant(), 2);
    EXPECT_EQ(first.num_splits(), 8);
    EXPECT_FALSE(first.even_share());
    if (target.backend == Backend::cuda) {
      EXPECT_EQ(first.at("MERGE"), 1) << "no target lacks it, and it needs no second kernel";
    }
    EXPECT_TRUE(supports(spec, first, target));
    for (int b = 0; b < Bucket::kBatchCells; ++b) EXPECT_EQ(default_config(spec, target, Bucket{b, 4 + b}), first);
  }
}

// Catches an unsupported spec that gets a config all the same, and shapes that do not follow shared memory, the architecture or the page.
TEST(DefaultConfig, ShapeFollowsTheTarget) {
  AttentionSpec mixed;
  mixed.kv_dtype = DType::fp8_e4m3;
  testing::error_text([&] { default_shape(mixed, Target::by_name("sm_90a")); }, ErrorCode::unsupported);
  testing::error_text([&] { default_config(mixed, Target::by_name("sm_90a"), Bucket{0, 10}); }, ErrorCode::unsupported);
  const auto bytes_in_flight = [](const KernelConfig& config) {
    const int units = config.at("LOADER") == 2 ? config.at("NUM_STAGES") : config.at("NUM_STAGES") * config.at("NUM_WARPS");
    return units * config.at("TILE_KV");
  };
  const auto shape = [](int dim, const char* target, int page = 16) { return default_shape(decode_spec(32, 8, dim, page), Target::by_name(target)); };
  EXPECT_EQ(shape(128, "sm_90a").at("LOADER"), 2);
  EXPECT_EQ(shape(128, "sm_90a", 7).at("LOADER"), 0) << "boxes do not tile pages of 7";
  for (const char* target : {"sm_80", "sm_86", "sm_89"}) EXPECT_EQ(shape(128, target).at("LOADER"), 0) << target;
  for (const int dim : {64, 128, 256}) EXPECT_LE(bytes_in_flight(shape(dim, "sm_89", 7)), bytes_in_flight(shape(dim, "sm_80", 7))) << dim;
  EXPECT_LT(bytes_in_flight(shape(256, "sm_89")), bytes_in_flight(shape(128, "sm_80")));
  EXPECT_EQ(shape(256, "sm_90a").at("TILE_KV"), 16) << "32 tokens of 256 dims outgrow the registers";
}

}  // namespace
}  // namespace pagetune
