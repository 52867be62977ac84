// Which layers attend, and to what.
#pragma once
#include <string>
#include <vector>

#include "codegen/import/fields.hpp"

namespace pagetune::importer {

enum class LayerKind : unsigned char {
  full,
  window,   // the last `window` tokens including self
  chunk,    // the tokens of the same chunk
  left_out  // no attention, or attention that no paged softmax kernel computes
};

struct Layers {
  std::vector<LayerKind> kinds;    // one for each layer of the model
  int window = 0;
  int chunk = 0;
  int sink_tokens = 0;             // first tokens that stay visible to windowed layers
  std::vector<std::string> notes;  // which layers were left out, and why
};

Layers read_layers(const Fields&, const std::string& model_type);

}  // namespace pagetune::importer
