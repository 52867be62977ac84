#include "codegen/import/logits.hpp"

#include <cmath>

namespace pagetune::importer {
namespace {

// Keys that look like the attention scale and are not: logit_scale (Cohere) and final_logit_softcapping (Gemma 2) belong to the
// vocabulary's logits, rope_scaling to the positions.
double read_scale(const Fields& fields, const Heads& heads) {
  if (heads.scale > 0) return heads.scale;
  if (auto scalar = fields.positive_number({"query_pre_attn_scalar"})) return 1 / std::sqrt(*scalar);  // Gemma 2 and 3
  if (auto scale = fields.positive_number({"attention_multiplier"})) return *scale;                    // Granite
  if (auto scale = fields.object("attn_config").positive_number({"softmax_scale"})) return *scale;     // MPT
  if (fields.flag({"mup_scale_qk_dot_products", "scale_qk_dot_by_d"}).value_or(false)) return 1.0 / heads.head_dim_k;  // Jais
  if (!fields.flag({"scale_attn_weights"}).value_or(true)) return 1;                                   // GPT-2 and gpt_bigcode
  return 0;
}

bool read_alibi(const Fields& fields, const std::string& model_type) {
  if (fields.flag({"alibi", "use_alibi"}).value_or(false)) return true;
  if (fields.object("attn_config").flag({"alibi"}).value_or(false)) return true;
  if (fields.is_text({"position_embedding_type"}) && *fields.text({"position_embedding_type"}) == "alibi") return true;
  if (model_type == "bloom") return true;
  // Baichuan has no flag: its code uses ALiBi in the 13B models, whose hidden size is 5120, and rotary positions in the 7B ones.
  return model_type == "baichuan" && fields.integer({"hidden_size"}, 1, kMaxInt).value_or(0) == 5120;
}

}  // namespace

Logits read_logits(const Fields& fields, const std::string& model_type, const Heads& heads) {
  Logits logits;
  logits.scale = read_scale(fields, heads);
  logits.scale_by_layer = fields.flag({"scale_attn_by_inverse_layer_idx"}).value_or(false);
  logits.soft_cap = fields.positive_number({"attn_logit_softcapping"}).value_or(0);
  logits.alibi = read_alibi(fields, model_type);
  logits.sinks = model_type == "gpt_oss";
  if (logits.alibi && model_type == "falcon") {
    logits.notes.push_back("Falcon adds ALiBi before the softmax scale: pass slopes that are already multiplied by it");
  }
  if (logits.sinks) logits.notes.push_back("the sinks are a tensor of the checkpoint, one logit per query head");
  return logits;
}

}  // namespace pagetune::importer
