// From a Hugging Face style config.json to the AttentionSpecs of a model's layers. Pure: the caller reads the file.
#pragma once
#include <string>
#include <vector>

#include "pagetune/spec.hpp"

namespace pagetune {

struct ImportOptions {
  int tp = 1;
  int page_size = 16;
  std::string kv_dtype = "auto";  // "auto": the model's torch_dtype; else a DType name
  Layout layout = Layout::nhd;
  bool lse = false;
};

// Layers that share one spec. What a window or a cap is (not only that there is one) is kept for launch time.
struct LayerGroup {
  AttentionSpec spec;              // of one rank
  std::vector<int> layers;         // indices, ascending
  int window = 0;                  // attended tokens including self; 0: none
  int chunk = 0;                   // chunked-local attention; 0: none
  int sink_tokens = 0;             // first tokens that stay visible beside the window; 0: none
  double soft_cap = 0;             // 0: none
  double scale = 0;                // 0: 1/sqrt(head_dim_k)
};

struct ModelAttention {
  std::string name;                // the config's architecture or model_type, for messages
  int q_heads = 0, kv_heads = 0;   // of the whole model
  int num_layers = 0;
  int max_position = 0;            // 0: not stated
  std::vector<LayerGroup> groups;  // ordered by their first layer
  std::vector<std::string> notes;  // what was derived or left out, one sentence each
};

// `file` only names the input in messages. Error: one sentence naming file, key, value and what is allowed.
ModelAttention import_model(const std::string& file, const std::string& json_text, const ImportOptions& = {});

}  // namespace pagetune
