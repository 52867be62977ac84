// FastDeploy's template_config.json: reading, counting, what is covered, what models need.
#include "codegen/fastdeploy.hpp"

#include "codegen/fastdeploy_file.hpp"
#include "codegen/space.hpp"
#include "codegen_testing.hpp"
#include "fastdeploy_support.hpp"

namespace {

using namespace pagetune;
using namespace pagetune::fastdeploy;
using namespace fastdeploy_support;
using pagetune::testing::error_text;
using pagetune::testing::expect_mentions;

std::vector<Entry> upstream() { return read_template_config("t.json", file_text()); }

const Entry& entry_of(const std::vector<Entry>& entries, const std::string& name) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry;
  throw std::runtime_error("no entry " + name);
}

std::string model_text(const std::string& name) { return file_text(PAGETUNE_SOURCE_DIR "/configs/models/" + name + ".json"); }

ModelAttention model(const std::string& name, int tp = 1) {
  ImportOptions options;
  options.tp = tp;
  options.page_size = kPageSize;
  options.layout = Layout::hnd;
  return import_model(name, model_text(name), options);
}

// A model of one group of layers.
ModelAttention one_group(int q_heads, int kv_heads, int head_dim, DType dtype = DType::bf16) {
  LayerGroup group;
  group.spec.q_heads = q_heads;
  group.spec.kv_heads = kv_heads;
  group.spec.head_dim_k = group.spec.head_dim_v = head_dim;
  group.spec.q_dtype = group.spec.kv_dtype = group.spec.out_dtype = dtype;
  group.spec.page_size = kPageSize;
  group.layers = {0};
  ModelAttention model;
  model.groups = {group};
  return model;
}

std::multiset<std::string> generated(const std::vector<Entry>& entries) { return generate(template_config_text(entries)).instantiations; }

std::multiset<std::string> needed(const ModelAttention& model, const Deployment& deployment = {}) {
  const Needs needs = fastdeploy::needs(upstream(), model, deployment);
  EXPECT_TRUE(needs.unserved.empty()) << needs.unserved.at(0).reason;
  return generated(pruned(upstream(), needs.instances));
}

std::string unserved(const ModelAttention& model, const Deployment& deployment = {}) {
  const Needs needs = fastdeploy::needs(upstream(), model, deployment);
  EXPECT_TRUE(needs.instances.empty());
  return needs.unserved.empty() ? "" : needs.unserved[0].reason;
}

// Fault: a count that is not what the generator writes: of combinations, of data types, of files by max_instances_per_file.
TEST(FastDeployFile, CountsWhatTheGeneratorWrites) {
  int64_t all = 0, all_files = 0;
  for (const Entry& entry : upstream()) {
    const Generated written = generate(template_config_text({entry}));
    EXPECT_EQ(instantiations(entry), static_cast<int64_t>(written.instantiations.size())) << entry.name;
    EXPECT_EQ(files(entry), static_cast<int64_t>(written.files.size())) << entry.name;
    all += instantiations(entry);
    all_files += files(entry);
  }
  EXPECT_EQ(all, 7104);
  EXPECT_EQ(all_files, 74);
}

// Fault: a written file that gives the generator something else than the one it was read from.
TEST(FastDeployFile, IsWrittenAsItWasRead) {
  const std::string text = template_config_text(upstream());
  EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(file_text()));
  EXPECT_EQ(generate(text).instantiations, generate(file_text()).instantiations);
  EXPECT_EQ(generate(text).files, generate(file_text()).files);
}

