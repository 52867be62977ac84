#include "codegen/import/class_defaults.hpp"

namespace pagetune::importer {

// Source: the configuration classes of Hugging Face transformers. Only keys that published files do leave out, or whose default is the
// opposite of what their absence suggests (multi_query is true, Qwen's windows are off). sliding_window_pattern 2 is how this table writes
// "layers 0, 2, 4, … are windowed".
const nlohmann::json* class_defaults(const std::string& model_type) {
  static const nlohmann::json table = nlohmann::json::parse(R"({
    "falcon": {"multi_query": true},
    "RefinedWebModel": {"multi_query": true},
    "gpt_bigcode": {"multi_query": true},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2, "query_pre_attn_scalar": 256,
               "attn_logit_softcapping": 50.0},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 26, "hidden_size": 2304,
                    "sliding_window": 4096, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
                    "max_position_embeddings": 131072},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "llama4_text": {"attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28},
    "qwen2_moe": {"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"head_dim": 128, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3_moe": {"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "qwen3_5_text": {"head_dim": 256, "full_attention_interval": 4},
    "recurrentgemma": {"attention_window_size": 2048},
    "recurrent_gemma": {"attention_window_size": 2048}
  })");
  auto at = table.find(model_type);
  return at == table.end() ? nullptr : &*at;
}

}  // namespace pagetune::importer
