#include "pagetune/spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>
#include <vector>

#include "codegen/json.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Names in the order of the enumerators.
constexpr std::array kKindNames = {"decode", "prefill", "append", "merge", "page_copy"};
constexpr std::array kDTypeNames = {"bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8", "int4"};
constexpr std::array kDTypeBits = {16, 16, 32, 8, 8, 8, 4};
constexpr std::array kLayoutNames = {"nhd", "hnd"};
constexpr std::array kAddressMapNames = {"slot", "flat"};
constexpr std::array kScaleNames = {"none", "tensor", "head", "channel", "token_head"};
constexpr std::array kMaskNames = {"none", "tree", "offset"};

std::span<const char* const> names(Kind) { return kKindNames; }
std::span<const char* const> names(DType) { return kDTypeNames; }
std::span<const char* const> names(Layout) { return kLayoutNames; }
std::span<const char* const> names(AddressMap) { return kAddressMapNames; }
std::span<const char* const> names(ScaleGranularity) { return kScaleNames; }
std::span<const char* const> names(MaskKind) { return kMaskNames; }

// Not an assertion: a value cast from a foreign integer must not read past the table.
template <class E>
const char* checked_name(E value) {
  auto index = static_cast<size_t>(value);
  return index < names(value).size() ? names(value)[index] : "invalid";
}

template <class E>
E parse_name(const std::string& name, const std::string& what) {
  auto allowed = names(E{});
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (name == allowed[i]) return static_cast<E>(i);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} '{}' is unknown; use one of {}", what, name, fmt::join(allowed.begin(), allowed.end(), ", ")));
}

// The one list of the spec's fields: JSON, parsing and hash cannot forget one apart.
template <class Spec, class Visit>
void for_each_field(Spec& spec, Visit&& visit) {
  visit("address_map", spec.address_map);
  visit("alibi", spec.alibi);
  visit("batch_invariant", spec.batch_invariant);
  visit("block_sparse", spec.block_sparse);
  visit("checked", spec.checked);
  visit("chunk", spec.chunk);
  visit("head_dim_k", spec.head_dim_k);
  visit("head_dim_v", spec.head_dim_v);
  visit("headwise", spec.headwise);
  visit("kind", spec.kind);
  visit("kv_dtype", spec.kv_dtype);
  visit("kv_heads", spec.kv_heads);
  visit("kv_scale", spec.kv_scale);
  visit("layout", spec.layout);
  visit("lse", spec.lse);
  visit("mask", spec.mask);
  visit("out_dtype", spec.out_dtype);
  visit("page_size", spec.page_size);
  visit("q_dtype", spec.q_dtype);
  visit("q_heads", spec.q_heads);
  visit("q_len", spec.q_len);
  visit("sink_tokens", spec.sink_tokens);
  visit("sinks", spec.sinks);
  visit("soft_cap", spec.soft_cap);
  visit("window", spec.window);
}

constexpr const char* kWhat = "the spec";

void read_value(const nlohmann::json& value, const std::string& key, int& out) { out = int_from_json(value, key, kWhat); }

void read_value(const nlohmann::json& value, const std::string& key, bool& out) {
  if (!value.is_boolean()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' of {} is {}; it must be true or false", key, kWhat, canonical_text(value)));
  }
  out = value.get<bool>();
}

template <class E>
  requires std::is_enum_v<E>
void read_value(const nlohmann::json& value, const std::string& key, E& out) {
  if (!value.is_string()) {
    auto allowed = names(E{});
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' of {} is {}; it must be a string, one of {}", key, kWhat,
                                                         canonical_text(value), fmt::join(allowed.begin(), allowed.end(), ", ")));
  }
  out = parse_name<E>(value.get<std::string>(), key);
}

AttentionSpec read_spec(const std::string& text, bool all_keys) {
  nlohmann::json json = parse_json(text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object, not {}", kWhat, json.type_name()));
  }
  AttentionSpec spec;
  std::vector<std::string> known;
  for_each_field(spec, [&](const char* key, auto& field) {
    known.emplace_back(key);
    auto found = json.find(key);
    if (found != json.end()) {
      read_value(*found, key, field);
    } else if (all_keys) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the key '{}' is missing in {}; a stored spec has every field", key, kWhat));
    }
  });
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the key '{}' is unknown in {}; known are {}", key, kWhat, fmt::join(known, ", ")));
    }
  }
  return spec;
}

}  // namespace

const char* name_of(Kind value) { return checked_name(value); }
const char* name_of(DType value) { return checked_name(value); }
const char* name_of(Layout value) { return checked_name(value); }
const char* name_of(AddressMap value) { return checked_name(value); }
const char* name_of(ScaleGranularity value) { return checked_name(value); }
const char* name_of(MaskKind value) { return checked_name(value); }

DType dtype_from_name(const std::string& name) { return parse_name<DType>(name, "dtype"); }
Layout layout_from_name(const std::string& name) { return parse_name<Layout>(name, "layout"); }

int bits_of(DType type) {
  auto index = static_cast<size_t>(type);
  if (index >= kDTypeBits.size()) throw Error(ErrorCode::internal, fmt::format("no element type has the number {}", index));
  return kDTypeBits[index];
}

std::string canonical_json(const AttentionSpec& spec) {
  nlohmann::json json = nlohmann::json::object();
  for_each_field(spec, [&](const char* key, const auto& field) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(field)>>) {
      json[key] = name_of(field);
    } else {
      json[key] = field;
    }
  });
  return canonical_text(json);
}

AttentionSpec spec_from_json(const std::string& text) { return read_spec(text, true); }
AttentionSpec spec_from_partial_json(const std::string& text) { return read_spec(text, false); }

std::string spec_key(const AttentionSpec& spec) { return sha256_hex(canonical_json(spec)); }

size_t AttentionSpecHash::operator()(const AttentionSpec& spec) const noexcept {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, over whole fields
  for_each_field(spec, [&](const char*, const auto& field) {
    hash = (hash ^ static_cast<uint64_t>(field)) * 0x100000001b3u;
    hash ^= hash >> 32;  // a table may use the low bits only
  });
  return static_cast<size_t>(hash);
}

int64_t kv_bytes(const AttentionSpec& spec, int64_t total_len) {
  int64_t bits_per_token_and_head = (int64_t{spec.head_dim_k} + spec.head_dim_v) * bits_of(spec.kv_dtype);
  return total_len * spec.kv_heads * (bits_per_token_and_head / 8);
}

AttentionSpec for_rank(const AttentionSpec& model, int tp) {
  const int q = model.q_heads;
  const int kv = model.kv_heads;
  if (tp < 1) throw Error(ErrorCode::invalid_argument, fmt::format("tp is {}; it must be 1 or more", tp));
  if (q < 1 || kv < 1 || q % kv != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("q_heads {} and kv_heads {}: both must be at least 1 and q_heads a multiple of kv_heads", q, kv));
  }
  const bool split = kv % tp == 0;
  const bool replicate = kv < tp && tp % kv == 0;
  if (!split && !replicate) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kv_heads {} cannot be spread over tp {}: kv_heads must be a multiple of tp, or tp a multiple of kv_heads; "
                            "choose another tp",
                            kv, tp));
  }
  if (q % tp != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("q_heads {} cannot be spread over tp {}: q_heads must be a multiple of tp; choose another tp", q, tp));
  }
  AttentionSpec rank = model;
  rank.q_heads = q / tp;
  rank.kv_heads = split ? kv / tp : 1;
  return rank;
}

}  // namespace pagetune
