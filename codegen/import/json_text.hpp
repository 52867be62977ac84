// The text of a config.json, which anyone may have written, as a JSON object.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace pagetune::importer {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int kMaxConfigLevels = 64;

// Python writes NaN, Infinity and -Infinity, which are not JSON: they come back as the strings "NaN", "Infinity", "-Infinity", so that such
// a value under a key that nobody reads does no harm.
// Error invalid_argument, starting with `file`: malformed text (with line and column, in bytes from 1), a byte-order mark, more than
// kMaxConfigBytes or kMaxConfigLevels, a key that stands twice in one object, a document that is not an object.
nlohmann::json parse_config_text(const std::string& file, const std::string& text);

}  // namespace pagetune::importer
