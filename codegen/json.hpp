// Strict JSON input: one place for the messages of malformed text and for the refusal of duplicate keys.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace pagetune {

// `what` names the input in messages, for example "the spec". Error invalid_argument for malformed text, for a key that stands twice
// in one object (the usual parser would silently keep the last) and for more than 64 levels.
nlohmann::json parse_json(const std::string& text, const std::string& what);

// An integer that fits an int. Error invalid_argument naming `key` of `what` and the value.
int int_from_json(const nlohmann::json& value, const std::string& key, const std::string& what);

// Canonical form: keys sorted, no blanks; bytes that are not UTF-8 become U+FFFD.
std::string canonical_text(const nlohmann::json& value);

}  // namespace pagetune
