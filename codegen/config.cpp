#include "codegen/config.hpp"

#include <fmt/format.h>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

const std::map<std::string, int>& KernelConfig::values() const {
  static const std::map<std::string, int> kNone;
  return values_ ? *values_ : kNone;
}

void KernelConfig::set(const std::string& name, int value) {
  std::map<std::string, int> changed = values();
  changed[name] = value;
  *this = KernelConfig(std::move(changed));
}

int KernelConfig::at(const std::string& name) const {
  auto found = values().find(name);
  if (found == values().end()) {
    throw Error(ErrorCode::internal, fmt::format("the config {} has no parameter {}", canonical_json(), name));
  }
  return found->second;
}

int KernelConfig::get(const std::string& name, int otherwise) const {
  auto found = values().find(name);
  return found == values().end() ? otherwise : found->second;
}

std::string KernelConfig::canonical_json() const { return canonical_text(nlohmann::json(values())); }

KernelConfig KernelConfig::from_json(const std::string& text) {
  constexpr const char* kWhat = "the kernel config";
  nlohmann::json json = parse_json(text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object of integers, not {}", kWhat, json.type_name()));
  }
  std::map<std::string, int> values;
  for (const auto& [name, value] : json.items()) values[name] = int_from_json(value, name, kWhat);
  return KernelConfig(std::move(values));
}

}  // namespace pagetune
