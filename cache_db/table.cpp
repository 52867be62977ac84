#include "cache_db/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cache_db/table_format.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/json.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kOptionalMetadata[] = {"digest"};

[[noreturn]] void fail(const std::string& file, const std::string& sentence) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", file, sentence));
}

nlohmann::json parse_text(const std::string& file, const std::string& text) {
  if (text.size() > kLargestTable) fail(file, fmt::format("it has more than {} bytes, the most that a table has", kLargestTable));
  // The JSON library would skip it without a word.
  if (text.starts_with("\xEF\xBB\xBF")) fail(file, "line 1, column 1: it begins with a byte-order mark; save it as UTF-8 without one");
  nlohmann::json json = parse_json(text, file);
  if (!json.is_object()) fail(file, fmt::format("line 1: a table is a JSON object, not {}", json.type_name()));
  return json;
}

// Error messages of the parts say which key; this says which file.
template <class Make>
auto within(const std::string& file, const std::string& part, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    if (std::string(error.what()).starts_with(file + ": ")) throw;
    throw Error(error.code(), fmt::format("{}: {}: {}", file, part, error.what()));
  }
}

void check_metadata_keys(const std::string& file, const nlohmann::json& metadata) {
  std::vector<std::string> needed = {"format", "pagetune_version", "environment", "spec"};
  needed.insert(needed.end(), std::begin(kSharedFields), std::end(kSharedFields));
  std::vector<std::string> known = needed;
  known.insert(known.end(), std::begin(kOptionalMetadata), std::end(kOptionalMetadata));
  for (const std::string& key : needed) {
    if (!metadata.contains(key)) fail(file, fmt::format("_metadata: '{}' is missing", key));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) fail(file, fmt::format("_metadata: '{}' is not a known key", key));
    if (key == "environment" || key == "spec") continue;
    if (key == "format" ? value != kTableFormat : !value.is_string())
      fail(file, fmt::format("_metadata: '{}' is {}; it must be {}", key, canonical_text(value),
                             key == "format" ? std::to_string(kTableFormat) : "a string"));
  }
}

int vector_bits_of(const Environment& environment) {
  auto has = [&](const char* feature) { return ("," + environment.cpu_features + ",").find(fmt::format(",+{},", feature)) != std::string::npos; };
  if (has("avx512f") || environment.arch == "x86-64-v4") return 512;
  if (has("avx2") || environment.arch == "x86-64-v3") return 256;
  return 128;
}

}  // namespace

Target target_of(const Environment& environment) {
  if (environment.backend == name_of(Backend::cpu)) {
    Target target = Target::by_name("cpu");
    target.arch = environment.arch;
    target.cpu_features = environment.cpu_features;
    target.processors = environment.processors;
    target.vector_bits = vector_bits_of(environment);
    return target;
  }
  if (environment.backend != name_of(Backend::cuda))
    throw Error(ErrorCode::invalid_argument, fmt::format("'backend' is '{}'; it must be cuda or cpu", environment.backend));
  Target target = Target::by_name(environment.arch);
  target.processors = environment.processors;
  return target;
}

std::vector<Store::Row> parse_table(const std::string& file, const std::string& text) {
  nlohmann::json json = parse_text(file, text);
  auto metadata = json.find(kMetadataKey);
  if (metadata == json.end() || !metadata->is_object()) fail(file, "'_metadata' is missing or not an object");
  check_metadata_keys(file, *metadata);
  Environment environment =
      within(file, "_metadata", [&] { return Environment::from_json(canonical_text(metadata->at("environment"))); });
  AttentionSpec spec = within(file, "_metadata", [&] { return spec_from_json(canonical_text(metadata->at("spec"))); });
  Target target = within(file, "_metadata: environment", [&] { return target_of(environment); });
  std::string env_key = environment.key(), key_of_spec = spec_key(spec);

  std::vector<Store::Row> rows;
  for (auto& [name, entry] : json.items()) {
    if (name == kMetadataKey) continue;
    std::optional<Bucket> bucket = bucket_from_text(name);
    if (!bucket) fail(file, fmt::format("the key '{}' is not a bucket: write BATCHxLEN, both powers of two on the grid, for example 4x1024", name));
    if (!entry.is_object()) fail(file, fmt::format("bucket {} is {}; it must be an object", name, canonical_text(entry)));
    for (const char* field : kSharedFields) {
      if (!entry.contains(field)) entry[field] = metadata->at(field);
    }
    const std::string where = fmt::format("{}: bucket {}", file, name);
    Winner winner = winner_from_json(entry, where);
    winner.env_key = env_key;
    winner.spec_key = key_of_spec;
    winner.bucket = *bucket;
    check_winner(winner, where);
    if (Support support = supports(spec, winner.config, target); !support)
      fail(file, fmt::format("bucket {}: the config {} cannot be used: {}", name, winner.config.canonical_json(), support.reason));
    rows.push_back({std::move(winner), environment, spec});
  }
  if (rows.empty()) fail(file, "it holds no bucket");
  std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) { return a.winner.bucket < b.winner.bucket; });
  if (auto digest = metadata->find("digest"); digest != metadata->end() && *digest != table_digest(rows))
    fail(file, fmt::format("_metadata: 'digest' is {} but the contents give {}: the file was changed or damaged; remove the key 'digest' if the "
                           "change was meant",
                           digest->get<std::string>(), table_digest(rows)));
  return rows;
}

}  // namespace pagetune
