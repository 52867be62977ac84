// What happens to a logit between q·k and the softmax.
#pragma once
#include <string>
#include <vector>

#include "codegen/import/fields.hpp"
#include "codegen/import/heads.hpp"

namespace pagetune::importer {

struct Logits {
  double scale = 0;     // 0: 1/sqrt(head_dim_k)
  double soft_cap = 0;  // 0: none
  bool alibi = false;
  bool sinks = false;   // a learned logit per query head
  bool scale_by_layer = false;  // layer i divides the scale by i + 1
  std::vector<std::string> notes;
};

Logits read_logits(const Fields&, const std::string& model_type, const Heads&);

}  // namespace pagetune::importer