// Faults: a value that the generator, the compiler or this program cannot use is taken; a refusal without place, value or what is allowed.
TEST(FastDeployFile, RefusesWithPlaceAndValue) {
  const auto refusal = [](const std::string& path, const Json& value) {
    Json json = Json::parse(file_text());
    json["multiquery_attention_c16"][Json::json_pointer(path)] = value;
    return error_text([&] { read_template_config("t.json", json.dump()); });
  };
  const Json ok = Json::parse(file_text())["multiquery_attention_c16"];
  const std::string place = "multiquery_attention_c16";
  struct Case {
    std::string path;
    Json value;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"", 7, {"must be an object, not number"}},
      {"/extra", 1, {"unknown key 'extra'", "known are name, function_name"}},
      {"/name", "other", {".name", "'other'", "'multiquery_attention_c16'"}},
      {"/name", "", {".name", "not empty"}},
      {"/function_name", "f(); system", {".function_name", "f(); system", "letters, digits, : and _"}},
      {"/impl_file", "a\n#include b", {".impl_file", "letters, digits, ., /, - and _"}},
      {"/file_prefix", "../x", {".file_prefix", "\"../x\"", "letters, digits and _"}},
      {"/template_params", "T", {".template_params", "must be a list, not string"}},
      {"/template_params/1", "T", {".template_params", "names T twice"}},
      {"/template_params/1", 5, {".template_params", "not 5"}},
      {"/template_params", {"GROUP_SIZE"}, {".template_params", "lacks T"}},
      {"/template_params", std::vector<std::string>(65, "T"), {".template_params", "has 65 names", "64 parameters"}},
      {"/template_params/9", "NEW", {".dispatch_params", "lacks values of NEW"}},
      {"/dispatch_params", {1}, {".dispatch_params", "must be an object, not array"}},
      {"/dispatch_params/NEW", {1}, {".dispatch_params", "values of \"NEW\"", "template_params are T, GROUP_SIZE"}},
      {"/dispatch_params/NUM_WARP_Q", {1}, {".dispatch_params", "values of \"NUM_WARP_Q\""}},
      {"/dispatch_params/CAUSAL", Json::array(), {".dispatch_params.CAUSAL", "is empty"}},
      {"/dispatch_params/CAUSAL", {1, 1}, {".dispatch_params.CAUSAL", "twice", "[1,1]"}},
      {"/dispatch_params/CAUSAL", {true}, {".dispatch_params.CAUSAL", "true", "an integer from"}},
      {"/dispatch_params/CAUSAL", {2147483648}, {".dispatch_params.CAUSAL", "2147483648", "to 2147483647"}},
      {"/dispatch_params/CAUSAL", 1, {".dispatch_params.CAUSAL", "must be a list"}},
      {"/data_types", Json::array(), {".data_types", "is empty", "[T, OutT, suffix of the files]"}},
      {"/data_types/0", {"a", "b"}, {".data_types", "[\"a\",\"b\"]", "[T, OutT, suffix of the files]"}},
      {"/data_types/0", "abc", {".data_types", "has the row \"abc\""}},
      {"/data_types/0/0", "", {".data_types", "not empty"}},
      {"/data_types/0/1", "", {".data_types", "not empty"}},
      {"/data_types/0/2", "a/b", {".data_types", "\"a/b\""}},
      {"/data_types/1", {"paddle::float16", "paddle::float16", "again"}, {".data_types", "names the types", "twice"}},
      {"/data_types/1/2", "float16_float16", {".file_prefix", "multiquery_attention_c16_float16_float16", "name another prefix or suffix"}},
      {"/file_prefix", "multiquery_attention_c8_", {"multiquery_attention_c8_float16_float16", "multiquery_attention_c16 writes too"}},
      {"/max_instances_per_file", 0, {".max_instances_per_file", "is 0", "at least 1"}},
      {"/max_instances_per_file", 1.5, {".max_instances_per_file", "1.5"}},
      {"/function_signature", "{function_name}", {".function_signature", "lacks {template_args}"}},
      {"/function_signature", "{template_args}", {".function_signature", "lacks {function_name}"}},
      {"/function_signature", "{function_name}{template_args} {}", {".function_signature", "has braces"}},
  };
  for (const Case& one : cases) {
    std::string sentence = refusal(one.path, one.value);
    for (const std::string& words : one.words) EXPECT_NE(sentence.find(words), std::string::npos) << one.path << " " << one.value << ": " << sentence;
    EXPECT_NE(sentence.find(place), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("t.json"), std::string::npos) << sentence;
  }
  for (const auto& [key, value] : ok.items()) {
    Json json = Json::parse(file_text());
    json[place].erase(key);
    expect_mentions(error_text([&, &text = json] { read_template_config("t.json", text.dump()); }), {place, "lacks the key '" + key + "'"});
  }
}

