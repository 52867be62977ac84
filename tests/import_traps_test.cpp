// Each way in which real configs mislead a reader, as a case of its own with the wrong answer named.
#include <cmath>

#include "import_support.hpp"

using namespace pagetune;
using namespace import_support;

namespace {

// A model of `layers` layers, 8/2 heads of 64, with more keys.
std::string config(const std::string& more, int layers = 4) {
  return R"({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": )" + std::to_string(layers) +
         (more.empty() ? "" : ", " + more) + "}";
}

using Indices = std::vector<int>;

// The layers with this window, 0 for full ones.
Indices layers_with_window(const ModelAttention& model, int window) {
  for (const LayerGroup& group : model.groups) {
    if (group.window == window && group.chunk == 0) return group.layers;
  }
  return {};
}

// Fault caught: head_dim derived although it is stated (64 for Qwen3-0.6B, 45 for gpt-oss, 224 for Gemma-2-9B, 96 for MiniMax-M3, 112
// for Nemotron): K and V are written over other memory.
TEST(ImportTraps, StatedHeadDimWins) {
  for (const char* name : {"qwen3-0.6b", "minimax-m3", "nemotron-nano-9b-v2"}) {
    EXPECT_EQ(import_shipped(name).groups.at(0).spec.head_dim_k, 128) << name;
  }
  EXPECT_EQ(import_shipped("gpt-oss-20b").groups.at(0).spec.head_dim_k, 64);
  EXPECT_EQ(import_shipped("gemma-2-9b").groups.at(0).spec.head_dim_k, 256);
}

// Fault caught: a window read as an inclusive distance (W + 1) or converted twice (W - 1): 2047 and 4096 are counts with self.
TEST(ImportTraps, WindowIsACount) {
  EXPECT_EQ(import_shipped("phi-3-mini-4k").groups.at(0).window, 2047);
  EXPECT_EQ(import_shipped("mistral-7b-v0.1").groups.at(0).window, 4096);
  EXPECT_EQ(import_text(config(R"("sliding_window": 1)")).groups.at(0).window, 1);
}

// Fault caught: Qwen2.5's 131072 taken for a window while use_sliding_window is false, or absent in a Qwen2 file.
TEST(ImportTraps, SwitchedOffWindow) {
  EXPECT_EQ(import_shipped("qwen2.5-7b").groups.at(0).window, 0);
  EXPECT_FALSE(import_shipped("qwen2.5-7b").groups.at(0).spec.window);
  ModelAttention absent = import_text(config(R"("model_type": "qwen2", "sliding_window": 4096)"));
  EXPECT_EQ(absent.groups.at(0).window, 0);
  EXPECT_TRUE(has_note(absent, "use_sliding_window"));
}

