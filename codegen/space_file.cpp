#include "codegen/space_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kWhat = "the config space";

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} of {} {}", where, kWhat, message));
}

const nlohmann::json& object(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) fail(where, fmt::format("must be an object, not {}", json.type_name()));
  return json;
}

const nlohmann::json& array(const nlohmann::json& json, const std::string& where) {
  if (!json.is_array()) fail(where, fmt::format("must be a list, not {}", json.type_name()));
  return json;
}

std::string text(const nlohmann::json& json, const std::string& where) {
  if (!json.is_string() || json.get_ref<const std::string&>().empty()) {
    fail(where, fmt::format("must be a text that is not empty, not {}", canonical_text(json)));
  }
  return json.get<std::string>();
}

// All of `keys` and nothing else.
void check_keys(const nlohmann::json& json, const std::string& where, std::initializer_list<const char*> keys) {
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(where, fmt::format("has the unknown key '{}'; known are {}", key, fmt::join(keys, ", ")));
    }
  }
  for (const char* key : keys) {
    if (!json.contains(key)) fail(where, fmt::format("lacks the key '{}'", key));
  }
}

std::vector<std::string> texts(const nlohmann::json& json, const std::string& where) {
  std::vector<std::string> result;
  for (const auto& item : array(json, where)) result.push_back(text(item, where));
  return result;
}

std::vector<int> distinct_integers(const nlohmann::json& json, const std::string& where) {
  std::vector<int> values;
  for (const auto& item : array(json, where)) values.push_back(int_from_json(item, where, kWhat));
  if (values.empty()) fail(where, "is empty; name at least one value");
  if (std::set<int>(values.begin(), values.end()).size() != values.size()) {
    fail(where, fmt::format("names a value twice: {}", canonical_text(json)));
  }
  return values;
}

Domain domain(const nlohmann::json& json, const std::string& where) {
  Domain result;
  if (json.is_array()) {
    result.values = distinct_integers(json, where);
    return result;
  }
  check_keys(object(json, where), where, {"min", "max", "step"});
  result.min = int_from_json(json["min"], where + ".min", kWhat);
  result.max = int_from_json(json["max"], where + ".max", kWhat);
  result.step = int_from_json(json["step"], where + ".step", kWhat);
  if (result.min > result.max || result.step < 1) {
    fail(where, fmt::format("has min {}, max {}, step {}; min must not be over max, and step at least 1", result.min, result.max, result.step));
  }
  return result;
}

Family family(const std::string& entry, const nlohmann::json& json) {
  check_keys(object(json, entry), entry,
             {"name", "function_name", "impl_file", "template_params", "dispatch_params", "data_types", "tuning_params", "derived", "conditions"});
  Family family;
  family.name = text(json["name"], entry + ".name");
  if (family.name != entry) fail(entry + ".name", fmt::format("is '{}'; it must be the entry's own key '{}'", family.name, entry));
  family.function_name = text(json["function_name"], entry + ".function_name");
  family.impl_file = text(json["impl_file"], entry + ".impl_file");
  family.template_params = texts(json["template_params"], entry + ".template_params");
  for (const auto& [name, value] : object(json["dispatch_params"], entry + ".dispatch_params").items()) {
    family.dispatch_params[name] = domain(value, fmt::format("{}.dispatch_params.{}", entry, name));
  }
  for (const auto& row : array(json["data_types"], entry + ".data_types")) {
    family.data_types.push_back(texts(row, entry + ".data_types"));
    if (family.data_types.back().size() != 3) {
      fail(entry + ".data_types", fmt::format("has the row {}; a row is [in, out, suffix]", canonical_text(row)));
    }
  }
  for (const auto& [name, value] : object(json["tuning_params"], entry + ".tuning_params").items()) {
    family.tuning_params[name] = distinct_integers(value, fmt::format("{}.tuning_params.{}", entry, name));
  }
  for (const auto& item : array(json["derived"], entry + ".derived")) {
    const std::string where = entry + ".derived";
    check_keys(object(item, where), where, {"name", "expression"});
    family.derived.push_back({text(item["name"], where + ".name"), text(item["expression"], where + ".expression")});
  }
  for (const auto& item : array(json["conditions"], entry + ".conditions")) {
    const std::string where = entry + ".conditions";
    check_keys(object(item, where), where, {"expression", "reason"});
    family.conditions.push_back({text(item["expression"], where + ".expression"), text(item["reason"], where + ".reason")});
  }
  return family;
}

}  // namespace

std::vector<Family> read_families(const std::string& json_text) {
  const nlohmann::json json = parse_json(json_text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be an object of kernel families, not {}", kWhat, json.type_name()));
  }
  std::vector<Family> families;
  for (const auto& [entry, value] : json.items()) families.push_back(family(entry, value));
  return families;
}

}  // namespace pagetune
