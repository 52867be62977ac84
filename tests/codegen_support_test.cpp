#include "codegen/support.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::decode_spec;
using testing::error_text;
using testing::expect_mentions;

const Target& sm_90a() {
  static const Target target = Target::by_name("sm_90a");
  return target;
}
const Target& cpu() {
  static const Target target = Target::by_name("cpu");
  return target;
}

// Catches a refusal of what the milestone promises.
TEST(Support, AcceptsTheWholeDomain) {
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    for (int dim = 8; dim <= 256; dim += 8) EXPECT_TRUE(supports(decode_spec(32, 8, dim), target)) << name << " " << dim;
    for (int page : {1, 7, 16, 528, 65536}) EXPECT_TRUE(supports(decode_spec(32, 8, 128, page), target)) << page;
    for (int group : {1, 3, 16, 71, 1024}) EXPECT_TRUE(supports(decode_spec(2 * group, 2, 128), target)) << group;
    EXPECT_TRUE(supports(decode_spec(8, 8, 64, 16, DType::fp16), target));
    EXPECT_EQ(supports(decode_spec(8, 8, 64, 16, DType::fp32), target).ok, target.backend == Backend::cpu);
    AttentionSpec spec;
    spec.layout = Layout::hnd;
    spec.lse = spec.batch_invariant = spec.checked = true;
    EXPECT_TRUE(supports(spec, target));
    EXPECT_TRUE(supports(spec, target).reason.empty());
    EXPECT_NO_THROW(require_support(spec, target));
  }
}

struct Refusal {
  std::function<void(AttentionSpec&)> change;
  std::vector<std::string> mentions;
};

void expect_refused(const std::vector<Refusal>& refusals, const Target& target) {
  for (const Refusal& refusal : refusals) {
    AttentionSpec spec;
    refusal.change(spec);
    const Support support = supports(spec, target);
    EXPECT_FALSE(support);
    expect_mentions(support.reason, refusal.mentions);
    EXPECT_EQ(error_text([&] { require_support(spec, target); }, ErrorCode::unsupported), support.reason);
    EXPECT_EQ(supports(spec, KernelConfig(), target).reason, support.reason);
  }
}

// Catches a type that the CUDA kernels would read as another.
TEST(Support, RefusesWhatCudaLacks) {
  const std::vector<Refusal> refusals = {
      {[](auto& s) { s.out_dtype = DType::fp32; }, {"out_dtype fp32", "bf16 to bf16", "bf16 to fp16"}},
      {[](auto& s) { s.q_dtype = s.kv_dtype = DType::fp32; }, {"q_dtype fp32", "bf16 to bf16"}},
  };
  expect_refused(refusals, sm_90a());
}

// Catches a feature that is still refused, alone or beside all others.
TEST(Support, AcceptsEveryFeature) {
  const std::vector<std::function<void(AttentionSpec&)>> features = {
      [](auto& s) { s.window = true; },
      [](auto& s) { s.window = s.sink_tokens = true; },
      [](auto& s) { s.chunk = true; },
      [](auto& s) { s.sinks = true; },
      [](auto& s) { s.soft_cap = true; },
      [](auto& s) { s.alibi = true; },
      [](auto& s) { s.block_sparse = true; },
      [](auto& s) { s.headwise = true; },
      [](auto& s) { s.headwise = true, s.address_map = AddressMap::flat; },
      [](auto& s) { s.mask = MaskKind::tree; },
      [](auto& s) { s.mask = MaskKind::offset; },
      [](auto& s) { s.q_len = 16; },
      [](auto& s) { s.head_dim_v = 64; },
      [](auto& s) { s.out_dtype = DType::fp16; },
  };
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    AttentionSpec all;
    for (const auto& feature : features) {
      AttentionSpec spec;
      feature(spec);
      EXPECT_TRUE(supports(spec, target)) << name << ": " << supports(spec, target).reason;
      feature(all);
    }
    EXPECT_TRUE(supports(all, target)) << name << ": " << supports(all, target).reason;
  }
  AttentionSpec wide;
  wide.out_dtype = DType::fp32;
  EXPECT_TRUE(supports(wide, cpu()));
}

