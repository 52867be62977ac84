#include "codegen/import/model_config.hpp"
#include "one.hpp"

using namespace pagetune;

void fuzz_one(const std::string& input) {
  for (const int tp : {1, 8}) {
    ImportOptions options;
    options.tp = tp;
    fuzz::refuses_with_a_sentence([&] {
      const ModelAttention model = import_model("c.json", input, options);
      fuzz::require(!model.groups.empty(), "a model has layers");
      for (const LayerGroup& group : model.groups) fuzz::require(group.spec.kv_heads > 0 && group.spec.q_heads % group.spec.kv_heads == 0, "query heads share out KV heads");
    });
  }
}