// Fault caught: max_window_layers read as the number of windowed layers: the layers below it are full.
TEST(ImportTraps, MaxWindowLayersAreFull) {
  auto model = import_text(config(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 3)"));
  EXPECT_EQ(layers_with_window(model, 0), (Indices{0, 1, 2}));
  EXPECT_EQ(layers_with_window(model, 32), (Indices{3}));
}

// Fault caught: Mistral v0.2's explicit null replaced by the class's 4096; the absent key of an old file left without it.
TEST(ImportTraps, NullIsAStatement) {
  EXPECT_EQ(import_text(config(R"("model_type": "mistral", "sliding_window": null)")).groups.at(0).window, 0);
  EXPECT_EQ(import_text(config(R"("model_type": "mistral")")).groups.at(0).window, 4096);
}

// Fault caught: num_key_value_heads null (Command-R) read as 0, 1 or an error: it means one KV head per query head.
TEST(ImportTraps, NullKvHeadsMeansAllHeads) {
  ModelAttention model = import_shipped("command-r-v01");
  EXPECT_EQ(model.kv_heads, 64);
  EXPECT_TRUE(has_note(model, "every one of the 64 query heads"));
}

// Fault caught: logit_scale 0.0625 (Command-R) and final_logit_softcapping 30 (Gemma 2) taken for the attention's.
TEST(ImportTraps, VocabularyLogitKeysAreNotTheAttentions) {
  EXPECT_EQ(import_shipped("command-r-v01").groups.at(0).scale, 0);
  EXPECT_EQ(import_shipped("gemma-2-2b").groups.at(0).soft_cap, 50);
  auto only_final = import_text(config(R"("final_logit_softcapping": 30.0)"));
  EXPECT_EQ(only_final.groups.at(0).soft_cap, 0);
  EXPECT_FALSE(only_final.groups.at(0).spec.soft_cap);
}

// Fault caught: 1/sqrt(head_dim) where the file states another scale: Gemma-2-27B (144), Granite's multiplier, MPT, GPT-2's switch.
TEST(ImportTraps, StatedScales) {
  EXPECT_DOUBLE_EQ(import_text(config(R"("query_pre_attn_scalar": 144)")).groups.at(0).scale, 1.0 / 12);
  EXPECT_DOUBLE_EQ(import_text(config(R"("attention_multiplier": 0.015625)")).groups.at(0).scale, 0.015625);
  EXPECT_DOUBLE_EQ(import_text(config(R"("attn_config": {"softmax_scale": 0.5})")).groups.at(0).scale, 0.5);
  EXPECT_DOUBLE_EQ(import_text(config(R"("scale_attn_weights": false)")).groups.at(0).scale, 1);
  EXPECT_DOUBLE_EQ(import_text(config(R"("scale_qk_dot_by_d": true)")).groups.at(0).scale, 1.0 / 64);
  auto by_layer = import_text(config(R"("scale_attn_by_inverse_layer_idx": true)", 2));
  ASSERT_EQ(by_layer.groups.size(), 2U);
  EXPECT_DOUBLE_EQ(by_layer.groups[0].scale, 0.125);
  EXPECT_DOUBLE_EQ(by_layer.groups[1].scale, 0.0625);
}

// Fault caught: a partial last period dropped or shifted: Gemma-3-1B's 26 layers have full ones at 5, 11, 17 and 23, and 24, 25 windowed.
TEST(ImportTraps, PartialLastPeriod) {
  ModelAttention model = import_shipped("gemma-3-1b");
  EXPECT_EQ(layers_with_window(model, 0), (Indices{5, 11, 17, 23}));
  EXPECT_EQ(layers_with_window(model, 512).back(), 25);
}

// Fault caught: a pattern used where the newer layer_types says otherwise; "LLLG" strings; EXAONE's last layer.
TEST(ImportTraps, LayerListsAndPatterns) {
  auto list = import_text(config(
      R"("sliding_window": 16, "sliding_window_pattern": 2, "layer_types": ["full_attention","sliding_attention","sliding_attention","full_attention"])"));
  EXPECT_EQ(layers_with_window(list, 0), (Indices{0, 3}));
  auto letters = import_text(config(R"("sliding_window": 16, "sliding_window_pattern": "LLG")", 5));
  EXPECT_EQ(layers_with_window(letters, 0), (Indices{2, 4}));
  auto chunks = import_text(config(
      R"("attention_chunk_size": 32, "layer_types": ["chunked_attention","full_attention","chunked_attention","chunked_attention"])"));
  EXPECT_EQ(chunks.groups.at(0).layers, (Indices{0, 2, 3}));
  EXPECT_EQ(chunks.groups.at(0).chunk, 32);
  auto longer = import_text(config(R"("layer_types": ["full_attention","full_attention","full_attention","full_attention","full_attention"])"));
  EXPECT_EQ(longer.groups.at(0).layers.size(), 4U);
  EXPECT_TRUE(has_note(longer, "the first 4 count"));
}

// Fault caught: Falcon-7B as 71 KV heads; Falcon-40B and its older type as 1; ChatGLM's multi_query_attention as 1.
TEST(ImportTraps, MultiQuery) {
  EXPECT_EQ(import_shipped("falcon-7b").kv_heads, 1);
  EXPECT_EQ(import_shipped("falcon-40b").kv_heads, 8);
  EXPECT_EQ(import_shipped("chatglm3-6b").kv_heads, 2);
  EXPECT_EQ(import_text(R"({"model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "multi_query": true, "hidden_size": 8192, "n_layer": 60})")
                .kv_heads,
            8);
  EXPECT_EQ(import_text(R"({"model_type": "gpt_bigcode", "n_head": 8, "n_embd": 512, "n_layer": 1, "multi_query": false})").kv_heads, 8);
  EXPECT_EQ(import_text(R"({"model_type": "gpt_bigcode", "n_head": 8, "n_embd": 512, "n_layer": 1})").kv_heads, 1);
  EXPECT_EQ(import_text(R"({"n_heads": 8, "d_model": 512, "n_layers": 1, "attn_config": {"kv_n_heads": 2}})").kv_heads, 2);
  EXPECT_EQ(import_text(R"({"n_heads": 8, "d_model": 512, "n_layers": 1, "attn_config": {"attn_type": "multiquery_attention"}})").kv_heads, 1);
  EXPECT_EQ(import_text(R"({"num_attention_heads": 8, "kv_channels": 64, "num_layers": 1, "multi_query_attention": false, "multi_query_group_num": 2})")
                .kv_heads,
            8);
}

