#include "codegen/space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "codegen/generate.hpp"
#include "codegen/launch_plan.hpp"
#include "codegen/support.hpp"
#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::decode_spec;
using testing::error_text;
using testing::expect_mentions;

nlohmann::json builtin_json() { return nlohmann::json::parse(embedded_file("configs/template_config.json")); }

void check_candidates(const ConfigSpace::Candidates& candidates, const AttentionSpec& spec, const Target& target, std::optional<Bucket> bucket) {
  const ConfigSpace& space = ConfigSpace::builtin();
  int pruned = 0;
  for (const auto& [reason, count] : candidates.pruned) {
    EXPECT_GT(count, 0) << reason;
    pruned += count;
  }
  EXPECT_EQ(candidates.total, pruned + static_cast<int>(candidates.configs.size()));
  int product = 1;
  for (const auto& [name, values] : space.family(spec.kind, target.backend).tuning_params) product *= static_cast<int>(values.size());
  EXPECT_EQ(candidates.total, product);
  EXPECT_FALSE(candidates.configs.empty()) << canonical_json(spec) << " " << target.arch;
  std::set<std::string> texts;
  std::string previous;
  for (const KernelConfig& config : candidates.configs) {
    const Support support = supports(spec, config, target);
    EXPECT_TRUE(support) << support.reason;
    EXPECT_EQ(space.refusal(spec, config, target, bucket), "");
    EXPECT_TRUE(texts.insert(config.canonical_json()).second);
    EXPECT_LT(previous, config.canonical_json());
    previous = config.canonical_json();
  }
}

// Catches the enumeration and the predicate disagreeing, lost or doubled configs, and counts that do not add up.
TEST(Space, EveryCandidateIsSupportedAndCountsAddUp) {
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    for (int dim : {8, 64, 128, 136, 256}) {
      const AttentionSpec spec = decode_spec(32, 8, dim);
      const auto all = ConfigSpace::builtin().candidates(spec, target);
      check_candidates(all, spec, target, std::nullopt);
      for (Bucket bucket : {Bucket{0, 4}, Bucket{3, 12}, Bucket{16, 22}}) {
        const auto some = ConfigSpace::builtin().candidates(spec, target, bucket);
        check_candidates(some, spec, target, bucket);
        EXPECT_LE(some.configs.size(), all.configs.size());
      }
    }
  }
}

// Catches pruning that cuts a subtree which still had good configs: compares with asking the predicate for the whole product.
TEST(Space, EnumerationEqualsBruteForce) {
  const ConfigSpace& space = ConfigSpace::builtin();
  const Target target = Target::by_name("sm_89");
  const AttentionSpec spec = decode_spec(48, 2, 128);
  const Bucket bucket{2, 9};
  std::set<std::string> expected;
  const auto& params = space.family(Kind::decode, Backend::cuda).tuning_params;
  std::vector<KernelConfig> product = {KernelConfig()};
  for (const auto& [name, values] : params) {
    std::vector<KernelConfig> longer;
    for (const KernelConfig& config : product) {
      for (int value : values) {
        longer.push_back(config);
        longer.back().set(name, value);
      }
    }
    product = std::move(longer);
  }
  for (const KernelConfig& config : product) {
    if (space.refusal(spec, config, target, bucket).empty()) expected.insert(config.canonical_json());
  }
  std::set<std::string> actual;
  for (const KernelConfig& config : space.candidates(spec, target, bucket).configs) actual.insert(config.canonical_json());
  EXPECT_EQ(actual, expected);
}

