#include "codegen/import/layer_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace pagetune::importer {
namespace {

using Kinds = std::vector<ListedKind>;

const std::map<std::string, ListedKind>& words() {
  static const std::map<std::string, ListedKind> table = {
      {"full_attention", ListedKind::full},
      {"global", ListedKind::full},
      {"sliding_attention", ListedKind::window},
      {"sliding_window", ListedKind::window},
      {"local", ListedKind::window},
      {"chunked_attention", ListedKind::chunk},
      {"attention", ListedKind::attention},
      {"hybrid", ListedKind::attention},
      {"linear_attention", ListedKind::none},
      {"mamba", ListedKind::none},
      {"mamba2", ListedKind::none},
      {"recurrent", ListedKind::none},
      {"conv", ListedKind::none},
      {"mlp", ListedKind::none},
      {"moe", ListedKind::none},
      {"minimax_m3_sparse", ListedKind::sparse},
      {"sparse_attention", ListedKind::sparse},
  };
  return table;
}

ListedKind kind_of_word(const Fields& fields, const char* key, const std::string& word) {
  auto at = words().find(word);
  if (at != words().end()) return at->second;
  std::string known;
  for (const auto& [name, kind] : words()) known += (known.empty() ? "" : ", ") + name;
  fields.refuse(key, fmt::format("it holds {}, and the words known are {}", nlohmann::json(word.substr(0, 40)).dump(-1, ' ', true,
                                 nlohmann::json::error_handler_t::replace), known));
}

// A longer list holds the multi-token-prediction layers behind the model's own.
void fit(const Fields& fields, const char* key, size_t num_layers, Kinds& kinds, std::vector<std::string>& notes) {
  if (kinds.size() < num_layers) fields.refuse(key, fmt::format("one entry for each of the {} layers is needed", num_layers));
  if (kinds.size() > num_layers) {
    notes.push_back(fmt::format("\"{}\" has {} entries for {} layers: the first {} count", fields.name(key), kinds.size(), num_layers, num_layers));
    kinds.resize(num_layers);
  }
}

// Nemotron-H: '*' attention, 'M' Mamba, '-' MLP, 'E' experts.
Kinds of_letters(const Fields& fields, const char* key, const std::string& letters, size_t num_layers) {
  Kinds kinds;
  for (char letter : letters) {
    if (letter != '*' && letter != 'M' && letter != '-' && letter != 'E') {
      fields.refuse(key, "only the letters M (Mamba), * (attention), - (MLP) and E (experts) are allowed");
    }
    kinds.push_back(letter == '*' ? ListedKind::attention : ListedKind::none);
  }
  if (kinds.size() != num_layers) {
    fields.refuse(key, fmt::format("it has {} letters; one for each of the {} layers is needed", kinds.size(), num_layers));
  }
  return kinds;
}

Kinds only(const std::vector<int>& attending, size_t num_layers) {
  Kinds kinds(num_layers, ListedKind::none);
  for (int layer : attending) kinds[static_cast<size_t>(layer)] = ListedKind::attention;
  return kinds;
}

Kinds every(size_t period, size_t offset, size_t num_layers) {
  Kinds kinds;
  for (size_t i = 0; i < num_layers; ++i) kinds.push_back(i % period == offset ? ListedKind::attention : ListedKind::none);
  return kinds;
}

// MiniMax-M3: 1 marks a layer whose attention selects blocks.
void mark_sparse(const Fields& fields, Kinds& kinds) {
  Fields sparse = fields.object("sparse_attention_config");
  if (fields.stated({"sparse_attention_config"}) && sparse.flag({"use_sparse_attention"}).value_or(true)) {
    auto marks = sparse.integers({"sparse_attention_freq"}, 0, 1);
    if (!marks || marks->size() < kinds.size()) {
      sparse.refuse("sparse_attention_freq", fmt::format("an array with 0 (dense) or 1 (sparse) for each of the {} layers is needed", kinds.size()));
    }
    for (size_t i = 0; i < kinds.size(); ++i) {
      if ((*marks)[i] == 1) kinds[i] = ListedKind::sparse;
    }
  }
  // DeepSeek-V3.2: an indexer selects the tokens of every layer.
  if (fields.stated({"index_topk"})) std::fill(kinds.begin(), kinds.end(), ListedKind::sparse);
}

Kinds stated_kinds(const Fields& fields, size_t num_layers, std::vector<std::string>& notes) {
  if (auto letters = fields.text({"hybrid_override_pattern"})) return of_letters(fields, "hybrid_override_pattern", *letters, num_layers);
  for (const char* key : {"layer_types", "layers_block_type", "attention_layers"}) {
    auto list = fields.texts({key});
    if (!list) continue;
    Kinds kinds;
    for (const std::string& word : *list) kinds.push_back(kind_of_word(fields, key, word));
    fit(fields, key, num_layers, kinds, notes);
    return kinds;
  }
  int last = static_cast<int>(num_layers) - 1;
  if (auto cycle = fields.texts({"block_types"})) {  // RecurrentGemma: repeated
    if (cycle->empty()) fields.refuse("block_types", "an array of at least one word is allowed");
    Kinds kinds;
    for (size_t i = 0; i < num_layers; ++i) kinds.push_back(kind_of_word(fields, "block_types", (*cycle)[i % cycle->size()]));
    return kinds;
  }
  if (auto types = fields.integers({"attn_type_list"}, 0, 1)) {  // MiniMax-Text-01: 1 softmax, 0 linear
    Kinds kinds;
    for (int type : *types) kinds.push_back(type == 1 ? ListedKind::attention : ListedKind::none);
    fit(fields, "attn_type_list", num_layers, kinds, notes);
    return kinds;
  }
  if (auto period = fields.integer({"attn_layer_period"}, 1, kMaxLayers)) {  // Jamba
    int offset = fields.integer({"attn_layer_offset"}, 0, *period - 1).value_or(0);
    return every(static_cast<size_t>(*period), static_cast<size_t>(offset), num_layers);
  }
  if (auto layers = fields.integers({"attn_layer_indices"}, 0, last)) return only(*layers, num_layers);  // Bamba
  if (auto layers = fields.integers({"full_attn_idxs"}, 0, last)) return only(*layers, num_layers);      // LFM2
  if (auto period = fields.integer({"full_attention_interval"}, 1, kMaxLayers)) {                        // Qwen3-Next, Qwen3.5
    return every(static_cast<size_t>(*period), static_cast<size_t>(*period) - 1, num_layers);
  }
  return Kinds(num_layers, ListedKind::attention);
}

}  // namespace

std::vector<ListedKind> list_layers(const Fields& fields, size_t num_layers, std::vector<std::string>& notes) {
  Kinds kinds = stated_kinds(fields, num_layers, notes);
  mark_sparse(fields, kinds);
  return kinds;
}

}  // namespace pagetune::importer
