// Every refusal is one sentence with file, key, value and what is allowed.
#include <algorithm>

#include "import_support.hpp"

using namespace pagetune;
using namespace import_support;

namespace {

struct Refusal {
  const char* text;
  std::vector<const char*> parts;  // all must stand in the sentence
};

void expect_refusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    std::string sentence = error_of(refusal.text);
    EXPECT_EQ(sentence.rfind("c.json:", 0), 0U) << sentence;
    for (const char* part : refusal.parts) EXPECT_NE(sentence.find(part), std::string::npos) << sentence << "\n  lacks " << part;
  }
}

// Fault caught: a bad number wrapped, truncated or taken for a default.
TEST(ImportErrors, Numbers) {
  expect_refusals({
      {R"({"hidden_size": 64})", {"\"num_attention_heads\" is missing", "an integer from 1 to 4096"}},
      {R"({"num_attention_heads": null})", {"\"num_attention_heads\" is null"}},
      {R"({"num_attention_heads": 0})", {"\"num_attention_heads\" is 0", "an integer from 1 to 4096"}},
      {R"({"num_attention_heads": -8})", {"is -8"}},
      {R"({"num_attention_heads": 8.5})", {"is 8.5"}},
      {R"({"num_attention_heads": 8.0})", {"is 8.0"}},
      {R"({"num_attention_heads": "8"})", {"is \"8\" (a string)"}},
      {R"({"num_attention_heads": true})", {"is true"}},
      {R"({"num_attention_heads": [8]})", {"is an array of 1"}},
      {R"({"num_attention_heads": 4294967304})", {"is 4294967304"}},
      {R"({"num_attention_heads": 18446744073709551615})", {"is 18446744073709551615"}},
      {R"({"num_attention_heads": 1e300})", {"is 1e+300"}},
      {R"({"num_attention_heads": 99999999999999999999999})", {"e+22", "an integer from 1 to 4096"}},
      {R"({"n_head": 0})", {"\"n_head\" is 0"}},
      {R"({"text_config": {"num_attention_heads": 0}})", {"\"text_config.num_attention_heads\" is 0"}},
      {R"({"num_attention_heads": 8, "n_head": 4})", {"\"n_head\" is 4", "must equal \"num_attention_heads\", which is 8"}},
      {R"({"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 4, "sliding_window": 0})", {"\"sliding_window\" is 0"}},
      {R"({"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 4, "attn_logit_softcapping": -1})", {"\"attn_logit_softcapping\" is -1"}},
      {R"({"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 100000})", {"\"num_hidden_layers\" is 100000", "1 to 1024"}},
  });
}

// Fault caught: shapes that cannot be, accepted by integer division.
TEST(ImportErrors, Shapes) {
  expect_refusals({
      {R"({"num_attention_heads": 64, "num_hidden_layers": 1, "hidden_size": 2881})", {"2881 is not a multiple of the 64", "head_dim"}},
      {R"({"num_attention_heads": 64, "num_hidden_layers": 1})", {"\"head_dim\" is missing"}},
      {R"({"num_attention_heads": 8, "num_key_value_heads": 3, "head_dim": 64})", {"8 query heads are not a multiple of 3 KV heads"}},
      {R"({"num_attention_heads": 2, "num_key_value_heads": 4, "head_dim": 64})", {"2 query heads", "4 KV heads"}},
      {R"({"num_attention_heads": 8, "head_dim": 64})", {"\"num_hidden_layers\" is missing"}},
      {R"({"num_attention_heads": 8, "kv_lora_rank": 512})", {"\"qk_rope_head_dim\" is missing"}},
      {R"({"num_attention_heads": 8, "head_dim": 64, "global_head_dim": 512})", {"\"global_head_dim\"", "a shape of their own"}},
  });
}