// Catches the two predicates disagreeing: one that says why not, one that is asked often. Also what the second keeps of one config or bucket for the next.
TEST(Space, AdmissionEqualsRefusal) {
  const ConfigSpace& space = ConfigSpace::builtin();
  std::mt19937 random(11);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  const auto one_of = [&](const std::vector<int>& values) { return values[below(values.size())]; };
  const auto on_gpu = space.candidates(AttentionSpec(), Target::by_name("sm_90a")).configs, on_cpu = space.candidates(AttentionSpec(), Target::by_name("cpu")).configs;
  int strange = 0, never = 0, elsewhere = 0, here = 0;
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    const auto& some = target.backend == Backend::cuda ? on_gpu : on_cpu;  // other specs and targets refuse many of them
    for (int round = 0; round < 6; ++round) {
      const int kv_heads = one_of({1, 2, 8});
      AttentionSpec spec = decode_spec(kv_heads * one_of({1, 4, 71}), kv_heads, one_of({8, 64, 128, 136, 256}), one_of({1, 7, 16, 64}));
      spec.q_len = one_of({1, 3});
      spec.batch_invariant = round == 5;
      const Family& family = space.family(spec.kind, target.backend);
      const Admission admission(space, spec, target);
      for (int turn = 0; turn < 40; ++turn) {
        KernelConfig config = some[below(some.size())];
        const auto& [param, allowed] = *std::next(family.tuning_params.begin(), static_cast<int>(below(family.tuning_params.size())));
        if (turn % 4 == 1) config.set(param, one_of(allowed));
        if (turn % 16 == 2) config.set(param, 5);
        if (turn % 16 == 6) config.set("UNKNOWN", 1);
        if (turn % 16 == 10 || turn % 16 == 14) {
          auto values = config.values();
          values.erase(param);
          if (turn % 16 == 14) values.emplace("UNKNOWN", 1);  // as many as there should be
          config = KernelConfig(values);
          ++strange;
        }
        auto values = admission.without_bucket(config);
        const std::string reason = space.refusal(spec, config, target);
        ASSERT_EQ(values.has_value(), reason.empty()) << name << " " << config.canonical_json() << " " << reason;
        for (int i = 0; i < 6; ++i) {
          const Bucket bucket{static_cast<int>(below(Bucket::kBatchCells)), Bucket::kMinLenLog2 + static_cast<int>(below(Bucket::kLenCells))};
          const bool admitted = values && admission.in_bucket(*values, bucket);
          const std::string where = space.refusal(spec, config, target, bucket);
          ASSERT_EQ(admitted, where.empty()) << name << " " << bucket.text() << " " << config.canonical_json() << " " << where;
          ASSERT_TRUE(admitted || !values || !spec.batch_invariant);
          ++(admitted ? here : values ? elsewhere : never);
        }
      }
    }
  }
  for (const int met : {strange, never, elsewhere, here}) EXPECT_GT(met, 200);
}

// Catches bucket conditions that are asked of no bucket, or not asked of one.
TEST(Space, BucketConditionsNeedABucket) {
  const Target target = Target::by_name("sm_90a");
  const AttentionSpec spec;
  const ConfigSpace& space = ConfigSpace::builtin();
  const auto all = space.candidates(spec, target);
  const auto has = [](const ConfigSpace::Candidates& candidates, const auto& predicate) { return std::any_of(candidates.configs.begin(), candidates.configs.end(), predicate); };
  const auto even = [](const KernelConfig& config) { return config.even_share(); };
  EXPECT_TRUE(has(all, even));
  EXPECT_TRUE(has(all, [](const KernelConfig& config) { return config.num_splits() == 128; }));
  for (const Bucket bucket : {Bucket{0, 6}, Bucket{0, 7}, Bucket{3, 10}, Bucket{7, 16}, Bucket{10, 16}, Bucket{11, 16}}) {
    const auto some = space.candidates(spec, target, bucket);
    EXPECT_LT(some.configs.size(), all.configs.size()) << bucket.text();
    for (const KernelConfig& config : some.configs) {
      const int64_t tiles = (bucket.len() + config.at("NUM_WARPS") * config.at("TILE_KV") - 1) / (config.at("NUM_WARPS") * config.at("TILE_KV")), pairs = int64_t{bucket.batch()} * spec.kv_heads;
      ASSERT_LE(config.num_splits(), tiles) << bucket.text() << " " << config.canonical_json();
      if (config.even_share()) {
        ASSERT_LE(LaunchPlan(config, target).num_ctas, tiles * pairs) << bucket.text() << " " << config.canonical_json();
      }
      if (pairs >= int64_t{32} * target.processors) {
        ASSERT_EQ(config.num_splits(), 1) << "the batch alone fills the device";
      }
    }
    EXPECT_EQ(has(some, even), bucket.batch() <= 1024 && int64_t{bucket.batch()} * spec.kv_heads * bucket.len() / 16 > target.processors) << bucket.text();
  }
  AttentionSpec invariant = spec;
  invariant.batch_invariant = true;
  EXPECT_EQ(space.candidates(invariant, target, Bucket{0, 6}).configs, space.candidates(invariant, target).configs);
}

