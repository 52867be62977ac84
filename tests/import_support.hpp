// What the importer's tests share: reading shipped configs, and the sentence of the Error that an input causes.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "codegen/import/model_config.hpp"
#include "pagetune/error.hpp"

namespace import_support {

inline std::filesystem::path models_folder() { return std::filesystem::path(PAGETUNE_SOURCE_DIR) / "configs" / "models"; }

inline std::string read_model(const std::string& name) {
  std::ifstream in(models_folder() / (name + ".json"), std::ios::binary);
  if (!in) ADD_FAILURE() << "cannot read " << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline pagetune::ModelAttention import_shipped(const std::string& name, const pagetune::ImportOptions& options = {}) {
  return pagetune::import_model(name + ".json", read_model(name), options);
}

inline pagetune::ModelAttention import_text(const std::string& text, const pagetune::ImportOptions& options = {}) {
  return pagetune::import_model("c.json", text, options);
}

// Empty, and a test failure, where the input is accepted.
inline std::string error_of(const std::string& text, const pagetune::ImportOptions& options = {}) {
  try {
    import_text(text, options);
  } catch (const pagetune::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return {};
}

inline bool has_note(const pagetune::ModelAttention& model, const std::string& part) {
  for (const std::string& note : model.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace import_support
