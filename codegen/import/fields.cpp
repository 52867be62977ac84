#include "codegen/import/fields.hpp"

#include <fmt/format.h>

#include "pagetune/error.hpp"

namespace pagetune::importer {
namespace {

using nlohmann::json;

const json& empty_object() {
  static const json object = json::object();
  return object;
}

std::string describe(const json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  constexpr size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return value.is_string() ? text + " (a string)" : text;
}

}  // namespace

Fields::Fields(std::string file, std::string path, const json& object, const json* defaults)
    : file_(std::move(file)), path_(std::move(path)), object_(&object), defaults_(defaults) {}

Fields::Found Fields::find(Keys keys) const {
  bool null_stated = false;
  for (const char* key : keys) {
    auto at = object_->find(key);
    if (at == object_->end()) continue;
    if (!at->is_null()) return {&*at, key};
    null_stated = true;
  }
  if (null_stated || defaults_ == nullptr) return {};
  auto at = defaults_->find(*keys.begin());
  if (at == defaults_->end()) return {};
  defaults_read_.insert(*keys.begin());
  return {&*at, *keys.begin()};
}

void Fields::refuse_value(const std::string& key, const json& value, const std::string& allowed) const {
  refuse_all(fmt::format("\"{}{}\" is {}; {}", path_, key, describe(value), allowed));
}

void Fields::refuse(const std::string& key, const std::string& allowed) const {
  auto at = object_->find(key);
  if (at == object_->end()) refuse_all(fmt::format("\"{}{}\" is missing; {}", path_, key, allowed));
  refuse_value(key, *at, allowed);
}

void Fields::refuse_all(const std::string& sentence) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", file_, sentence));
}

int Fields::as_integer(const std::string& key, const json& value, int min, int max) const {
  bool in_range = false;
  if (value.is_number_unsigned()) {
    auto number = value.get<uint64_t>();
    in_range = number <= static_cast<uint64_t>(max) && static_cast<int64_t>(number) >= min;
  } else if (value.is_number_integer()) {
    auto number = value.get<int64_t>();
    in_range = number >= min && number <= max;
  }
  if (!in_range) refuse_value(key, value, fmt::format("an integer from {} to {} is allowed", min, max));
  return value.get<int>();
}

std::optional<int> Fields::first_integer(Keys keys, int min, int max) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  return as_integer(found.key, *found.value, min, max);
}

std::optional<int> Fields::integer(Keys keys, int min, int max) const {
  std::optional<int> first = first_integer(keys, min, max);
  if (!first) return first;
  std::string first_key = find(keys).key;
  for (const char* key : keys) {
    auto at = object_->find(key);
    if (at == object_->end() || at->is_null()) continue;
    if (as_integer(key, *at, min, max) != *first) {
      refuse_value(key, *at, fmt::format("it must equal \"{}{}\", which is {}: both name the same quantity", path_, first_key, *first));
    }
  }
  return first;
}

std::optional<double> Fields::positive_number(Keys keys) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_number() || !(found.value->get<double>() > 0)) {
    refuse_value(found.key, *found.value, "a number above 0, or null, is allowed");
  }
  return found.value->get<double>();
}

std::optional<bool> Fields::flag(Keys keys) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_boolean()) refuse_value(found.key, *found.value, "true, false or null is allowed");
  return found.value->get<bool>();
}

bool Fields::is_text(Keys keys) const {
  Found found = find(keys);
  return found.value != nullptr && found.value->is_string();
}

std::optional<std::string> Fields::text(Keys keys) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_string()) refuse_value(found.key, *found.value, "a string is allowed");
  return found.value->get<std::string>();
}

std::optional<std::vector<int>> Fields::integers(Keys keys, int min, int max) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_array()) refuse_value(found.key, *found.value, "an array of integers is allowed");
  std::vector<int> numbers;
  for (const json& element : *found.value) {
    numbers.push_back(as_integer(fmt::format("{}[{}]", found.key, numbers.size()), element, min, max));
  }
  return numbers;
}

std::optional<std::vector<std::string>> Fields::texts(Keys keys) const {
  Found found = find(keys);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_array()) refuse_value(found.key, *found.value, "an array of strings is allowed");
  std::vector<std::string> words;
  for (const json& element : *found.value) {
    if (!element.is_string()) refuse_value(fmt::format("{}[{}]", found.key, words.size()), element, "a string is allowed");
    words.push_back(element.get<std::string>());
  }
  return words;
}

Fields Fields::object(const char* key) const {
  auto at = object_->find(key);
  if (at == object_->end() || at->is_null()) return {file_, path_ + key + ".", empty_object()};
  if (!at->is_object()) refuse_value(key, *at, "an object or null is allowed");
  return {file_, path_ + key + ".", *at};
}

std::vector<std::string> Fields::default_notes(const std::string& model_type) const {
  std::vector<std::string> notes;
  for (const std::string& key : defaults_read_) {
    notes.push_back(fmt::format("\"{}{}\" is not in the file: {} is the default of model type {}", path_, key, defaults_->at(key).dump(),
                                model_type));
  }
  return notes;
}

}  // namespace pagetune::importer
