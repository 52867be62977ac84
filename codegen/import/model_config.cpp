#include "codegen/import/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "codegen/import/class_defaults.hpp"
#include "codegen/import/fields.hpp"
#include "codegen/import/heads.hpp"
#include "codegen/import/json_text.hpp"
#include "codegen/import/layers.hpp"
#include "codegen/import/logits.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

using namespace importer;
using nlohmann::json;

// Multimodal models keep the language model's config one level down.
std::pair<std::string, const json*> language_model(const json& root) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    auto at = root.find(key);
    if (at != root.end() && at->is_object() && !at->empty()) return {std::string(key) + ".", &*at};
  }
  return {"", &root};
}

std::string text_or_empty(const json& object, const char* key) {
  auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// The language model's type decides; files that nest it without one name only the whole's type.
std::string read_model_type(const json& root, const json& language) {
  std::string type = text_or_empty(language, "model_type");
  if (!type.empty() || &root == &language) return type;
  std::string whole = text_or_empty(root, "model_type");
  return class_defaults(whole + "_text") != nullptr ? whole + "_text" : whole;
}

std::string read_name(const json& root, const std::string& model_type) {
  auto at = root.find("architectures");
  if (at != root.end() && at->is_array() && !at->empty() && at->front().is_string()) return at->front().get<std::string>();
  return model_type.empty() ? "model" : model_type;
}

DType read_dtype(const Fields& language, const Fields& root, std::vector<std::string>& notes) {
  const Keys keys = {"torch_dtype", "dtype"};
  constexpr std::array<std::pair<const char*, DType>, 3> kNames = {
      {{"bfloat16", DType::bf16}, {"float16", DType::fp16}, {"float32", DType::fp32}}};
  const Fields& fields = language.stated(keys) ? language : root;
  std::string name = fields.text(keys).value_or("auto");
  if (name == "auto") {
    notes.emplace_back("torch_dtype is not stated: bfloat16 is assumed");
    return DType::bf16;
  }
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  fields.refuse(fields.stated({"torch_dtype"}) ? "torch_dtype" : "dtype", "bfloat16, float16 or float32 is allowed");
}

// A quantised cache is useless without scales: one per tensor for fp8, as checkpoints carry them, one per channel for int8 and int4.
ScaleGranularity scale_of(DType kv) {
  switch (kv) {
    case DType::fp8_e4m3:
    case DType::fp8_e5m2: return ScaleGranularity::tensor;
    case DType::int8:
    case DType::int4: return ScaleGranularity::channel;
    default: return ScaleGranularity::none;
  }
}

AttentionSpec base_spec(const std::string& file, const Heads& heads, DType dtype, const ImportOptions& options) {
  constexpr int kMaxPageSize = 65536;
  if (options.page_size < 1 || options.page_size > kMaxPageSize) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: the page size is {}; 1 to {} tokens are allowed", file, options.page_size, kMaxPageSize));
  }
  AttentionSpec spec;
  spec.kind = Kind::decode;
  spec.q_heads = heads.q_heads;
  spec.kv_heads = heads.kv_heads;
  spec.head_dim_k = heads.head_dim_k;
  spec.head_dim_v = heads.head_dim_v;
  spec.page_size = options.page_size;
  spec.q_dtype = dtype;
  spec.out_dtype = dtype;
  spec.kv_dtype = options.kv_dtype == "auto" ? dtype : dtype_from_name(options.kv_dtype);
  spec.kv_scale = scale_of(spec.kv_dtype);
  spec.layout = options.layout;
  spec.lse = options.lse;
  try {
    return for_rank(spec, options.tp);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", file, error.what()));
  }
}

LayerGroup group_of(int layer, LayerKind kind, const AttentionSpec& base, const Layers& layers, const Logits& logits) {
  LayerGroup group;
  group.spec = base;
  group.scale = logits.scale;
  if (logits.scale_by_layer) group.scale = (group.scale > 0 ? group.scale : 1 / std::sqrt(static_cast<double>(base.head_dim_k))) / (layer + 1);
  group.soft_cap = logits.soft_cap;
  group.spec.soft_cap = logits.soft_cap > 0;
  group.spec.alibi = logits.alibi;
  group.spec.sinks = logits.sinks;
  if (kind == LayerKind::window) {
    group.window = layers.window;
    group.spec.window = true;
    group.sink_tokens = layers.sink_tokens;
    group.spec.sink_tokens = layers.sink_tokens > 0;
  }
  if (kind == LayerKind::chunk) {
    group.chunk = layers.chunk;
    group.spec.chunk = true;
  }
  return group;
}

bool same_attention(const LayerGroup& a, const LayerGroup& b) {
  return a.spec == b.spec && a.window == b.window && a.chunk == b.chunk && a.sink_tokens == b.sink_tokens && a.soft_cap == b.soft_cap &&
         a.scale == b.scale;
}

std::vector<LayerGroup> group_layers(const AttentionSpec& base, const Layers& layers, const Logits& logits) {
  std::vector<LayerGroup> groups;
  for (size_t i = 0; i < layers.kinds.size(); ++i) {
    if (layers.kinds[i] == LayerKind::left_out) continue;
    LayerGroup group = group_of(static_cast<int>(i), layers.kinds[i], base, layers, logits);
    auto at = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& other) { return same_attention(group, other); });
    if (at == groups.end()) at = groups.insert(at, std::move(group));
    at->layers.push_back(static_cast<int>(i));
  }
  return groups;
}

void append(std::vector<std::string>& to, std::vector<std::string> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

ModelAttention import_model(const std::string& file, const std::string& json_text, const ImportOptions& options) {
  const json root = parse_config_text(file, json_text);
  const auto [path, language] = language_model(root);
  const std::string model_type = read_model_type(root, *language);
  const Fields fields(file, path, *language, class_defaults(model_type));
  const Fields root_fields(file, "", root);

  ModelAttention model;
  model.name = read_name(root, model_type);
  if (root_fields.flag({"is_encoder_decoder"}).value_or(false)) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: \"is_encoder_decoder\" is true; only decoder models are described", file));
  }
  const Heads heads = read_heads(fields, model_type);
  const Logits logits = read_logits(fields, model_type, heads);
  const Layers layers = read_layers(fields, model_type);
  model.q_heads = heads.q_heads;
  model.kv_heads = heads.kv_heads;
  model.num_layers = static_cast<int>(layers.kinds.size());
  model.max_position =
      fields.first_integer({"max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"}, 1, kMaxInt).value_or(0);
  append(model.notes, heads.notes);
  append(model.notes, logits.notes);
  append(model.notes, layers.notes);
  const DType dtype = read_dtype(fields, root_fields, model.notes);
  if (fields.flag({"use_bidirectional_attention"}).value_or(false)) {
    model.notes.emplace_back("the model attends in both directions: the specs describe its causal use");
  }
  model.groups = group_layers(base_spec(file, heads, dtype, options), layers, logits);
  append(model.notes, fields.default_notes(model_type));
  return model;
}

}  // namespace pagetune