// Catches a formula that shrinks where more is stored. That it equals what the template lays out, attention_compile_test checks.
TEST(Space, SharedMemoryIsMonotone) {
  const ConfigSpace& space = ConfigSpace::builtin();
  const Target target = Target::by_name("sm_90a");
  for (const int loader : {0, 1, 2}) {
    auto shared = [&](int group, int dim, int warps, int stages, int tile, int variant = 1, int merge = 0) {
      const KernelConfig config({{"VARIANT", variant}, {"NUM_SPLITS", variant}, {"CTA_QUARTERS", 0}, {"MERGE", merge}, {"LOADER", loader}, {"NUM_WARPS", warps}, {"TILE_KV", tile}, {"NUM_STAGES", stages}});
      return space.derived("SHARED_BYTES", decode_spec(group, 1, dim), config, target);
    };
    for (int group : {1, 8, 16, 71}) {
      int64_t previous_dim = 0;
      for (int dim = 8; dim <= 256; dim += 8) {
        const int64_t bytes = shared(group, dim, 1, 2, 16);
        EXPECT_GE(bytes, previous_dim);
        previous_dim = bytes;
        EXPECT_LT(bytes, shared(group, dim, 2, 2, 16));
        EXPECT_LT(bytes, shared(group, dim, 1, 3, 16));
        EXPECT_LT(bytes, shared(group, dim, 1, 2, 32));
        EXPECT_LE(shared(1, dim, 1, 2, 16), bytes);
        EXPECT_LE(bytes, shared(group, dim, 1, 2, 16, 2));
        EXPECT_LT(shared(group, dim, 1, 2, 16, 2, 1), shared(group, dim, 1, 2, 16, 2, 2));
      }
    }
  }
  error_text([&] { space.derived("CTAS", decode_spec(8, 1, 64), KernelConfig(), target); }, ErrorCode::internal);
  error_text([&] { space.derived("NOTHING", decode_spec(8, 1, 64), KernelConfig(), target); }, ErrorCode::internal);
}

// Catches the winners table's columns drifting from the file's words.
TEST(Space, DispatchValues) {
  const auto values = dispatch_values(decode_spec(71, 1, 64, 528));
  const std::map<std::string, int> expected = {{"GROUP_SIZE", 71}, {"HEAD_DIM", 64},      {"BLOCK_SIZE", 528}, {"CAUSAL", 1},   {"BLOCK_SHAPE_Q", 16},
                                               {"ENABLE_PREFILL", 0}, {"IsFP8", 0}, {"IsDynamicC8", 0}, {"KV_HEADS", 1}, {"HEADWISE", 0}};
  EXPECT_EQ(values, expected);
  AttentionSpec c8;
  c8.kv_dtype = DType::fp8_e4m3;
  c8.kv_scale = ScaleGranularity::token_head;
  c8.headwise = true;
  EXPECT_EQ(dispatch_values(c8).at("IsFP8"), 1);
  EXPECT_EQ(dispatch_values(c8).at("IsDynamicC8"), 1);
  EXPECT_EQ(dispatch_values(c8).at("HEADWISE"), 1);
  c8.kv_heads = 0;
  EXPECT_EQ(dispatch_values(c8).at("GROUP_SIZE"), 0);  // an invalid spec must reach supports() alive
  for (const Family& family : ConfigSpace::builtin().families()) {
    for (const auto& [name, domain] : family.dispatch_params) EXPECT_TRUE(values.contains(name)) << name;
    EXPECT_EQ(family.dispatch_params.size(), values.size()) << "a column of the winners table has no domain in " << family.name;
    EXPECT_EQ(family.template_params.size(), family.dispatch_params.size() + 2) << family.name;
  }
}

