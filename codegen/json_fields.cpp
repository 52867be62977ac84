#include "codegen/json_fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

void JsonFields::fail(const std::string& where, const std::string& message) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} of {} {}", where, what_, message));
}

const nlohmann::json& JsonFields::object(const nlohmann::json& json, const std::string& where) const {
  if (!json.is_object()) fail(where, fmt::format("must be an object, not {}", json.type_name()));
  return json;
}

const nlohmann::json& JsonFields::array(const nlohmann::json& json, const std::string& where) const {
  if (!json.is_array()) fail(where, fmt::format("must be a list, not {}", json.type_name()));
  return json;
}

std::string JsonFields::text(const nlohmann::json& json, const std::string& where) const {
  if (!json.is_string() || json.get_ref<const std::string&>().empty()) {
    fail(where, fmt::format("must be a text that is not empty, not {}", canonical_text(json)));
  }
  return json.get<std::string>();
}

std::vector<std::string> JsonFields::texts(const nlohmann::json& json, const std::string& where) const {
  std::vector<std::string> result;
  for (const auto& item : array(json, where)) result.push_back(text(item, where));
  return result;
}

int JsonFields::integer(const nlohmann::json& json, const std::string& where) const { return int_from_json(json, where, what_); }

std::vector<int> JsonFields::distinct_integers(const nlohmann::json& json, const std::string& where) const {
  std::vector<int> values;
  for (const auto& item : array(json, where)) values.push_back(integer(item, where));
  if (values.empty()) fail(where, "is empty; name at least one value");
  if (std::set<int>(values.begin(), values.end()).size() != values.size()) {
    fail(where, fmt::format("names a value twice: {}", canonical_text(json)));
  }
  return values;
}

void JsonFields::check_keys(const nlohmann::json& json, const std::string& where, std::initializer_list<const char*> keys) const {
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(where, fmt::format("has the unknown key '{}'; known are {}", key, fmt::join(keys, ", ")));
    }
  }
  for (const char* key : keys) {
    if (!json.contains(key)) fail(where, fmt::format("lacks the key '{}'", key));
  }
}

}  // namespace pagetune
