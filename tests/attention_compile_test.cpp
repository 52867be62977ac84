// Kernels of every GPU architecture, compiled without a GPU: they compile, fit, do not spill, and take the shared memory that the space says.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "attention_support.hpp"
#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/device.hpp"
#include "runtime/parallel.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

const std::vector<int> kHeadDims = {64, 80, 96, 112, 120, 128, 160, 192, 256};
const std::vector<int> kGroups = {1, 4, 7, 8, 16, 71};
const std::vector<int> kPages = {16, 64, 7};
constexpr const char* kArchs[] = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};
constexpr int kTolerableLocalBytes = 256;  // of a kernel that no default chooses
// ptxas 13.0 gives every sm_120 kernel with tensor maps a frame of 8 bytes, without a spill.
constexpr int kFrameOfTensorMaps = 8;

struct Combination {
  Target target;
  AttentionSpec spec;
  KernelConfig config;
  bool is_default = true;
};

AttentionSpec spec_of(int group, int head_dim, int page_size) {
  AttentionSpec spec;
  spec.kv_heads = 2;
  spec.q_heads = 2 * group;
  spec.head_dim_k = spec.head_dim_v = head_dim;
  spec.page_size = page_size;
  return spec;
}

// A default of each kind in turn: one pass, short contexts, long ones, the batch-invariant partition.
KernelConfig default_in_turn(AttentionSpec spec, const Target& target, size_t turn) {
  spec.batch_invariant = turn % 4 == 3;
  return turn % 4 == 0 ? default_shape(spec, target) : default_config(spec, target, turn % 4 == 1 ? Bucket{0, 10} : Bucket{6, 13});
}

// Every (architecture, head dim, page) in two defaults, every (head dim, group), every (group, page): the rest is rotated through.
std::vector<Combination> covering_set() {
  std::vector<Combination> result;
  size_t rotation = 0;
  for (const char* arch : kArchs) {
    const Target target = Target::by_name(arch);
    for (size_t d = 0; d < kHeadDims.size(); ++d) {
      const int group = kGroups[(d + rotation) % kGroups.size()];
      for (const size_t half : {size_t{1}, size_t{2}}) {
        AttentionSpec spec = spec_of(group, kHeadDims[d], kPages[(d / kPages.size() + rotation + half) % kPages.size()]);
        if (d % 4 == 3) spec.q_dtype = spec.kv_dtype = spec.out_dtype = DType::fp16;
        spec.lse = d % 2 == 0;
        spec.checked = d % 5 == 4;
        result.push_back({target, spec, default_in_turn(spec, target, d + rotation + 2 * half)});
      }
    }
    ++rotation;
  }
  return result;
}

std::vector<AttentionSpec> feature_specs() {
  std::vector<AttentionSpec> specs;
  const auto add = [&](int group, int head_dim, const std::function<void(AttentionSpec&)>& change) {
    specs.push_back(spec_of(group, head_dim, 16));
    specs.back().lse = true;
    change(specs.back());
  };
  add(4, 128, [](AttentionSpec& s) { s.window = s.sink_tokens = s.sinks = s.headwise = true; });
  add(4, 128, [](AttentionSpec& s) { s.mask = MaskKind::tree, s.q_len = 4; });
  add(8, 192, [](AttentionSpec& s) { s.head_dim_v = 128; });
  add(16, 128, [](AttentionSpec&) {});
  add(8, 128, [](AttentionSpec& s) { s.mask = MaskKind::tree, s.q_len = 8, s.window = true; });
  add(6, 64, [](AttentionSpec& s) { s.block_sparse = s.alibi = s.soft_cap = true; });
  return specs;
}

Compiler* compiler() {
  try {
    return &compiler_for(Target::by_name("sm_90a"));
  } catch (const Error& error) {
    ADD_FAILURE() << error.what() << "\nIf this machine shall not have NVRTC, say so with PAGETUNE_NO_NVRTC=1.";
    return nullptr;
  }
}