// Catches a space hash that misses a changed condition or value (stale winners would look fresh), or that depends on anything else.
TEST(Space, HashFollowsTheTuningSpace) {
  auto hash = [](const nlohmann::json& json) {
    const ConfigSpace space = ConfigSpace::parse(json.dump());
    return space.hash(space.family(Kind::decode, Backend::cuda));
  };
  const std::string base = hash(builtin_json());
  std::set<std::string> seen = {base};
  nlohmann::json changed = builtin_json();
  changed["decode_cuda"]["tuning_params"]["NUM_WARPS"].push_back(16);
  EXPECT_TRUE(seen.insert(hash(changed)).second);
  changed = builtin_json();
  changed["decode_cuda"]["conditions"][0]["expression"] = "VARIANT == 1";
  EXPECT_TRUE(seen.insert(hash(changed)).second);
  changed = builtin_json();
  changed["decode_cuda"]["derived"][0]["expression"] = "HEAD_DIM";
  EXPECT_TRUE(seen.insert(hash(changed)).second);
  changed = builtin_json();
  changed["decode_cuda"]["dispatch_params"]["HEAD_DIM"]["max"] = 128;
  changed["decode_cpu"]["tuning_params"]["TILE_KV"].push_back(128);
  EXPECT_EQ(hash(changed), base);
}

// Catches winners that name their kernel by its place in a list: values in front of a parameter's others must not change what a config says, nor whom the space admits.
TEST(Space, ValuesInFrontChangeNoConfig_B176) {
  nlohmann::json grown = builtin_json();
  nlohmann::json& values = grown["decode_cuda"]["tuning_params"]["NUM_STAGES"];
  values.insert(values.begin(), 1);
  const ConfigSpace before = ConfigSpace::builtin(), after = ConfigSpace::parse(grown.dump());
  const Target target = Target::by_name("sm_90a");
  const auto now = after.candidates(AttentionSpec{}, target, Bucket{3, 12}).configs;
  for (const KernelConfig& config : before.candidates(AttentionSpec{}, target, Bucket{3, 12}).configs)
    EXPECT_NE(std::find(now.begin(), now.end(), KernelConfig::from_json(config.canonical_json())), now.end()) << config.canonical_json();
}

