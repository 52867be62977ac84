#include "codegen/config.hpp"

#include <fmt/format.h>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

int KernelConfig::at(const std::string& name) const {
  auto found = values_.find(name);
  if (found == values_.end()) {
    throw Error(ErrorCode::internal, fmt::format("the config {} has no parameter {}", canonical_json(), name));
  }
  return found->second;
}

int KernelConfig::get(const std::string& name, int otherwise) const {
  auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

std::string KernelConfig::canonical_json() const { return canonical_text(nlohmann::json(values_)); }

KernelConfig KernelConfig::from_json(const std::string& text) {
  constexpr const char* kWhat = "the kernel config";
  nlohmann::json json = parse_json(text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object of integers, not {}", kWhat, json.type_name()));
  }
  KernelConfig config;
  for (const auto& [name, value] : json.items()) config.set(name, int_from_json(value, name, kWhat));
  return config;
}

}  // namespace pagetune