// Catches a feature that would be ignored silently, and a reason that does not name field, value and what is allowed.
TEST(Support, RefusesEverythingElseInWords) {
  const std::vector<Refusal> refusals = {
      {[](auto& s) { s.kind = Kind::prefill; }, {"prefill", "decode_cuda", "decode_cpu"}},
      {[](auto& s) { s.kind = Kind::page_copy; }, {"page_copy", "decode_cuda"}},
      {[](auto& s) { s.address_map = AddressMap::flat; }, {"address_map flat", "must be slot"}},
      {[](auto& s) { s.head_dim_v = 4; }, {"head_dim_v 4", "8 to 256 in steps of 8"}},
      {[](auto& s) { s.head_dim_v = 264; }, {"head_dim_v 264", "8 to 256"}},
      {[](auto& s) { s.q_len = 0; }, {"q_len 0", "1 to 16"}},
      {[](auto& s) { s.q_len = 17; }, {"q_len 17", "1 to 16"}},
      {[](auto& s) { s.out_dtype = DType::int8; }, {"out_dtype int8", "bf16 to bf16"}},
      {[](auto& s) { s.kv_scale = ScaleGranularity::head; }, {"kv_scale head", "must be none"}},
      {[](auto& s) { s.kv_dtype = DType::fp8_e4m3; }, {"kv_dtype fp8_e4m3 with q_dtype bf16", "equal q_dtype"}},
      {[](auto& s) { s.kv_dtype = DType::fp16; }, {"kv_dtype fp16", "equal q_dtype"}},
      {[](auto& s) { s.q_dtype = s.kv_dtype = s.out_dtype = DType::int8; }, {"int8", "bf16 to bf16"}},
      {[](auto& s) { s.head_dim_k = s.head_dim_v = 100; }, {"head_dim_k 100", "8 to 256 in steps of 8"}},
      {[](auto& s) { s.head_dim_k = s.head_dim_v = 264; }, {"head_dim_k 264", "8 to 256"}},
      {[](auto& s) { s.head_dim_k = s.head_dim_v = 0; }, {"head_dim_k 0", "8 to 256"}},
      {[](auto& s) { s.head_dim_k = s.head_dim_v = -8; }, {"head_dim_k -8", "8 to 256"}},
      {[](auto& s) { s.page_size = 0; }, {"page_size 0", "1 to 65536"}},
      {[](auto& s) { s.page_size = 65537; }, {"page_size 65537", "1 to 65536"}},
      {[](auto& s) { s.kv_heads = 0; }, {"kv_heads is 0", "at least 1"}},
      {[](auto& s) { s.kv_heads = -4; }, {"kv_heads is -4", "at least 1"}},
      {[](auto& s) { s.q_heads = 30; }, {"q_heads is 30", "kv_heads 8", "multiple"}},
      {[](auto& s) { s.q_heads = 0; }, {"q_heads is 0", "multiple"}},
      {[](auto& s) { s.q_heads = 8 * 1025; }, {"group size 1025", "1 to 1024"}},
      {[](auto& s) { s.q_heads = s.kv_heads = 1025; }, {"kv_heads 1025", "1 to 1024"}},
      {[](auto& s) { s.layout = static_cast<Layout>(9); }, {"layout", "nhd, hnd"}},
      {[](auto& s) { s.kind = static_cast<Kind>(9); }, {"invalid", "decode_cuda"}},
  };
  for (const Target& target : {sm_90a(), cpu()}) expect_refused(refusals, target);
  expect_mentions(supports(decode_spec(8, 8, 64, 16, DType::fp32), sm_90a()).reason, {"q_dtype fp32", "decode on cuda", "bf16 to bf16", "fp16 to fp16"});
}

// Catches a device that is too old being given code that it cannot run.
TEST(Support, RefusesTargets) {
  Target old = sm_90a();
  old.arch = "sm_75";
  old.compute_capability = 75;
  expect_mentions(supports(AttentionSpec{}, old).reason, {"sm_75", "75", "80"});
  Target narrow = cpu();
  narrow.vector_bits = 64;
  expect_mentions(supports(AttentionSpec{}, narrow).reason, {"64 bits", "128"});
}

// Catches a stored config of another version of the space being launched.
TEST(Support, RefusesConfigsOutsideTheSpace) {
  const AttentionSpec spec;
  const KernelConfig good = default_shape(spec, sm_90a());
  EXPECT_TRUE(supports(spec, good, sm_90a()));
  auto refused = [&](const std::string& name, int value) {
    KernelConfig config = good;
    config.set(name, value);
    return supports(spec, config, sm_90a()).reason;
  };
  expect_mentions(refused("UNROLL", 2), {"UNROLL = 2", "NUM_WARPS"});
  expect_mentions(refused("NUM_WARPS", 5), {"NUM_WARPS = 5", "1, 2, 3, 4, 6, 8"});
  expect_mentions(refused("NUM_SPLITS", 2), {"V1 neither splits nor merges"});
  expect_mentions(refused("CTA_QUARTERS", 4), {"V1 neither splits nor merges"});
  expect_mentions(refused("MERGE", 1), {"V1 neither splits nor merges"});
  expect_mentions(refused("VARIANT", 2), {"in 2 or more, or shares all tiles evenly"});
  expect_mentions(supports(spec, KernelConfig({{"VARIANT", 1}}), sm_90a()).reason, {"lacks", "CTA_"});
  KernelConfig large({{"VARIANT", 1}, {"NUM_SPLITS", 1}, {"CTA_QUARTERS", 0}, {"MERGE", 0}, {"LOADER", 0}, {"NUM_WARPS", 8}, {"TILE_KV", 32}, {"NUM_STAGES", 6}});
  expect_mentions(supports(spec, large, sm_90a()).reason, {"shared memory"});
  EXPECT_FALSE(supports(spec, good, cpu()));  // a CUDA config on the CPU
}

}  // namespace
}  // namespace pagetune
