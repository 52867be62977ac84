// Head counts and head dims of one model, whatever its config calls them.
#pragma once
#include <string>
#include <vector>

#include "codegen/import/fields.hpp"

namespace pagetune::importer {

struct Heads {
  int q_heads = 0, kv_heads = 0;   // of the whole model
  int head_dim_k = 0, head_dim_v = 0;
  double scale = 0;                // 0: 1/sqrt(head_dim_k)
  std::vector<std::string> notes;  // what was derived
};

Heads read_heads(const Fields&, const std::string& model_type);

}  // namespace pagetune::importer
