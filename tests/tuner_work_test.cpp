// What a session would do, before it does anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cache_db/blocklist.hpp"
#include "codegen/default_config.hpp"
#include "codegen/support.hpp"
#include "tuner/candidates.hpp"
#include "tuner/estimate.hpp"
#include "codegen/launch_plan.hpp"
#include "tuner/worklist.hpp"

namespace pagetune {
namespace {

const Target& h200() {
  static const Target target = Target::by_name("sm_90a");
  return target;
}

ModelAttention model_of(std::vector<LayerGroup> groups, int max_position = 131072) {
  ModelAttention model;
  model.name = "test";
  model.max_position = max_position;
  model.groups = std::move(groups);
  return model;
}

std::vector<std::string> texts(const WorkList& list) {
  std::vector<std::string> made;
  for (const Work& work : list.works) made.push_back(work.bucket.text());
  return made;
}

// Fault: a bucket is missing, comes twice, or the order differs between runs.
TEST(WorkList, CoversTheGridOnce) {
  WorkList list = work_list(model_of({{AttentionSpec{}, {0, 1, 2}}}), h200(), default_grid(Backend::cuda), 0);
  EXPECT_EQ(texts(list), (std::vector<std::string>{"1x1024", "1x8192", "1x32768", "8x1024", "8x8192", "8x32768", "64x1024", "64x8192", "64x32768"}));
  EXPECT_TRUE(list.refused.empty());
  WorkList doubled = work_list(model_of({{AttentionSpec{}, {0}}}), h200(), {{1, 1}, {1000, 1024, 1100}, true}, 0);
  EXPECT_EQ(texts(doubled), std::vector<std::string>{"1x1024"}) << "lengths of one bucket are one work";
}

// Fault: layer groups with one spec are tuned twice; layers are lost.
TEST(WorkList, GroupsOfOneSpecShareTheirWorks) {
  WorkList list = work_list(model_of({{AttentionSpec{}, {0, 2}}, {AttentionSpec{}, {1, 3}}}), h200(), {{1}, {1024}, true}, 0);
  ASSERT_EQ(list.works.size(), 1u);
  EXPECT_EQ(list.works[0].layers, (std::vector<int>{0, 1, 2, 3}));
}

// Fault: an unsupported group ends everything, or vanishes silently.
TEST(WorkList, RefusedGroupsKeepTheirReason) {
  AttentionSpec other;
  other.kind = Kind::page_copy;
  ASSERT_FALSE(supports(other, h200()));
  WorkList list = work_list(model_of({{other, {0, 1}}, {AttentionSpec{}, {2}}}), h200(), {{1}, {1024}, true}, 0);
  EXPECT_EQ(list.works.size(), 1u);
  ASSERT_EQ(list.refused.size(), 1u);
  EXPECT_EQ(list.refused[0].what, "layers 0-1");
  EXPECT_EQ(list.refused[0].reason, supports(other, h200()).reason);
}

// Fault: lengths that the model cannot reach are tuned by default, or a length that the user asked for is dropped.
TEST(WorkList, DefaultLengthsEndAtTheModelsMaximum) {
  WorkList list = work_list(model_of({{AttentionSpec{}, {0}}}, 4096), h200(), {{1}, {1024, 8192, 32768}, false}, 0);
  EXPECT_EQ(texts(list), (std::vector<std::string>{"1x1024", "1x4096"}));
  WorkList asked = work_list(model_of({{AttentionSpec{}, {0}}}, 4096), h200(), {{1}, {32768}, true}, 0);
  EXPECT_EQ(texts(asked), std::vector<std::string>{"1x32768"});
}

// Fault: a bucket that cannot be allocated is planned. 1x1024 of 8 KV heads of 128 + 128 bf16 takes 4 MiB, 8x1024 takes 32 MiB.
TEST(WorkList, BucketsBeyondTheMemoryAreSkippedWithTheirSizes) {
  WorkList list = work_list(model_of({{AttentionSpec{}, {0}}}), h200(), {{1, 8}, {1024}, true}, 4 << 20);
  EXPECT_EQ(texts(list), std::vector<std::string>{"1x1024"});
  ASSERT_EQ(list.skipped.size(), 1u);
  EXPECT_EQ(list.skipped[0].what, "bucket 8x1024");
  EXPECT_NE(list.skipped[0].reason.find("32.0 MiB"), std::string::npos) << list.skipped[0].reason;
  EXPECT_NE(list.skipped[0].reason.find("4.0 MiB"), std::string::npos) << list.skipped[0].reason;
}

Store::Untuned counted(Bucket bucket, uint64_t hits, const AttentionSpec& spec = {}, const char* driver = "13.0") {
  Environment environment;
  environment.driver = driver;
  return {environment, spec, bucket, hits};
}

// Fault: a session whose budget ends spends it on what is hardly called, takes another device's calls, or goes from spec to spec and compiles twice.
TEST(UntunedList, WhatReadsMostComesFirstAndSpecsStayTogether) {
  AttentionSpec small;
  small.kv_heads = 1, small.q_heads = 4;  // an eighth of the bytes
  const std::vector<Store::Untuned> calls = {counted({0, 10}, 100), counted({0, 13}, 10), counted({3, 13}, 50), counted({0, 13}, 1000, small), counted({6, 13}, 1000, {}, "12.4")};
  const WorkList list = untuned_list(calls, calls[0].environment.key(), h200(), 0);
  ASSERT_EQ(texts(list), (std::vector<std::string>{"8x8192", "1x1024", "1x8192", "1x8192"}));
  EXPECT_EQ(list.works[2].spec, AttentionSpec{});
  EXPECT_EQ(list.works[3].spec, small);
  EXPECT_EQ(list.works[0].hits, 50u);
  EXPECT_TRUE(list.works[0].layers.empty() && list.refused.empty() && list.skipped.empty());
}

// Fault: what this build no longer supports, or what does not fit, ends the session or vanishes without a word.
TEST(UntunedList, WhatCannotBeTunedKeepsItsReason) {
  AttentionSpec unsupported;
  unsupported.head_dim_k = unsupported.head_dim_v = 68;
  const std::vector<Store::Untuned> calls = {counted({0, 10}, 1), counted({3, 10}, 1), counted({0, 10}, 1, unsupported)};
  const WorkList list = untuned_list(calls, calls[0].environment.key(), h200(), 4 << 20);
  EXPECT_EQ(texts(list), std::vector<std::string>{"1x1024"});
  ASSERT_EQ(list.refused.size(), 1u);
  EXPECT_EQ(list.refused[0].reason, supports(unsupported, h200()).reason);
  ASSERT_EQ(list.skipped.size(), 1u);
  EXPECT_EQ(list.skipped[0].what, "bucket 8x1024");
}

// Fault: gaps printed as part of a range.
TEST(WorkList, RangesText) {
  EXPECT_EQ(ranges_text({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_EQ(ranges_text({3}), "3");
  EXPECT_EQ(ranges_text({}), "");
}

Work a_work() { return {AttentionSpec{}, Bucket{3, 13}, {0}}; }

// Fault: the default is not raced, or a config is raced twice.
TEST(Candidates, TheDefaultComesFirstAndNothingTwice) {
  auto store = Store::open(":memory:");
  CandidateSet set = candidates_of(a_work(), h200(), *store, "candidates-1");
  ASSERT_GT(set.configs.size(), 10u);
  EXPECT_EQ(set.configs.front(), default_config(a_work().spec, h200(), a_work().bucket));
  EXPECT_EQ(std::set<KernelConfig>(set.configs.begin(), set.configs.end()).size(), set.configs.size());
  for (const KernelConfig& config : set.configs) EXPECT_TRUE(supports(a_work().spec, config, h200()));
  EXPECT_TRUE(set.incumbent.values().empty());
}

// Fault: a wrong kernel is offered again under another split count, or stays blocked for ever although its generator was repaired.
TEST(Candidates, ABlockTakesTheWholeShapeUntilTheGeneratorChanges) {
  auto store = Store::open(":memory:");
  CandidateSet before = candidates_of(a_work(), h200(), *store, "candidates-2");
  KernelConfig bad = before.configs.back();
  store->block("candidates-2", spec_key(a_work().spec), bad, Blocklist::text("wrong result"));
  store->block("candidates-2", spec_key(a_work().spec), before.configs.front(), "wrong result (generator 000000000000)");
  CandidateSet after = candidates_of(a_work(), h200(), *store, "candidates-2");
  EXPECT_LT(after.configs.size(), before.configs.size());
  for (const KernelConfig& config : after.configs) EXPECT_NE(shape_of(config), shape_of(bad));
  EXPECT_EQ(after.configs.front(), before.configs.front()) << "blocked by another generator";
}

// Fault: reasons that repeat are listed one by one.
TEST(Candidates, ReasonsAreCounted) {
  std::vector<std::pair<std::string, int>> reasons;
  count_reason(reasons, "a");
  count_reason(reasons, "b", 3);
  count_reason(reasons, "a");
  EXPECT_EQ(reasons_text(reasons), "2: a; 3: b");
}

// Fault: an estimate that does not grow with what there is to do.
TEST(Estimate, GrowsWithTheWork) {
  MeasurePolicy policy;
  EXPECT_LT(race_seconds(10, 1e6, policy, 4.55e6), race_seconds(100, 1e6, policy, 4.55e6));
  EXPECT_LT(race_seconds(10, 1e6, policy, 4.55e6), race_seconds(10, 1e9, policy, 4.55e6));
  EXPECT_LT(build_seconds(10, Backend::cuda, 8), build_seconds(10, Backend::cuda, 2));
  EXPECT_EQ(build_seconds(0, Backend::cuda, 8), 0);
}

}  // namespace
}  // namespace pagetune
