// What a config.json may leave out because the model's configuration class supplies it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace pagetune::importer {

// Keys and values that stand for absent keys of this model type; null if the importer knows none.
const nlohmann::json* class_defaults(const std::string& model_type);

}  // namespace pagetune::importer