class CompileForEveryArchitecture : public testing::Test {
 protected:
  void SetUp() override {
    const char* waived = std::getenv("PAGETUNE_NO_NVRTC");
    if (waived != nullptr && std::string(waived) == "1") GTEST_SKIP() << "PAGETUNE_NO_NVRTC=1: this machine has no NVRTC";
  }

  // Compiles all on all cores and says of each that is not as it should be why.
  static void expect_sound(const std::vector<Combination>& all) {
    Compiler* nvrtc = compiler();
    if (nvrtc == nullptr) return;
    std::mutex mutex;
    parallel_for(static_cast<int64_t>(all.size()), [&](int64_t i) {
      const Combination& c = all[static_cast<size_t>(i)];
      LaunchFacts facts;
      std::string problem;
      try {
        facts = nvrtc->compile(generate(c.spec, c.config, c.target)).facts;
        problem = problem_of(c, facts);
      } catch (const Error& error) {
        problem = error.what();
      }
      const std::lock_guard lock(mutex);
      const std::string where = c.target.arch + " " + canonical_json(c.spec) + " " + c.config.canonical_json();
      EXPECT_EQ(problem, "") << where;
      if (facts.local_bytes > kFrameOfTensorMaps) std::cout << facts.local_bytes << " bytes of local memory: " << where << "\n";
    });
  }

  static std::string problem_of(const Combination& c, const LaunchFacts& facts) {
    const int frame = c.target.compute_capability == 120 && c.config.at("LOADER") == 2 ? kFrameOfTensorMaps : 0;
    if (facts.local_bytes > (c.is_default ? frame : kTolerableLocalBytes)) return std::to_string(facts.local_bytes) + " bytes of spills or local arrays";
    if (facts.shared_bytes + facts.static_shared_bytes > c.target.shared_per_block) return std::to_string(facts.shared_bytes) + " bytes of shared memory";
    if (const int64_t said = ConfigSpace::builtin().derived("SHARED_BYTES", c.spec, c.config, c.target); said != facts.shared_bytes)
      return "the space's SHARED_BYTES is " + std::to_string(said) + ", the template's " + std::to_string(facts.shared_bytes);
    if (facts.variant != c.config.variant() || facts.even_share != (c.config.even_share() ? 1 : 0) || facts.cluster != (c.config.at("MERGE") == 2 ? 1 : 0) || (facts.box_tokens > 0) != (c.config.at("LOADER") == 2) ||
        facts.threads <= 0 || facts.tile_tokens != c.config.at("TILE_KV"))
      return "its launch facts are wrong";
    return "";
  }
};

// Fault: a family, an architecture or a head dim that nobody compiled; register spills that no functional test sees.
TEST_F(CompileForEveryArchitecture, DefaultKernelsCompileFitAndDoNotSpill) { expect_sound(covering_set()); }

TEST_F(CompileForEveryArchitecture, DefaultKernelsOfFeaturesDoNotSpill) {
  std::vector<Combination> all;
  size_t turn = 0;
  for (const char* arch : kArchs) {
    const Target target = Target::by_name(arch);
    for (const AttentionSpec& spec : feature_specs()) all.push_back({target, spec, default_in_turn(spec, target, turn++)});
    ++turn;
  }
  expect_sound(all);
}

// Fault: a loader, a merge or a schedule that only one head dim or architecture compiles with. All of sm_90a's; of the others a dim each.
TEST_F(CompileForEveryArchitecture, EveryScheduleMergeAndLoader) {
  const std::vector<int> dims = {64, 80, 128, 256};
  std::vector<Combination> all;
  size_t turn = 0;
  for (const char* arch : kArchs) {
    const Target target = Target::by_name(arch);
    const bool whole = target.compute_capability == 90;
    for (size_t i = 0; i < (whole ? dims.size() : 1); ++i) {
      const AttentionSpec spec = spec_of(whole && i % 2 == 1 ? 16 : 4, dims[(turn + i) % dims.size()], 16);
      for (const KernelConfig& config : testing_support::cuda_ways(spec, target)) all.push_back({target, spec, config, false});
    }
    ++turn;
  }
  expect_sound(all);
}

