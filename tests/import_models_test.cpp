// The right answer for every shipped model, from the models' published descriptions: heads, dims, and what each layer attends to.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>

#include "import_support.hpp"

using namespace pagetune;
using namespace import_support;

namespace {

using LayerSet = std::function<bool(int)>;

LayerSet all() {
  return [](int) { return true; };
}
LayerSet every(int period) {  // the last of each period
  return [=](int i) { return (i + 1) % period == 0; };
}
LayerSet not_every(int period) {
  return [=](int i) { return (i + 1) % period != 0; };
}
LayerSet these(std::vector<int> layers) {
  return [=](int i) { return std::find(layers.begin(), layers.end(), i) != layers.end(); };
}
LayerSet except(std::vector<int> layers) {
  return [=](int i) { return std::find(layers.begin(), layers.end(), i) == layers.end(); };
}

struct Group {
  LayerSet layers;
  int window = 0, chunk = 0, sink_tokens = 0;
};

struct Model {
  int q, kv, dim_k, dim_v, num_layers;
  std::vector<Group> groups;
  int max_position = 0;
  double soft_cap = 0, scale = 0;
  bool sinks = false;
  DType dtype = DType::bf16;
};

const std::map<std::string, Model>& models() {
  static const std::map<std::string, Model> table = {
      {"llama-3.1-8b", {32, 8, 128, 128, 32, {{all()}}, 131072}},
      {"llama-3.1-70b", {64, 8, 128, 128, 80, {{all()}}, 131072}},
      {"llama-3.2-1b", {32, 8, 64, 64, 16, {{all()}}, 131072}},
      {"qwen2.5-7b", {28, 4, 128, 128, 28, {{all()}}, 32768}},
      {"qwen2-0.5b", {14, 2, 64, 64, 24, {{all()}}, 131072}},
      {"qwen3-0.6b", {16, 8, 128, 128, 28, {{all()}}, 40960}},
      {"qwen3-14b", {40, 8, 128, 128, 40, {{all()}}, 40960}},
      {"gpt-oss-20b", {64, 8, 64, 64, 24, {{not_every(2), 128}, {every(2)}}, 131072, 0, 0, true}},
      {"gpt-oss-120b", {64, 8, 64, 64, 36, {{not_every(2), 128}, {every(2)}}, 131072, 0, 0, true}},
      {"gemma-2-2b", {8, 4, 256, 256, 26, {{not_every(2), 4096}, {every(2)}}, 8192, 50, 0.0625}},
      {"gemma-2-9b", {16, 8, 256, 256, 42, {{not_every(2), 4096}, {every(2)}}, 8192, 50, 0.0625}},
      {"gemma-3-1b", {4, 1, 256, 256, 26, {{not_every(6), 512}, {every(6)}}, 32768, 0, 0.0625}},
      {"gemma-3-4b", {8, 4, 256, 256, 34, {{not_every(6), 1024}, {every(6)}}, 131072, 0, 0.0625}},
      {"embeddinggemma-300m", {3, 1, 256, 256, 24, {{not_every(6), 512}, {every(6)}}, 2048, 0, 0.0625, false, DType::fp32}},
      {"mistral-7b-v0.1", {32, 8, 128, 128, 32, {{all(), 4096}}, 32768}},
      {"phi-3-mini-4k", {32, 32, 96, 96, 32, {{all(), 2047}}, 4096}},
      {"ernie-4.5-21b-a3b", {20, 4, 128, 128, 28, {{all()}}, 131072}},
      {"falcon-7b", {71, 1, 64, 64, 32, {{all()}}}},
      {"falcon-40b", {128, 8, 64, 64, 60, {{all()}}}},
      {"starcoder", {48, 1, 128, 128, 40, {{all()}}, 8192, 0, 0, false, DType::fp32}},
      {"tiny-starcoder", {12, 1, 64, 64, 20, {{all()}}, 8192, 0, 0, false, DType::fp32}},
      {"smollm2-135m", {9, 3, 64, 64, 30, {{all()}}, 8192}},
      {"smollm2-360m", {15, 5, 64, 64, 32, {{all()}}, 8192}},
      {"chatglm3-6b", {32, 2, 128, 128, 28, {{all()}}, 8192, 0, 0, false, DType::fp16}},
      {"glm-4-9b", {32, 2, 128, 128, 40, {{all()}}, 8192}},
      {"command-r-v01", {64, 64, 128, 128, 40, {{all()}}, 8192, 0, 0, false, DType::fp16}},
      {"llama-4-scout", {40, 8, 128, 128, 48, {{not_every(4), 0, 8192}, {every(4)}}, 10485760}},
      {"minimax-m3", {64, 4, 128, 128, 60, {{these({0, 1, 2})}}, 524288}},
      {"hymba-1.5b", {25, 5, 64, 128, 32, {{these({0, 15, 31})}, {except({0, 15, 31}), 1024, 0, 128}}, 8192}},
      {"nemotron-nano-9b-v2", {40, 8, 128, 128, 56, {{these({14, 21, 30, 39})}}, 131072}},
      // 1/sqrt(192) times the square of YaRN's 0.1 ln(40) + 1
      {"deepseek-v3", {128, 1, 576, 512, 61, {{all()}}, 163840, 0, 0.1352337788608801}},
      {"qwen3.5-27b", {24, 4, 256, 256, 64, {{every(4)}}, 262144}},
  };
  return table;
}

// Fault caught: a model file whose answer nobody has written down, or a row without its file.
TEST(ImportModels, TableNamesExactlyTheShippedFiles) {
  std::vector<std::string> files, rows;
  for (const auto& entry : std::filesystem::directory_iterator(models_folder())) {
    if (entry.path().extension() == ".json") files.push_back(entry.path().stem());
  }
  for (const auto& [name, model] : models()) rows.push_back(name);
  std::sort(files.begin(), files.end());
  EXPECT_EQ(files, rows);
}

class ImportModels : public testing::TestWithParam<std::string> {};

// Fault caught: any wrong head count, head dim, window, chunk, cap or scale in any layer of a model that people load.
TEST_P(ImportModels, IsDescribedRightly) {
  const Model& want = models().at(GetParam());
  ModelAttention got = import_shipped(GetParam());
  EXPECT_EQ(got.q_heads, want.q);
  EXPECT_EQ(got.kv_heads, want.kv);
  EXPECT_EQ(got.num_layers, want.num_layers);
  EXPECT_EQ(got.max_position, want.max_position);
  ASSERT_EQ(got.groups.size(), want.groups.size());
  for (size_t g = 0; g < want.groups.size(); ++g) {
    SCOPED_TRACE(fmt::format("group {}", g));
    const LayerGroup& group = got.groups[g];
    AttentionSpec spec;
    spec.q_heads = want.q;
    spec.kv_heads = want.kv;
    spec.head_dim_k = want.dim_k;
    spec.head_dim_v = want.dim_v;
    spec.q_dtype = spec.kv_dtype = spec.out_dtype = want.dtype;
    spec.window = want.groups[g].window > 0;
    spec.chunk = want.groups[g].chunk > 0;
    spec.sink_tokens = want.groups[g].sink_tokens > 0;
    spec.sinks = want.sinks;
    spec.soft_cap = want.soft_cap > 0;
    EXPECT_EQ(canonical_json(group.spec), canonical_json(spec));
    EXPECT_EQ(group.window, want.groups[g].window);
    EXPECT_EQ(group.chunk, want.groups[g].chunk);
    EXPECT_EQ(group.sink_tokens, want.groups[g].sink_tokens);
    EXPECT_DOUBLE_EQ(group.soft_cap, want.soft_cap);
    EXPECT_NEAR(group.scale, want.scale, 1e-12);
    std::vector<int> layers;
    for (int i = 0; i < want.num_layers; ++i) {
      if (want.groups[g].layers(i)) layers.push_back(i);
    }
    EXPECT_EQ(group.layers, layers);
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all_names;
  for (const auto& [name, model] : models()) all_names.push_back(name);
  return all_names;
}

INSTANTIATE_TEST_SUITE_P(Shipped, ImportModels, testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
});

struct RankCase {
  const char* model;
  int tp, q, kv;
};

// Fault caught: a fraction of a KV head per rank (8 heads at tp 16 as 0.5, 4 at tp 8 as an error at run time), or the model's head counts
// recomputed as rank x tp (2 KV heads at tp 4 become 4).
TEST(ImportTensorParallel, SplitsOrReplicates) {
  const std::string heads4 = R"({"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2})";
  for (const RankCase& c : {RankCase{"llama-3.1-70b", 8, 8, 1}, RankCase{"llama-3.1-70b", 16, 4, 1}, RankCase{"glm-4-9b", 4, 8, 1},
                            RankCase{"minimax-m3", 4, 16, 1}, RankCase{"deepseek-v3", 8, 16, 1}, RankCase{"smollm2-135m", 3, 3, 1}}) {
    ModelAttention whole = import_shipped(c.model);
    ModelAttention rank = import_shipped(c.model, {.tp = c.tp});
    EXPECT_EQ(rank.groups.at(0).spec.q_heads, c.q) << c.model;
    EXPECT_EQ(rank.groups.at(0).spec.kv_heads, c.kv) << c.model;
    EXPECT_EQ(rank.q_heads, whole.q_heads) << c.model;
    EXPECT_EQ(rank.kv_heads, whole.kv_heads) << c.model;
  }
  AttentionSpec replicated = import_text(heads4, {.tp = 8}).groups.at(0).spec;
  EXPECT_EQ(replicated.q_heads, 4);
  EXPECT_EQ(replicated.kv_heads, 1);
}