// Fault caught: the vision tower's 16 heads read instead of the nested text_config; its omitted head counts missed (Gemma-3-4B).
TEST(ImportTraps, NestedLanguageModel) {
  ModelAttention model = import_shipped("gemma-3-4b");
  EXPECT_EQ(model.q_heads, 8);
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_TRUE(has_note(model, "text_config.num_attention_heads"));
  EXPECT_EQ(import_text(R"({"torch_dtype": "float16", "text_config": )" + config("") + "}").groups.at(0).spec.q_dtype, DType::fp16);
}

// Fault caught: an empty no_rope_layers read as "no layer is chunked"; 1 read as "without rotary positions".
TEST(ImportTraps, ChunkedLayers) {
  ModelAttention derived = import_shipped("llama-4-scout");
  EXPECT_EQ(derived.groups.at(0).chunk, 8192);
  EXPECT_EQ(derived.groups.at(0).layers.size(), 36U);
  auto stated = import_text(config(R"("attention_chunk_size": 16, "no_rope_layers": [1, 0, 0, 1])"));
  EXPECT_EQ(stated.groups.at(0).layers, (Indices{0, 3}));
  EXPECT_EQ(stated.groups.at(0).chunk, 16);
  auto off = import_text(config(R"("model_type": "llama4_text", "attention_chunk_size": null, "no_rope_layers": [])"));
  ASSERT_EQ(off.groups.size(), 1U);
  EXPECT_FALSE(off.groups[0].spec.chunk);
}

// Fault caught: gpt-oss without its sinks, which no key of the file mentions; sinks for another model.
TEST(ImportTraps, SinksFollowTheModelType) {
  for (const LayerGroup& group : import_shipped("gpt-oss-120b").groups) EXPECT_TRUE(group.spec.sinks);
  EXPECT_FALSE(import_shipped("llama-3.1-8b").groups.at(0).spec.sinks);
}

// Fault caught: Hymba's kq_head_dim -1 used as a dim, V as wide as K, memory tokens outside the window lost.
TEST(ImportTraps, HymbaKeepsMemoryTokensAndTwoDims) {
  ModelAttention model = import_shipped("hymba-1.5b");
  ASSERT_EQ(model.groups.size(), 2U);
  EXPECT_EQ(model.groups[1].spec.head_dim_k, 64);
  EXPECT_EQ(model.groups[1].spec.head_dim_v, 128);
  EXPECT_EQ(model.groups[1].sink_tokens, 128);
  EXPECT_FALSE(model.groups[0].spec.sink_tokens);
}