// Fault: the space's formula departs from the template's layout, and admits what does not fit or refuses what does. The kernels' bodies are left
// out, so that a compile takes a moment: random specs and configs.
TEST_F(CompileForEveryArchitecture, SharedBytesOfTheSpaceAreThoseOfTheTemplate) {
  Compiler* nvrtc = compiler();
  ASSERT_NE(nvrtc, nullptr);
  constexpr size_t kCount = 160;
  const ConfigSpace& space = ConfigSpace::builtin();
  Random random(3);
  const auto one_of = [&](const std::vector<int>& values) { return values[static_cast<size_t>(random.below(static_cast<int>(values.size())))]; };
  std::vector<Combination> all;
  while (all.size() < kCount) {
    const Target target = Target::by_name(kArchs[random.below(static_cast<int>(std::size(kArchs)))]);
    AttentionSpec spec = spec_of(random.below(20) + 1, 8 * (random.below(32) + 1), one_of({1, 7, 8, 16, 48, 64}));
    if (random.below(3) == 0) spec.head_dim_v = 8 * (random.below(32) + 1);
    if (random.below(3) == 0) spec.q_len = random.below(16) + 1;
    spec.window = spec.sink_tokens = random.below(3) == 0;
    spec.headwise = random.below(3) == 0;
    KernelConfig config;
    for (const auto& [name, values] : space.family(Kind::decode, Backend::cuda).tuning_params) config.set(name, one_of(values));
    if (space.refusal(spec, config, target).empty()) all.push_back({target, spec, config, false});
  }
  parallel_for(static_cast<int64_t>(all.size()), [&](int64_t i) {
    const Combination& c = all[static_cast<size_t>(i)];
    KernelSource source = generate(c.spec, c.config, c.target);
    const size_t facts = source.text.find(" pt_facts["), end = source.text.find("};", facts);
    ASSERT_NE(end, std::string::npos);
    source.text = source.text.substr(0, end) + "};\nextern \"C\" __global__ void pt_decode() {}\n";
    const int bytes = nvrtc->compile(source).facts.shared_bytes;
    EXPECT_EQ(bytes, space.derived("SHARED_BYTES", c.spec, c.config, c.target)) << c.target.arch << " " << canonical_json(c.spec) << " " << c.config.canonical_json();
  });
}

// Fault: the rotation above leaves a pair out, and the test is narrower than it says.
TEST_F(CompileForEveryArchitecture, PairsAreCovered) {
  std::set<std::pair<int, int>> dim_group;
  std::set<std::pair<int, int>> group_page;
  std::set<std::pair<std::string, std::tuple<int, int, int>>> defaults;
  for (const Combination& c : covering_set()) {
    dim_group.insert({c.spec.head_dim_k, c.spec.group_size()});
    group_page.insert({c.spec.group_size(), c.spec.page_size});
    defaults.insert({c.target.arch, {c.config.variant(), c.config.at("MERGE"), c.config.even_share() ? 1 : 0}});
  }
  EXPECT_EQ(dim_group.size(), kHeadDims.size() * kGroups.size());
  EXPECT_EQ(group_page.size(), kGroups.size() * kPages.size());
  for (const char* arch : kArchs) {
    for (const auto& kind : {std::tuple(1, 0, 0), std::tuple(2, 1, 0), std::tuple(2, 1, 1)}) EXPECT_TRUE(defaults.contains({arch, kind})) << arch;
  }
  for (const char* arch : {"sm_90a", "sm_100a"}) EXPECT_TRUE(defaults.contains({arch, std::tuple(2, 2, 0)})) << arch;
}

}  // namespace
}  // namespace pagetune