// Fault caught: a list that does not fit its model used by index, an unknown word taken for attention.
TEST(ImportErrors, Layers) {
  const std::string head = R"({"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 2, )";
  auto expect = [&](const std::string& more, const std::vector<const char*>& parts) {
    expect_refusals({{(head + more + "}").c_str(), parts}});
  };
  expect(R"("layer_types": ["full_attention"])", {"\"layer_types\" is an array of 1", "each of the 2 layers"});
  expect(R"("layer_types": ["full_attention", "astral"])", {"\"astral\"", "sliding_attention"});
  expect(R"("layer_types": ["full_attention", 3])", {"\"layer_types[1]\" is 3"});
  expect(R"("layer_types": ["full_attention", "sliding_attention"])", {"\"sliding_window\" is missing", "names sliding windows"});
  expect(R"("layer_types": ["full_attention", "chunked_attention"])", {"\"attention_chunk_size\" is missing"});
  expect(R"("layer_types": ["mamba", "mamba"])", {"none of the 2 layers", "2 of 2 layers are left out"});
  expect(R"("hybrid_override_pattern": "M*-")", {"3 letters", "each of the 2 layers"});
  expect(R"("hybrid_override_pattern": "MX")", {"\"MX\"", "* (attention)"});
  expect(R"("attn_layer_indices": [2])", {"\"attn_layer_indices[0]\" is 2", "0 to 1"});
  expect(R"("sliding_window": 8, "global_attn_idx": [-1])", {"\"global_attn_idx[0]\" is -1"});
  expect(R"("sliding_window": 8, "sliding_window_pattern": "")", {"\"sliding_window_pattern\""});
  expect(R"("attention_chunk_size": 8, "no_rope_layers": [1])", {"\"no_rope_layers\"", "2 layers"});
  expect(R"("sparse_attention_config": {"use_sparse_attention": true})", {"\"sparse_attention_config.sparse_attention_freq\" is missing"});
  expect(R"("is_encoder_decoder": true)", {"is_encoder_decoder"});
  expect(R"("torch_dtype": "float64")", {"\"torch_dtype\" is \"float64\"", "bfloat16, float16 or float32"});
  expect(R"("index_topk": 2048)", {"none of the 2 layers", "sparse"});
}

// Fault caught: a half-read or wrongly located file; the last of two equal keys silently winning; a crash or a wait on hostile input.
TEST(ImportErrors, Text) {
  expect_refusals({
      {"", {"c.json:1:1:", "not valid JSON"}},
      {"{\n  \"a\": 1,\n}", {"c.json:3:1:"}},
      {"{\n  \"a\": [NaN, Infinity], x\n}", {"c.json:2:25:"}},
      {"{\"a\": 1", {"c.json:1:8:"}},
      {"{\"a\": \"\xff\"}", {"c.json:1:8:"}},
      {"[1]", {"the document is array"}},
      {"\xEF\xBB\xBF{}", {"byte-order mark"}},
      {R"({"num_attention_heads": 8, "num_attention_heads": 16})", {"\"num_attention_heads\" stands twice"}},
      {R"({"text_config": 3, "num_attention_heads": 8, "head_dim": 1e999})", {"c.json:1:"}},
  });
  std::string deep = R"({"a": )" + std::string(64, '[') + std::string(64, ']') + "}";
  EXPECT_NE(error_of(deep).find("more than 64 levels"), std::string::npos);
  EXPECT_NE(error_of(std::string(1000000, '[')).find("more than 64 levels"), std::string::npos);
  EXPECT_NE(error_of(std::string((1 << 20) + 1, ' ')).find("1048577 bytes"), std::string::npos);
  std::string at_the_limit = R"({"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 1, "a": )" + std::string(63, '[') +
                             std::string(63, ']') + "}";
  EXPECT_EQ(import_text(at_the_limit).q_heads, 8);
}

// Fault caught: options passed on unchecked.
TEST(ImportErrors, Options) {
  std::string text = read_model("llama-3.1-8b");
  EXPECT_NE(error_of(text, {.page_size = 0}).find("page size is 0"), std::string::npos);
  EXPECT_NE(error_of(text, {.kv_dtype = "fp7"}).find("fp7"), std::string::npos);
}

// Fault caught: sentences that run over lines or carry bytes a terminal would act on.
TEST(ImportErrors, AreOnePrintableLine) {
  for (const char* text : {"{\"num_attention_heads\": \"\x1b[31m\\u001b\\n\"}", "{\"a\": \"\x1b[31m", "{\"num_attention_heads\": \"a\\nb\"}",
                           "{\"\\u0007\": 1, \"\\u0007\": 2}"}) {
    std::string sentence = error_of(text);
    EXPECT_TRUE(std::none_of(sentence.begin(), sentence.end(), [](unsigned char c) { return c < 0x20; })) << sentence;
  }
}

}  // namespace