// Faults: text of any size or depth is parsed; a key that stands twice wins silently; more instantiations than memory holds.
TEST(FastDeployFile, HasLimits) {
  const auto refusal = [](const std::string& text) { return error_text([&] { read_template_config("t.json", text); }); };
  expect_mentions(refusal(std::string(kMaxFileBytes + 1, ' ')), {"t.json", "1048577 bytes", "1048576"});
  expect_mentions(refusal(std::string(100000, '[')), {"t.json", "more than 64 levels"});
  EXPECT_NE(refusal(R"({"a": {"name": 1, "name": 2}})").find("stands twice"), std::string::npos);
  EXPECT_NE(refusal(file_text().substr(0, 4000)).find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("{}").find("not an empty one"), std::string::npos);
  EXPECT_NE(refusal("[]").find("not array"), std::string::npos);
  EXPECT_NE(refusal(R"({"a b": {}})").find("\"a b\""), std::string::npos);
  Json json = Json::parse(file_text());
  for (const char* param : {"GROUP_SIZE", "HEAD_DIM", "BLOCK_SIZE"}) {
    Json values = Json::array();
    for (int i = 1; i <= 20000; ++i) values.push_back(i);
    json["multiquery_attention_c4"]["dispatch_params"][param] = values;
  }
  expect_mentions(refusal(json.dump()), {"multiquery_attention_c4", "over 100000"});
}

// Faults: kernels that do not exist count as covered, or ones that do as not; an instantiation without a reason.
TEST(FastDeployCoverage, IsWhatSupportsSays) {
  const std::vector<Entry> entries = upstream();
  const Target target = Target::by_name("sm_90a");
  const std::vector<std::pair<std::string, int64_t>> covered = {
      // 2 types x 10 groups x 2 head dims x (2 query tiles x (1 token causal or not, several tokens causal))
      {"multiquery_attention_c16", 2 * 10 * 2 * 2 * 3},
      {"multiquery_attention_c4", 0},
      {"multiquery_attention_c8", 0},
      // 2 types x 3 groups x K and V of 128 or 192 dims x causal or not x 2 tile sizes
      {"multiquery_decoder_attention", 2 * 3 * 4 * 2 * 2}};
  for (const auto& [name, number] : covered) {
    const Entry& entry = entry_of(entries, name);
    const Coverage coverage = fastdeploy::coverage(entry, target);
    EXPECT_EQ(coverage.covered, number) << name;
    int64_t refused = 0;
    for (const auto& [reason, count] : coverage.refused) {
      pagetune::testing::expect_finished(reason);
      refused += count;
    }
    EXPECT_EQ(coverage.covered + refused, instantiations(entry)) << name;
    EXPECT_TRUE(std::is_sorted(coverage.refused.begin(), coverage.refused.end(), [](const auto& a, const auto& b) { return a.second > b.second; }));
  }
  EXPECT_EQ(fastdeploy::coverage(entry_of(entries, "multiquery_attention_c16"), Target::by_name("sm_80")).covered, 240);
}

// Fault: a reason counts for instantiations that it is not the reason of.
TEST(FastDeployCoverage, ReasonsNameWhatIsMissing) {
  const Target target = Target::by_name("sm_90a");
  const auto only = [&](const std::string& name, const std::map<std::string, int>& values, size_t row) {
    const std::vector<Entry> entries = upstream();
    Entry entry = entry_of(entries, name);
    entry.data_types = {entry.data_types[row]};
    for (Entry::Parameter& param : entry.dispatch_params) param.values = {values.contains(param.name) ? values.at(param.name) : param.values[0]};
    const Coverage coverage = fastdeploy::coverage(entry, target);
    return coverage.covered == 1 ? "covered" : coverage.refused.at(0).first;
  };
  const std::string c16 = "multiquery_attention_c16", c8 = "multiquery_attention_c8";
  EXPECT_EQ(only(c16, {{"BLOCK_SHAPE_Q", 16}, {"ENABLE_PREFILL", 1}, {"CAUSAL", 1}}, 3), "covered");
  EXPECT_EQ(only(c16, {{"BLOCK_SHAPE_Q", 32}, {"ENABLE_PREFILL", 1}, {"CAUSAL", 0}}, 0), "covered") << "one query token sees all keys, causal or not";
  EXPECT_EQ(only(c16, {{"BLOCK_SHAPE_Q", 16}, {"ENABLE_PREFILL", 0}, {"CAUSAL", 1}}, 3), "covered") << "draft tokens";
  expect_mentions(only(c16, {{"BLOCK_SHAPE_Q", 16}, {"ENABLE_PREFILL", 0}, {"CAUSAL", 0}}, 3), {"CAUSAL 0 with several query tokens", "only 1"});
  expect_mentions(only(c16, {{"BLOCK_SHAPE_Q", 64}, {"ENABLE_PREFILL", 1}}, 3), {"kind prefill"});
  expect_mentions(only(c16, {{"BLOCK_SHAPE_Q", 128}, {"ENABLE_PREFILL", 0}}, 3), {"kind append"});
  expect_mentions(only(c16, {{"BLOCK_SHAPE_Q", 16}, {"ENABLE_PREFILL", 1}}, 4), {"out_dtype fp8_e4m3"});
  expect_mentions(only(c16, {{"BLOCK_SHAPE_Q", 16}, {"ENABLE_PREFILL", 1}}, 2), {"out_dtype int8"});
  expect_mentions(only(c8, {{"IsFP8", 1}, {"IsDynamicC8", 1}, {"ENABLE_PREFILL", 1}}, 3), {"kv_scale token_head"});
  expect_mentions(only(c8, {{"IsFP8", 0}, {"IsDynamicC8", 0}, {"ENABLE_PREFILL", 1}}, 3), {"kv_scale head"});
  expect_mentions(only("multiquery_attention_c4", {{"ENABLE_PREFILL", 1}}, 3), {"kv_scale channel"});
  expect_mentions(only("multiquery_decoder_attention", {{"HEAD_DIM_QK", 576}, {"HEAD_DIM_V", 512}}, 1), {"head_dim_v 512"});
  EXPECT_EQ(only("multiquery_decoder_attention", {{"GROUP_SIZE", 128}, {"HEAD_DIM_QK", 192}, {"HEAD_DIM_V", 128}}, 1), "covered");
}

