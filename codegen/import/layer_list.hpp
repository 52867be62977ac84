// The lists by which configs say what each layer is.
#pragma once
#include <string>
#include <vector>

#include "codegen/import/fields.hpp"

namespace pagetune::importer {

enum class ListedKind : unsigned char {
  attention,  // attends; window or chunk follow from other keys
  full,
  window,
  chunk,
  none,       // no softmax attention
  sparse,     // attends to selected blocks or tokens
};

// One kind per layer. Error invalid_argument: an unknown word or letter, a list of the wrong length.
std::vector<ListedKind> list_layers(const Fields&, size_t num_layers, std::vector<std::string>& notes);

}  // namespace pagetune::importer
