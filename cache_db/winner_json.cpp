#include "cache_db/winner_json.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "codegen/json.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// One list of the fields for writing, reading and checking.
template <class W, class Visit>
void for_each_field(W& winner, Visit&& visit) {
  visit("config", winner.config);
  visit("median_us", winner.median_us);
  visit("ci_low_us", winner.ci_low_us);
  visit("ci_high_us", winner.ci_high_us);
  visit("samples", winner.samples);
  visit("default_us", winner.default_us);
  visit("runner_up", winner.runner_up);
  visit("runner_up_us", winner.runner_up_us);
  visit("tied", winner.tied);
  visit("reason", winner.reason);
  visit("error", winner.error);
  visit("floor_us", winner.floor_us);
  visit("policy_hash", winner.policy_hash);
  visit("space_hash", winner.space_hash);
  visit("generator_hash", winner.generator_hash);
  visit("session", winner.session);
}

[[noreturn]] void fail(const std::string& where, const char* key, const std::string& rest) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' {}", where, key, rest));
}

void check_number(double value, const char* key, const std::string& where) {
  if (!std::isfinite(value) || value < 0) fail(where, key, fmt::format("is {}; it must be a finite number, 0 or more", value));
}

void read_value(const nlohmann::json& value, const char* key, const std::string& where, double& out) {
  if (!value.is_number()) fail(where, key, fmt::format("is {}; it must be a number", canonical_text(value)));
  out = value.get<double>();
}
void read_value(const nlohmann::json& value, const char* key, const std::string& where, int& out) {
  out = int_from_json(value, key, where);
  if (out < 0) fail(where, key, fmt::format("is {}; it must be 0 or more", out));
}
void read_value(const nlohmann::json& value, const char* key, const std::string& where, std::string& out) {
  if (!value.is_string()) fail(where, key, fmt::format("is {}; it must be a string", canonical_text(value)));
  out = value.get<std::string>();
}
void read_value(const nlohmann::json& value, const char* key, const std::string& where, KernelConfig& out) {
  if (!value.is_object()) fail(where, key, fmt::format("is {}; it must be an object of integers", canonical_text(value)));
  std::map<std::string, int> values;
  for (const auto& [name, number] : value.items()) values[name] = int_from_json(number, name, where);
  out = KernelConfig(std::move(values));
}

}  // namespace

nlohmann::ordered_json winner_to_json(const Winner& winner) {
  auto json = nlohmann::ordered_json::object();
  for_each_field(winner, [&](const char* key, const auto& field) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, KernelConfig>) {
      json[key] = nlohmann::ordered_json(field.values());
    } else {
      json[key] = field;
    }
  });
  return json;
}

Winner winner_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) throw Error(ErrorCode::invalid_argument, fmt::format("{} must be an object, not {}", where, json.type_name()));
  Winner winner;
  nlohmann::json rest = json;
  for_each_field(winner, [&](const char* key, auto& field) {
    auto found = json.find(key);
    if (found == json.end()) fail(where, key, "is missing");
    read_value(*found, key, where, field);
    rest.erase(key);
  });
  if (!rest.empty()) fail(where, rest.begin().key().c_str(), "is not a known key");
  return winner;
}

std::string winner_digest(const Winner& winner) {
  nlohmann::ordered_json json = {{"env", winner.env_key}, {"spec", winner.spec_key}, {"bucket", winner.bucket.text()}};
  json["winner"] = winner_to_json(winner);
  return sha256_hex(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void check_winner(const Winner& winner, const std::string& where) {
  Winner copy = winner;
  for_each_field(copy, [&](const char* key, auto& field) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, double>) check_number(field, key, where);
  });
  if (winner.bucket.batch_log2 < 0 || winner.bucket.batch_log2 >= Bucket::kBatchCells || winner.bucket.len_log2 < Bucket::kMinLenLog2 ||
      winner.bucket.len_log2 >= Bucket::kMinLenLog2 + Bucket::kLenCells) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the bucket 2^{} x 2^{} lies outside the grid of 2^0..2^{} x 2^{}..2^{}", where,
                                                         winner.bucket.batch_log2, winner.bucket.len_log2, Bucket::kBatchCells - 1,
                                                         Bucket::kMinLenLog2, Bucket::kMinLenLog2 + Bucket::kLenCells - 1));
  }
}

std::optional<Bucket> bucket_of_sizes(int64_t batch, int64_t len) {
  if (batch <= 0 || len <= 0 || !std::has_single_bit(static_cast<uint64_t>(batch)) || !std::has_single_bit(static_cast<uint64_t>(len))) return std::nullopt;
  const Bucket bucket{std::countr_zero(static_cast<uint64_t>(batch)), std::countr_zero(static_cast<uint64_t>(len))};
  if (bucket.batch_log2 >= Bucket::kBatchCells || bucket.len_log2 < Bucket::kMinLenLog2 || bucket.len_log2 >= Bucket::kMinLenLog2 + Bucket::kLenCells) return std::nullopt;
  return bucket;
}

std::optional<Bucket> bucket_from_text(const std::string& text) {
  for (int b = 0; b < Bucket::kBatchCells; ++b) {
    for (int l = Bucket::kMinLenLog2; l < Bucket::kMinLenLog2 + Bucket::kLenCells; ++l) {
      if (Bucket{b, l}.text() == text) return Bucket{b, l};
    }
  }
  return std::nullopt;
}

}  // namespace pagetune
