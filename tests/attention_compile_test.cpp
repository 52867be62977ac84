// The default kernels of every GPU architecture, compiled without a GPU: they compile, fit, and do not spill.
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/device.hpp"
#include "runtime/parallel.hpp"

namespace pagetune {
namespace {

struct Combination {
  Target target;
  AttentionSpec spec;
  int variant;
};

const std::vector<int> kHeadDims = {64, 80, 96, 112, 120, 128, 160, 192, 256};
const std::vector<int> kGroups = {1, 4, 7, 8, 16, 71};
const std::vector<int> kPages = {16, 64, 7};

// Every (architecture, head dim, variant), every (head dim, group), every (group, page): the rest is rotated through.
std::vector<Combination> covering_set() {
  std::vector<Combination> result;
  int rotation = 0;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    for (size_t d = 0; d < kHeadDims.size(); ++d) {
      const int group = kGroups[(d + static_cast<size_t>(rotation)) % kGroups.size()];
      for (const int variant : {1, 2}) {
        AttentionSpec spec;
        spec.kv_heads = 2;
        spec.q_heads = 2 * group;
        spec.head_dim_k = spec.head_dim_v = kHeadDims[d];
        spec.page_size = kPages[(d / kPages.size() + static_cast<size_t>(rotation) + static_cast<size_t>(variant)) % kPages.size()];
        if (d % 4 == 3) spec.q_dtype = spec.kv_dtype = spec.out_dtype = DType::fp16;
        spec.lse = d % 2 == 0;
        spec.checked = d % 5 == 4;
        result.push_back({Target::by_name(arch), spec, variant});
      }
    }
    ++rotation;
  }
  return result;
}

// Fault: a family, an architecture or a head dim that nobody compiled; register spills that no functional test sees.
TEST(CompileForEveryArchitecture, DefaultKernelsCompileFitAndDoNotSpill) {
  const char* waived = std::getenv("PAGETUNE_NO_NVRTC");
  if (waived != nullptr && std::string(waived) == "1") GTEST_SKIP() << "PAGETUNE_NO_NVRTC=1: this machine has no NVRTC";
  Compiler* compiler = nullptr;
  try {
    compiler = &compiler_for(Target::by_name("sm_90a"));
  } catch (const Error& error) {
    FAIL() << error.what() << "\nIf this machine shall not have NVRTC, say so with PAGETUNE_NO_NVRTC=1.";
  }
  const std::vector<Combination> all = covering_set();
  std::mutex mutex;
  parallel_for(static_cast<int64_t>(all.size()), [&](int64_t i) {
    const auto& [target, spec, variant] = all[static_cast<size_t>(i)];
    KernelConfig config = default_shape(spec, target);
    config.set("VARIANT", variant);
    config.set("NUM_SPLITS", variant == 1 ? 1 : 2);
    std::string problem;
    try {
      const Support support = supports(spec, config, target);
      if (!support) problem = support.reason;
      const Binary binary = compiler->compile(generate(spec, config, target));
      const LaunchFacts facts = compiler->read_facts(binary.data);
      if (facts.local_bytes != 0) problem = std::to_string(facts.local_bytes) + " bytes of spills or local arrays";
      if (facts.shared_bytes + facts.static_shared_bytes > target.shared_per_block) problem = std::to_string(facts.shared_bytes) + " bytes of shared memory";
      if (facts.variant != variant || facts.threads <= 0 || facts.tile_tokens <= 0) problem = "its launch facts are wrong";
    } catch (const Error& error) {
      problem = error.what();
    }
    const std::lock_guard lock(mutex);
    EXPECT_EQ(problem, "") << target.arch << " V" << variant << " " << canonical_json(spec) << " " << config.canonical_json();
  });
}

// Fault: the rotation above leaves a pair out, and the test is narrower than it says.
TEST(CompileForEveryArchitecture, PairsAreCovered) {
  std::set<std::pair<int, int>> dim_group;
  std::set<std::pair<int, int>> group_page;
  for (const Combination& c : covering_set()) {
    dim_group.insert({c.spec.head_dim_k, c.spec.group_size()});
    group_page.insert({c.spec.group_size(), c.spec.page_size});
  }
  EXPECT_EQ(dim_group.size(), kHeadDims.size() * kGroups.size());
  EXPECT_EQ(group_page.size(), kGroups.size() * kPages.size());
}

}  // namespace
}  // namespace pagetune