// Fault caught: 128/128 heads of 192 or 64 for DeepSeek-V3, or the scale 1/sqrt(576) of the latent dim, or 1/sqrt(192) without YaRN.
TEST(ImportTraps, LatentAttention) {
  ModelAttention model = import_shipped("deepseek-v3");
  const AttentionSpec& spec = model.groups.at(0).spec;
  EXPECT_EQ(spec.kv_heads, 1);
  EXPECT_EQ(spec.head_dim_k, 576);
  EXPECT_EQ(spec.head_dim_v, 512);
  double magnitude = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(model.groups[0].scale, magnitude * magnitude / std::sqrt(192.0), 1e-12);
  auto plain = import_text(
      R"({"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64})");
  EXPECT_NEAR(plain.groups.at(0).scale, 1 / std::sqrt(192.0), 1e-12);
}

// Fault caught: Mamba, linear, MLP and block-sparse layers counted as attention, or dropped without a word.
TEST(ImportTraps, LayersWithoutThisAttentionAreLeftOut) {
  EXPECT_TRUE(has_note(import_shipped("minimax-m3"), "57 of 60 layers are left out"));
  EXPECT_TRUE(has_note(import_shipped("minimax-m3"), "(3-59)"));
  EXPECT_TRUE(has_note(import_shipped("nemotron-nano-9b-v2"), "52 of 56 layers are left out"));
  auto layers = [](const std::string& more) { return import_text(config(more, 8)).groups.at(0).layers; };
  EXPECT_EQ(layers(R"("full_attention_interval": 4)"), (Indices{3, 7}));
  EXPECT_EQ(layers(R"("attn_layer_period": 4, "attn_layer_offset": 1)"), (Indices{1, 5}));
  EXPECT_EQ(layers(R"("attn_layer_indices": [2])"), (Indices{2}));
  EXPECT_EQ(layers(R"("full_attn_idxs": [0, 6])"), (Indices{0, 6}));
  EXPECT_EQ(layers(R"("attn_type_list": [0,0,0,1,0,0,0,1])"), (Indices{3, 7}));
  auto recurrent = import_text(config(R"("block_types": ["recurrent","recurrent","attention"], "attention_window_size": 2048)", 8));
  EXPECT_EQ(layers_with_window(recurrent, 2048), (Indices{2, 5}));
}

// Fault caught: a model with ALiBi described without it; ALiBi for a file whose flag is false.
TEST(ImportTraps, Alibi) {
  for (const char* more : {R"("alibi": true)", R"("model_type": "bloom")", R"("position_embedding_type": "alibi")",
                           R"("attn_config": {"alibi": true})", R"("model_type": "baichuan", "hidden_size": 5120)"}) {
    EXPECT_TRUE(import_text(config(more)).groups.at(0).spec.alibi) << more;
  }
  EXPECT_FALSE(import_shipped("falcon-7b").groups.at(0).spec.alibi);
  EXPECT_FALSE(import_text(config(R"("model_type": "baichuan", "hidden_size": 4096)")).groups.at(0).spec.alibi);
}

// Fault caught: Python's Infinity and NaN, which Mamba configs hold under keys nobody reads, refusing the whole file; text inside strings
// changed.
TEST(ImportTraps, NonFiniteNumbersOfPython) {
  auto model = import_text(config(R"("time_step_limit": [0.0, Infinity, -Infinity, NaN], "architectures": ["NaN\"Infinity"])"));
  EXPECT_EQ(model.name, "NaN\"Infinity");
}

// Fault caught: a dtype under its newer key, or with the module's prefix, missed; an assumption made silently.
TEST(ImportTraps, Dtypes) {
  auto dtype = [](const std::string& more) { return import_text(config(more)).groups.at(0).spec.kv_dtype; };
  EXPECT_EQ(dtype(R"("dtype": "float16")"), DType::fp16);
  EXPECT_EQ(dtype(R"("torch_dtype": "torch.float32")"), DType::fp32);
  EXPECT_EQ(dtype(""), DType::bf16);
  EXPECT_TRUE(has_note(import_text(config("")), "bfloat16 is assumed"));
}

}  // namespace
