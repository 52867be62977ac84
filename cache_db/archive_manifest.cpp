#include "cache_db/archive_manifest.hpp"

#include <fmt/format.h>

#include "cache_db/binary_table.hpp"
#include "cache_db/source.hpp"
#include "codegen/json.hpp"
#include "codegen/json_fields.hpp"

namespace pagetune {
namespace {

constexpr int kArchiveFormat = 1;

// sm_90a, x86-64-v3, znver4
bool is_target(const std::string& text) {
  return text.size() <= 64 && text.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_.+-") == std::string::npos;
}

Announced announced(const JsonFields& fields, const nlohmann::json& json, const std::string& where) {
  fields.check_keys(fields.object(json, where), where, {"key", "kind", "sha256", "size", "target"});
  const auto text = [&](const char* name, bool (*is_right)(const std::string&), const char* allowed) {
    std::string value = fields.text(json.at(name), where + "." + name);
    if (!is_right(value)) fields.fail(where + "." + name, allowed);
    return value;
  };
  constexpr const char* kHash = "must have 64 hexadecimal digits in lower case";
  Announced one;
  one.binary.key = text("key", is_key, kHash);
  one.binary.sha256 = text("sha256", is_key, kHash);
  one.binary.kind = text("kind", is_binary_kind, "must be cubin or object");
  one.binary.arch = text("target", is_target, "must be the name of an architecture, for example sm_90a: up to 64 letters, digits and _.+-");
  const int size = fields.integer(json.at("size"), where + ".size");
  if (size < 0) fields.fail(where + ".size", fmt::format("is {}; it must not be negative", size));
  one.size = static_cast<size_t>(size);
  return one;
}

}  // namespace

std::string manifest_text(const std::vector<Binary>& binaries, const std::set<std::string>& compilers) {
  nlohmann::json json{{"format", kArchiveFormat}, {"pagetune_version", PAGETUNE_VERSION}, {"compilers", compilers}, {"binaries", nlohmann::json::array()}};
  for (const Binary& binary : binaries)
    json["binaries"].push_back({{"key", binary.key}, {"target", binary.arch}, {"kind", binary.kind}, {"size", binary.data.size()}, {"sha256", binary.sha256}});
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Manifest parse_manifest(const std::string& file, const std::string& text) {
  const std::string what = "manifest.json of " + file;
  const JsonFields fields(what);
  if (text.size() > kLargestManifest) fields.fail("the whole", fmt::format("has {} bytes; {} are allowed", text.size(), kLargestManifest));
  const nlohmann::json json = parse_json(text, what);
  fields.check_keys(fields.object(json, "the whole"), "the whole", {"format", "pagetune_version", "compilers", "binaries"});
  if (const int format = fields.integer(json.at("format"), "format"); format != kArchiveFormat)
    fields.fail("format", fmt::format("is {}; this build reads {}: export again with a pagetune of this one's version, {}", format, kArchiveFormat, PAGETUNE_VERSION));
  fields.text(json.at("pagetune_version"), "pagetune_version");
  fields.texts(json.at("compilers"), "compilers");
  const nlohmann::json& list = fields.array(json.at("binaries"), "binaries");
  if (list.empty() || list.size() > kMostArchivedBinaries) fields.fail("binaries", fmt::format("has {} entries; from 1 to {} are allowed", list.size(), kMostArchivedBinaries));
  Manifest manifest;
  int64_t bytes = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("binaries[{}]", i);
    Announced one = announced(fields, list[i], where);
    if (bytes += static_cast<int64_t>(one.size); bytes > kMostBinaryBytes) fields.fail("binaries", fmt::format("names more than {} bytes together, the most that a store holds", kMostBinaryBytes));
    const std::string key = one.binary.key;
    if (!manifest.emplace(key, std::move(one)).second) fields.fail(where + ".key", fmt::format("is {}, which is there twice", key));
  }
  return manifest;
}

}  // namespace pagetune