// Fault: a template or a type of a later FastDeploy counts as one that is known.
TEST(FastDeployCoverage, WhatIsUnknownIsSaid) {
  const Target target = Target::by_name("sm_90a");
  const std::vector<Entry> entries = upstream();
  Entry entry = entry_of(entries, "multiquery_attention_c16");
  entry.dispatch_params.push_back({"HEADWISE", {0, 1}});
  Coverage coverage = fastdeploy::coverage(entry, target);
  ASSERT_EQ(coverage.refused.size(), 1u);
  expect_mentions(coverage.refused[0].first, {"MultiQueryAppendAttention has the dispatch parameters", "HEADWISE"});
  EXPECT_EQ(coverage.refused[0].second, 2 * 1920);
  EXPECT_NE(needs({entry}, model("llama-3.1-8b"), {}).unserved.at(0).reason.find("HEADWISE"), std::string::npos);

  entry = entry_of(entries, "multiquery_attention_c16");
  entry.function_name = "NewAttention";
  coverage = fastdeploy::coverage(entry, target);
  ASSERT_EQ(coverage.refused.size(), 1u);
  expect_mentions(coverage.refused[0].first, {"NewAttention is unknown", "MultiQueryAppendAttention, MultiQueryAppendC8Attention"});
  expect_mentions(needs({entry}, model("llama-3.1-8b"), {}).unserved.at(0).reason, {"no entry of MultiQueryAppendAttention"});

  entry = entry_of(entries, "multiquery_attention_c16");
  entry.data_types = {{"float", "float", "fp32"}};
  coverage = fastdeploy::coverage(entry, target);
  ASSERT_EQ(coverage.refused.size(), 1u);
  expect_mentions(coverage.refused[0].first, {"float to float", "unknown"});
}

// Faults: a kernel too many or one too few for a model whose dispatch is known from FastDeploy's sources.
TEST(FastDeployNeeds, OfErnie) {
  using Set = std::multiset<std::string>;
  const std::string begin = "MultiQueryAppendAttention<paddle::bfloat16, 5, 128, 64, 1, ";
  EXPECT_EQ(needed(model("ernie-4.5-21b-a3b")), (Set{begin + "16, 1, paddle::bfloat16, 1>", begin + "64, 4, paddle::bfloat16, 1>"}));
  EXPECT_EQ(needed(model("ernie-4.5-21b-a3b"), {CacheType::c16, true}), (Set{begin + "16, 1, paddle::bfloat16, 0>", begin + "64, 4, paddle::bfloat16, 1>"}));
  EXPECT_EQ(needed(model("ernie-4.5-21b-a3b", 2)), needed(model("ernie-4.5-21b-a3b"))) << "10/2 heads have the group size of 20/4";
  EXPECT_EQ(needed(model("ernie-4.5-21b-a3b"), {CacheType::c4, false}),
            (Set{"MultiQueryAppendC4Attention<paddle::bfloat16, 5, 128, 64, 1, 16, 1, paddle::bfloat16, 1>", "MultiQueryAppendC4Attention<paddle::bfloat16, 5, 128, 64, 1, 64, 4, paddle::bfloat16, 1>"}));
  const std::string c8 = "MultiQueryAppendC8Attention<paddle::bfloat16, 5, 128, 64, 1, ";
  for (const auto& [cache, end] : {std::pair{CacheType::c8, "1, 0, 0>"}, {CacheType::c8_fp8, "1, 1, 0>"}, {CacheType::c8_block_wise_fp8, "1, 1, 1>"}})
    EXPECT_EQ(needed(model("ernie-4.5-21b-a3b"), {cache, false}), (Set{c8 + "16, 1, paddle::bfloat16, " + end, c8 + "64, 4, paddle::bfloat16, " + end}));
}