// Catches a file that is taken although part of it is misspelt and therefore without effect.
TEST(Space, ParseNamesWhatIsWrong) {
  auto parse_error = [](auto change) {
    nlohmann::json json = builtin_json();
    change(json["decode_cuda"]);
    return error_text([&] { ConfigSpace::parse(json.dump()); });
  };
  using Json = nlohmann::json;
  expect_mentions(parse_error([](Json& f) { f["tuning_parms"] = 1; }), {"decode_cuda", "'tuning_parms'", "tuning_params"});
  expect_mentions(parse_error([](Json& f) { f.erase("conditions"); }), {"decode_cuda", "'conditions'"});
  expect_mentions(parse_error([](Json& f) { f["name"] = "decode"; }), {"decode_cuda.name", "'decode'"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["NUM_WARPS"] = 4; }), {"NUM_WARPS", "list"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["NUM_WARPS"] = Json::array(); }), {"NUM_WARPS", "empty"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["NUM_WARPS"] = {1, 2, 1}; }), {"NUM_WARPS", "twice"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["NUM_WARPS"] = {1.5}; }), {"NUM_WARPS", "1.5"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["HEAD_DIM"] = {1}; }), {"HEAD_DIM", "two meanings"});
  expect_mentions(parse_error([](Json& f) { f["tuning_params"]["A B"] = {1}; }), {"'A B'", "not a name"});
  expect_mentions(parse_error([](Json& f) { f["dispatch_params"]["HEAD_DIMS"] = {1}; }), {"'HEAD_DIMS'", "HEAD_DIM"});
  expect_mentions(parse_error([](Json& f) { f["dispatch_params"]["HEAD_DIM"]["stride"] = 8; }), {"HEAD_DIM", "'stride'"});
  expect_mentions(parse_error([](Json& f) { f["dispatch_params"]["HEAD_DIM"]["step"] = 0; }), {"HEAD_DIM", "step 0"});
  expect_mentions(parse_error([](Json& f) { f["dispatch_params"]["HEAD_DIM"]["min"] = 500; }), {"HEAD_DIM", "min 500"});
  expect_mentions(parse_error([](Json& f) { f["data_types"].push_back({"bf16", "bf16"}); }), {"data_types", "[in, out, suffix]"});
  expect_mentions(parse_error([](Json& f) { f["conditions"][0]["expression"] = "VARIANT = 1"; }), {"decode_cuda", "'VARIANT = 1'", "position 9"});
  expect_mentions(parse_error([](Json& f) { f["conditions"][0]["expression"] = "WARPS == 1"; }), {"'WARPS'", "NUM_WARPS"});
  expect_mentions(parse_error([](Json& f) { f["conditions"][0]["when"] = "now"; }), {"'when'", "reason"});
  expect_mentions(parse_error([](Json& f) { f["derived"][0]["expression"] = "SHARED_BYTES"; }), {"'SHARED_BYTES'"});  // not defined yet
  expect_mentions(parse_error([](Json& f) { f["derived"][1]["name"] = "NUM_WARPS"; }), {"NUM_WARPS", "two meanings"});
  for (const char* name : {"A", "B"}) {
    nlohmann::json values = nlohmann::json::array();
    for (int i = 0; i < 2000; ++i) values.push_back(i);
    expect_mentions(parse_error([&](Json& f) { f["tuning_params"][name] = values; }), {"1000000"});
  }
  expect_mentions(error_text([] { ConfigSpace::parse("[]"); }), {"object", "array"});
  expect_mentions(error_text([] { ConfigSpace::parse(R"({"decode_cpu":{},"decode_cpu":{}})"); }), {"twice"});
}

// Catches a shape outside the file's domains being enumerated, and a kind without a family.
TEST(Space, RefusesSpecsOutsideTheDomains) {
  const Target target = Target::by_name("sm_90a");
  const ConfigSpace& space = ConfigSpace::builtin();
  expect_mentions(error_text([&] { space.candidates(decode_spec(8, 8, 100), target); }, ErrorCode::unsupported), {"head_dim_k 100", "8 to 256"});
  expect_mentions(error_text([&] { space.family(Kind::merge, Backend::cuda); }, ErrorCode::unsupported), {"merge", "cuda", "decode_cpu"});
  Domain list{{4, 2}};
  EXPECT_TRUE(list.contains(2));
  EXPECT_FALSE(list.contains(3));
  EXPECT_EQ(list.text(), "one of 4, 2");
  Domain range{{}, 8, 256, 8};
  EXPECT_TRUE(range.contains(8));
  EXPECT_TRUE(range.contains(256));
  EXPECT_FALSE(range.contains(12));
  EXPECT_FALSE(range.contains(264));
  EXPECT_FALSE(range.contains(0));
  EXPECT_EQ(range.text(), "8 to 256 in steps of 8");
}

}  // namespace
}  // namespace pagetune
