#include "codegen/environment.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "codegen/json.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kWhat = "the environment";

template <class Env, class Visit>
void for_each_identity_field(Env& env, Visit&& visit) {
  visit("arch", env.arch);
  visit("backend", env.backend);
  visit("clock_khz", env.clock_khz);
  visit("compiler", env.compiler);
  visit("cpu_features", env.cpu_features);
  visit("device", env.device);
  visit("driver", env.driver);
  visit("ecc", env.ecc);
  visit("l2_bytes", env.l2_bytes);
  visit("memory_bus_bits", env.memory_bus_bits);
  visit("memory_clock_khz", env.memory_clock_khz);
  visit("processors", env.processors);
}

constexpr const char* kMemoryBytes = "memory_bytes";

nlohmann::json identity_json(const Environment& env) {
  nlohmann::json json = nlohmann::json::object();
  for_each_identity_field(env, [&](const char* key, const auto& field) { json[key] = field; });
  return json;
}

const nlohmann::json& member(const nlohmann::json& json, const char* key) {
  auto found = json.find(key);
  if (found == json.end()) throw Error(ErrorCode::invalid_argument, fmt::format("the key '{}' is missing in {}", key, kWhat));
  return *found;
}

void read_value(const nlohmann::json& value, const char* key, int& out) { out = int_from_json(value, key, kWhat); }

void read_value(const nlohmann::json& value, const char* key, std::string& out) {
  if (!value.is_string()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' of {} is {}; it must be a string", key, kWhat, canonical_text(value)));
  }
  out = value.get<std::string>();
}

}  // namespace

std::string Environment::canonical_json() const {
  nlohmann::json json = identity_json(*this);
  json[kMemoryBytes] = memory_bytes;
  return canonical_text(json);
}

Environment Environment::from_json(const std::string& text) {
  nlohmann::json json = parse_json(text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object, not {}", kWhat, json.type_name()));
  }
  Environment env;
  size_t fields = 1;  // memory_bytes
  for_each_identity_field(env, [&](const char* key, auto& field) {
    read_value(member(json, key), key, field);
    ++fields;
  });
  const nlohmann::json& memory = member(json, kMemoryBytes);
  if (!memory.is_number_integer()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' of {} is {}; it must be an integer", kMemoryBytes, kWhat, canonical_text(memory)));
  }
  env.memory_bytes = memory.get<int64_t>();
  if (json.size() == fields) return env;
  nlohmann::json known = nlohmann::json::parse(env.canonical_json());
  for (const auto& [key, value] : json.items()) {
    if (!known.contains(key)) throw Error(ErrorCode::invalid_argument, fmt::format("the key '{}' is unknown in {}", key, kWhat));
  }
  return env;
}

std::string Environment::key() const { return sha256_hex(canonical_text(identity_json(*this))); }

std::string Environment::class_text() const { return fmt::format("{} {} {} processors", backend, arch, processors); }

std::string Environment::text() const { return fmt::format("{} ({}, {}{})", device, arch, driver.empty() ? "" : fmt::format("driver {}, ", driver), compiler); }

std::string Environment::file_name() const {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";
  std::string name;
  for (char c : device) {
    const bool keep = kAllowed.find(c) != std::string_view::npos && !(name.empty() && c == '.');  // no hidden file, no ".."
    if (keep) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  return name.empty() ? "unknown" : name;
}

}  // namespace pagetune