// Fault: latent attention served by kernels of another shape, or by more than one.
TEST(FastDeployNeeds, OfLatentAttention) {
  EXPECT_EQ(needed(model("deepseek-v3")), (std::multiset<std::string>{"MultiQueryDecoderAttention<paddle::bfloat16, 128, 576, 512, 64, 1, 2, 16, 32>"}));
  EXPECT_EQ(needed(model("deepseek-v3", 8)), (std::multiset<std::string>{"MultiQueryDecoderAttention<paddle::bfloat16, 16, 576, 512, 64, 1, 2, 16, 32>"}));
  expect_mentions(unserved(model("deepseek-v3", 4)), {"GROUP_SIZE 32", "8, 16, 128"});
  expect_mentions(unserved(model("deepseek-v3"), {CacheType::c8, false}), {"latent attention has only the cache type c16"});
  expect_mentions(unserved(model("deepseek-v3"), {CacheType::c16, true}), {"one query token"});
  ModelAttention windowed = model("deepseek-v3");
  windowed.groups[0].spec.window = true;
  expect_mentions(unserved(windowed), {"windows in latent attention"});
  windowed.groups[0].spec.window = false;
  windowed.groups[0].spec.sinks = true;
  expect_mentions(unserved(windowed), {"learned sinks in latent attention"});
}

// Fault: a feature, type or shape that FastDeploy's kernels do not have is dropped, and the model would run wrong.
TEST(FastDeployNeeds, RefusesWhatTheKernelsLack) {
  expect_mentions(unserved(one_group(9, 3, 64)), {"multiquery_attention_c16", "GROUP_SIZE 3", "1, 2, 4, 5, 6, 7, 8, 12, 14, 16"});
  expect_mentions(unserved(one_group(32, 8, 96)), {"HEAD_DIM 96", "64, 128"});
  expect_mentions(unserved(one_group(32, 8, 64), {CacheType::c8, false}), {"multiquery_attention_c8", "HEAD_DIM 64"});
  expect_mentions(unserved(one_group(32, 8, 128, DType::fp32)), {"from fp32 to fp32", "paddle::bfloat16 to paddle::bfloat16", "torch_dtype"});
  expect_mentions(unserved(one_group(32, 8, 128, DType::fp16), {CacheType::c8_fp8, false}), {"only with bf16 queries, not with fp16"});
  expect_mentions(unserved(model("gemma-2-9b")), {"no soft cap"});
  ModelAttention odd = one_group(32, 8, 128);
  odd.groups[0].spec.alibi = true;
  expect_mentions(unserved(odd), {"no ALiBi"});
  odd = one_group(32, 8, 128);
  odd.groups[0].spec.block_sparse = true;
  expect_mentions(unserved(odd), {"no block-sparse masks"});
  odd = one_group(32, 8, 128);
  odd.groups[0].spec.page_size = 16;
  expect_mentions(unserved(odd), {"BLOCK_SIZE 16"});
  odd = one_group(32, 8, 128);
  odd.groups[0].spec.head_dim_v = 64;
  expect_mentions(unserved(odd), {"K has 128 dims and V 64"});
  odd = one_group(32, 8, 128);
  odd.groups[0].scale = 0.1;
  expect_mentions(unserved(odd), {"0.1", "1/sqrt(128) = 0.0883883"});
  odd.groups[0].scale = 0.08838834764831845;
  EXPECT_EQ(needed(odd).size(), 2u);
}

// Fault: layers that have a kernel lose it because others of the model have none.
TEST(FastDeployNeeds, OfSomeLayersOnly) {
  const Needs llama4 = needs(upstream(), model("llama-4-scout"), {});
  ASSERT_EQ(llama4.unserved.size(), 1u);
  EXPECT_EQ(llama4.unserved[0].layers.size(), 36u);
  expect_mentions(llama4.unserved[0].reason, {"no chunked attention"});
  EXPECT_EQ(llama4.instances.size(), 2u);
}