// Fault caught: odd head counts silently rounded; a message without the file, the heads and the tp.
TEST(ImportTensorParallel, RefusesWhatDoesNotDivide) {
  for (const auto& [name, tp] : std::map<std::string, int>{{"smollm2-135m", 2}, {"hymba-1.5b", 2}, {"falcon-7b", 2}, {"llama-3.1-8b", 0}}) {
    std::string sentence = error_of(read_model(name), {.tp = tp});
    EXPECT_NE(sentence.find("c.json: "), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(fmt::format("tp {}", tp == 0 ? "is 0" : std::to_string(tp))), std::string::npos) << sentence;
  }
}

// Fault caught: options that do not reach the spec; a cache dtype taken for the query's; a quantised cache without scales.
TEST(ImportOptionsTest, ReachEverySpec) {
  ModelAttention model = import_shipped("gpt-oss-20b", {.page_size = 784, .kv_dtype = "fp8_e4m3", .layout = Layout::hnd, .lse = true});
  for (const LayerGroup& group : model.groups) {
    EXPECT_EQ(group.spec.page_size, 784);
    EXPECT_EQ(group.spec.kv_dtype, DType::fp8_e4m3);
    EXPECT_EQ(group.spec.kv_scale, ScaleGranularity::tensor);
    EXPECT_EQ(group.spec.q_dtype, DType::bf16);
    EXPECT_EQ(group.spec.out_dtype, DType::bf16);
    EXPECT_EQ(group.spec.layout, Layout::hnd);
    EXPECT_TRUE(group.spec.lse);
  }
}

}  // namespace
