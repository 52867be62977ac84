#include "codegen/import/heads.hpp"

#include <fmt/format.h>

#include <cmath>

#include "pagetune/error.hpp"

namespace pagetune::importer {
namespace {

// Shapes that differ between the layers of one model under keys that this importer does not read: reading only the usual keys would
// describe some layers wrongly.
void refuse_unread_shapes(const Fields& fields) {
  for (const char* key : {"global_head_dim", "num_global_key_value_heads", "swa_num_attention_heads", "swa_num_key_value_heads",
                          "swa_head_dim", "num_key_value_heads_per_layer", "block_configs"}) {
    if (fields.stated({key})) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: \"{}\" gives some layers a shape of their own, which the importer cannot describe "
                                                      "yet; describe the model with one shape per file",
                                                      fields.file(), fields.name(key)));
    }
  }
}

int read_q_heads(const Fields& fields) {
  const Keys keys = {"num_attention_heads", "n_head", "num_heads", "n_heads"};
  auto heads = fields.integer(keys, 1, kMaxHeads);
  if (!heads) {
    fields.refuse("num_attention_heads",
                  fmt::format("an integer from 1 to {} is needed (also read: n_head, num_heads, n_heads)", kMaxHeads));
  }
  return *heads;
}

// ChatGLM: multi_query_attention says that multi_query_group_num counts, not that there is one KV head.
std::optional<int> chatglm_kv_heads(const Fields& fields) {
  auto groups = fields.integer({"multi_query_group_num"}, 1, kMaxHeads);
  if (!groups || !fields.flag({"multi_query_attention"}).value_or(false)) return std::nullopt;
  return groups;
}

// MPT and DBRX keep theirs one level down.
std::optional<int> nested_kv_heads(const Fields& fields) {
  Fields attention = fields.object("attn_config");
  if (attention.is_text({"attn_type"}) && *attention.text({"attn_type"}) == "multiquery_attention") return 1;
  return attention.integer({"kv_n_heads"}, 1, kMaxHeads);
}

int read_kv_heads(const Fields& fields, const std::string& model_type, int q_heads, std::vector<std::string>& notes) {
  // Falcon and gpt_bigcode: multi_query means one KV head whatever num_kv_heads says, save in Falcon's newer decoder ("RefinedWeb" was
  // the 40B's type before the flag existed).
  bool new_decoder = fields.flag({"new_decoder_architecture"}).value_or(false) || model_type == "RefinedWeb";
  if (!new_decoder && fields.flag({"multi_query"}).value_or(false)) return 1;
  if (auto heads = chatglm_kv_heads(fields)) return *heads;
  if (auto heads = nested_kv_heads(fields)) return *heads;
  if (auto heads = fields.integer({"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"}, 1, kMaxHeads)) return *heads;
  notes.push_back(fmt::format("no number of KV heads is stated: every one of the {} query heads has its own", q_heads));
  return q_heads;
}

// -1 is how Hymba writes "derive it".
std::optional<int> dim_or_derive(const Fields& fields, Keys keys) {
  auto dim = fields.integer(keys, -1, kMaxHeadDim);
  if (dim && *dim == 0) fields.refuse(*keys.begin(), fmt::format("an integer from 1 to {}, or -1 to derive it, is allowed", kMaxHeadDim));
  return dim && *dim > 0 ? dim : std::nullopt;
}

int read_head_dim(const Fields& fields, int q_heads, std::vector<std::string>& notes) {
  if (auto dim = fields.integer({"head_dim", "kv_channels", "attention_head_size", "attention_head_dim"}, 1, kMaxHeadDim)) return *dim;
  auto hidden = fields.integer({"hidden_size", "n_embd", "d_model"}, 1, kMaxHeads * kMaxHeadDim / 2);
  if (!hidden) {
    fields.refuse("head_dim", fmt::format("an integer from 1 to {} is needed where hidden_size is not stated either", kMaxHeadDim));
  }
  if (*hidden % q_heads != 0) {
    fields.refuse_all(fmt::format("the hidden size {} is not a multiple of the {} query heads and \"{}\" is not stated; state head_dim",
                                  *hidden, q_heads, fields.name("head_dim")));
  }
  notes.push_back(fmt::format("head_dim is not stated: {} = hidden size {} / {} query heads", *hidden / q_heads, *hidden, q_heads));
  return *hidden / q_heads;
}

// DeepSeek multiplies the softmax scale by the square of YaRN's magnitude: (0.1 * mscale_all_dim * ln(factor) + 1)^2.
double yarn_magnitude_squared(const Fields& fields) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Fields rope = fields.object(key);
    auto all_dim = rope.positive_number({"mscale_all_dim"});
    auto factor = rope.positive_number({"factor"});
    if (!all_dim || !factor || *factor <= 1) continue;
    double magnitude = 0.1 * *all_dim * std::log(*factor) + 1;
    return magnitude * magnitude;
  }
  return 1;
}

// Multi-head latent attention as it is decoded: queries and cache in the latent space, one KV head, V is the first part of K. The scale
// remains that of the heads before absorption, and the config class's head_dim (64 in DeepSeek-V3) is the rotary part alone.
Heads read_latent_heads(const Fields& fields, int rank) {
  auto need = [&](const char* key) {
    auto dim = fields.integer({key}, 1, kMaxHeadDim);
    if (!dim) fields.refuse(key, fmt::format("an integer from 1 to {} is needed beside kv_lora_rank", kMaxHeadDim));
    return *dim;
  };
  int rope = need("qk_rope_head_dim");
  int plain = need("qk_nope_head_dim");
  Heads heads;
  heads.q_heads = read_q_heads(fields);
  heads.kv_heads = 1;
  heads.head_dim_k = rank + rope;
  heads.head_dim_v = rank;
  heads.scale = yarn_magnitude_squared(fields) / std::sqrt(static_cast<double>(plain) + rope);
  heads.notes.push_back(fmt::format("latent attention: decoded with one KV head, K {} = kv_lora_rank {} + qk_rope_head_dim {}, V the first "
                                    "{} of K; the softmax scale is that of head dim {}",
                                    rank + rope, rank, rope, rank, plain + rope));
  return heads;
}

}  // namespace

Heads read_heads(const Fields& fields, const std::string& model_type) {
  refuse_unread_shapes(fields);
  if (auto rank = fields.integer({"kv_lora_rank"}, 1, kMaxHeadDim / 2)) return read_latent_heads(fields, *rank);
  Heads heads;
  heads.q_heads = read_q_heads(fields);
  heads.kv_heads = read_kv_heads(fields, model_type, heads.q_heads, heads.notes);
  if (heads.q_heads % heads.kv_heads != 0) {
    fields.refuse_all(fmt::format("{} query heads are not a multiple of {} KV heads; every KV head must serve the same number of query heads",
                                  heads.q_heads, heads.kv_heads));
  }
  auto k = dim_or_derive(fields, {"kq_head_dim"});
  heads.head_dim_k = k ? *k : read_head_dim(fields, heads.q_heads, heads.notes);
  heads.head_dim_v = dim_or_derive(fields, {"v_head_dim"}).value_or(heads.head_dim_k);
  return heads;
}

}  // namespace pagetune::importer