// Faults: a pruned file that instantiates more than was chosen, less, or something twice; files that overwrite each other; more files than a list of kernels needs.
TEST(FastDeployPruned, HoldsExactlyTheInstances) {
  const std::vector<Entry> entries = upstream();
  std::set<Instance> all;
  std::multiset<std::string> expected;
  for (const bool speculative : {false, true}) {
    for (const char* name : {"ernie-4.5-21b-a3b", "llama-3.2-1b", "qwen2-0.5b", "chatglm3-6b", "deepseek-v3"}) {
      if (speculative && name == std::string("deepseek-v3")) continue;
      const Needs one = needs(entries, model(name), {CacheType::c16, speculative});
      all.insert(one.instances.begin(), one.instances.end());
    }
  }
  for (const Instance& instance : all) expected.merge(generated(pruned(entries, {instance})));
  const std::vector<Entry> part = pruned(entries, all);
  EXPECT_EQ(expected.size(), 13u) << "4 models: prefill, decode, decode with drafts; and the latent one";
  EXPECT_EQ(generated(part), expected);
  const Generated written = generate(template_config_text(part));
  EXPECT_EQ(std::set<std::string>(written.files.begin(), written.files.end()).size(), written.files.size());
  EXPECT_LE(written.files.size(), 7u);
  EXPECT_EQ(generated(read_template_config("p.json", template_config_text(part))), expected);

  // A pruned file has several entries of one template: it can be pruned again.
  const Needs ernie = needs(part, model("ernie-4.5-21b-a3b"), {CacheType::c16, true});
  EXPECT_TRUE(ernie.unserved.empty());
  EXPECT_EQ(generated(pruned(part, ernie.instances)), needed(model("ernie-4.5-21b-a3b"), {CacheType::c16, true}));
  EXPECT_TRUE(pruned(entries, {}).empty());
}

// Fault: a new entry takes the name or the files of one that is there.
TEST(FastDeployPruned, NewEntriesHaveNamesOfTheirOwn) {
  const std::vector<Entry> entries = read_template_config("n.json", file_text(PAGETUNE_SOURCE_DIR "/tests/fuzz/corpus/template_config/names_that_meet.json"));
  const size_t other = entries[0].function_name == "Other" ? 0 : 1;
  const size_t known = 1 - other;
  // Indices of a type, GROUP_SIZE, HEAD_DIM, BLOCK_SIZE, CAUSAL, BLOCK_SHAPE_Q, ENABLE_PREFILL.
  const std::vector<Entry> part = pruned(entries, {{known, {0, 0, 0, 0, 0, 0, 0}}, {known, {0, 1, 0, 0, 0, 1, 1}}, {other, {0, 0}}});
  ASSERT_EQ(part.size(), 3u);
  EXPECT_EQ(part[0].name, "k");
  EXPECT_EQ(part[1].name, "k_3") << "k_2 is another entry, and the files k_2_bf16 are its";
  EXPECT_EQ(part[1].file_prefix, "k_3_");
  EXPECT_EQ(read_template_config("p.json", template_config_text(part)).size(), 3u);
}

// Fault: the whole file comes out in pieces.
TEST(FastDeployPruned, AWholeFileStaysWhole) {
  const std::vector<Entry> entries = upstream();
  const Entry& entry = entry_of(entries, "multiquery_decoder_attention");
  std::set<Instance> all;
  for (size_t type = 0; type < 2; ++type)
    for (size_t group = 0; group < 3; ++group)
      for (size_t k = 0; k < 4; ++k)
        for (size_t v = 0; v < 4; ++v)
          for (size_t causal = 0; causal < 2; ++causal)
            for (size_t deal = 0; deal < 2; ++deal) all.insert({static_cast<size_t>(&entry - entries.data()), {type, group, k, v, 0, causal, 0, 0, deal}});
  EXPECT_EQ(template_config_text(pruned(entries, all)), template_config_text({entry}));
}

// Fault: a name stands for another cache type.
TEST(FastDeployCacheType, HasNames) {
  EXPECT_EQ(cache_type_from_name("c16"), CacheType::c16);
  EXPECT_EQ(cache_type_from_name("c8"), CacheType::c8);
  EXPECT_EQ(cache_type_from_name("c8_fp8"), CacheType::c8_fp8);
  EXPECT_EQ(cache_type_from_name("c8_block_wise_fp8"), CacheType::c8_block_wise_fp8);
  EXPECT_EQ(cache_type_from_name("c4"), CacheType::c4);
  expect_mentions(error_text([] { cache_type_from_name("int8"); }), {"'int8'", "c16, c8, c8_fp8, c8_block_wise_fp8, c4"});
}

}  // namespace
