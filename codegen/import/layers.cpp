#include "codegen/import/layers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/import/layer_list.hpp"
#include "pagetune/error.hpp"

namespace pagetune::importer {
namespace {

int read_num_layers(const Fields& fields) {
  auto layers = fields.integer({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}, 1, kMaxLayers);
  if (!layers) {
    fields.refuse("num_hidden_layers", fmt::format("an integer from 1 to {} is needed (also read: n_layer, num_layers, n_layers)", kMaxLayers));
  }
  return *layers;
}

// 0: no window. Qwen's files hold a number that use_sliding_window switches off.
int read_window(const Fields& fields) {
  if (!fields.flag({"use_sliding_window"}).value_or(true)) return 0;
  const Keys keys = {"sliding_window", "sliding_window_size", "attention_window_size"};
  if (auto window = fields.first_integer(keys, 1, kMaxInt)) return *window;
  int nested = fields.object("attn_config").integer({"sliding_window_size"}, -1, kMaxInt).value_or(-1);  // MPT: -1 is none
  return std::max(nested, 0);
}

bool pattern_is_full(const Fields& fields, const std::string& pattern, size_t layer, size_t num_layers) {
  char letter = pattern[layer % pattern.size()];
  if (letter != 'L' && letter != 'G') {
    fields.refuse("sliding_window_pattern", "an integer, or a string of the letters L (local) and G (global), is allowed");
  }
  return letter == 'G' || layer + 1 == num_layers;  // EXAONE 4: the last layer is always global
}

// Layers whose kind no list states, in a model that has a window.
std::vector<bool> windowed_layers(const Fields& fields, size_t num_layers) {
  std::vector<bool> windowed(num_layers, true);
  if (auto full = fields.integers({"global_attn_idx"}, 0, static_cast<int>(num_layers) - 1)) {  // Hymba
    for (int layer : *full) windowed[static_cast<size_t>(layer)] = false;
  } else if (fields.is_text({"sliding_window_pattern"})) {
    std::string pattern = *fields.text({"sliding_window_pattern"});
    if (pattern.empty()) fields.refuse("sliding_window_pattern", "an integer, or a string of the letters L and G, is allowed");
    for (size_t i = 0; i < num_layers; ++i) windowed[i] = !pattern_is_full(fields, pattern, i, num_layers);
  } else if (auto period = fields.first_integer({"sliding_window_pattern", "_sliding_window_pattern"}, 1, kMaxLayers)) {
    for (size_t i = 0; i < num_layers; ++i) windowed[i] = (i + 1) % static_cast<size_t>(*period) != 0;
  } else if (fields.flag({"use_sliding_window"}).value_or(false)) {
    int first = fields.integer({"max_window_layers"}, 0, kMaxInt).value_or(0);  // Qwen: the layers below are full
    for (size_t i = 0; i < num_layers; ++i) windowed[i] = i >= static_cast<size_t>(first);
  }
  return windowed;
}

// Llama 4: chunked where no_rope_layers is 1 (the layer has rotary positions, despite the name); an empty list means "derive".
std::vector<bool> chunked_layers(const Fields& fields, size_t num_layers) {
  std::vector<bool> chunked(num_layers, true);
  auto rope = fields.integers({"no_rope_layers"}, 0, 1);
  if (rope && !rope->empty()) {
    if (rope->size() != num_layers) {
      fields.refuse("no_rope_layers", fmt::format("an empty array or one element for each of the {} layers is allowed", num_layers));
    }
    for (size_t i = 0; i < num_layers; ++i) chunked[i] = (*rope)[i] == 1;
  } else if (auto period = fields.integer({"no_rope_layer_interval"}, 1, kMaxLayers)) {
    for (size_t i = 0; i < num_layers; ++i) chunked[i] = (i + 1) % static_cast<size_t>(*period) != 0;
  }
  return chunked;
}

void resolve(const Fields& fields, const std::vector<ListedKind>& listed, Layers& layers) {
  std::vector<bool> windowed(listed.size(), layers.window > 0);
  std::vector<bool> chunked(listed.size(), false);
  if (std::find(listed.begin(), listed.end(), ListedKind::attention) != listed.end()) {
    if (layers.window > 0) windowed = windowed_layers(fields, listed.size());
    if (layers.chunk > 0) chunked = chunked_layers(fields, listed.size());
  }
  for (size_t i = 0; i < listed.size(); ++i) {
    LayerKind kind = LayerKind::full;
    switch (listed[i]) {
      case ListedKind::attention: kind = chunked[i] ? LayerKind::chunk : windowed[i] ? LayerKind::window : LayerKind::full; break;
      case ListedKind::full: break;
      case ListedKind::window: kind = layers.window > 0 ? LayerKind::window : LayerKind::full; break;
      case ListedKind::chunk: kind = layers.chunk > 0 ? LayerKind::chunk : LayerKind::full; break;
      default: kind = LayerKind::left_out; break;
    }
    layers.kinds.push_back(kind);
  }
}

// A list that names windowed layers needs the number; use_sliding_window false is a statement that they are full after all.
void require_numbers(const Fields& fields, const std::vector<ListedKind>& listed, const Layers& layers) {
  auto has = [&](ListedKind kind) { return std::find(listed.begin(), listed.end(), kind) != listed.end(); };
  bool window_off = !fields.flag({"use_sliding_window"}).value_or(true);
  if (has(ListedKind::window) && layers.window == 0 && !window_off) {
    fields.refuse("sliding_window", fmt::format("an integer from 1 to {} is needed, for the list of layers names sliding windows", kMaxInt));
  }
  if (has(ListedKind::chunk) && layers.chunk == 0) {
    fields.refuse("attention_chunk_size", fmt::format("an integer from 1 to {} is needed, for the list of layers names chunks", kMaxInt));
  }
}

// "0-2, 5"
std::string ranges(const std::vector<size_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[last]);
    i = last + 1;
  }
  return text;
}

void note_left_out(const std::vector<ListedKind>& listed, ListedKind kind, const char* what, Layers& layers) {
  std::vector<size_t> found;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (listed[i] == kind) found.push_back(i);
  }
  if (!found.empty()) layers.notes.push_back(fmt::format("{} of {} layers are left out ({}): {}", found.size(), listed.size(), ranges(found), what));
}

}  // namespace

Layers read_layers(const Fields& fields, const std::string& model_type) {
  Layers layers;
  auto listed = list_layers(fields, static_cast<size_t>(read_num_layers(fields)), layers.notes);
  layers.window = read_window(fields);
  layers.chunk = fields.integer({"attention_chunk_size"}, 1, kMaxInt).value_or(0);
  require_numbers(fields, listed, layers);
  if (model_type == "hymba") layers.sink_tokens = fields.integer({"num_memory_tokens"}, 0, kMaxInt).value_or(0);
  resolve(fields, listed, layers);
  note_left_out(listed, ListedKind::none, "they have no softmax attention", layers);
  note_left_out(listed, ListedKind::sparse, "their attention is sparse in a way that this kernel does not compute", layers);
  if (std::all_of(layers.kinds.begin(), layers.kinds.end(), [](LayerKind kind) { return kind == LayerKind::left_out; })) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: none of the {} layers has softmax attention that pagetune computes{}", fields.file(),
                                                    layers.kinds.size(), layers.notes.empty() ? "" : " (" + layers.notes.back() + ")"));
  }
  return layers;
}

}  // namespace pagetune::importer
