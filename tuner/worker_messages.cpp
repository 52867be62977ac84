#include "tuner/worker_messages.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "codegen/json.hpp"

namespace pagetune {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Target, backend, arch, cpu_features, compute_capability, processors, shared_per_block, shared_per_processor, registers_per_processor,
                                   threads_per_processor, vector_bits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchFacts, params_size, params_version, variant, threads, shared_bytes, tile_tokens, rows_per_cta, head_tiles, merge_threads, kv_heads,
                                   q_heads, even_share, cluster, box_tokens, page_size, head_dim_k, head_dim_v, flat_map, dtype, registers, local_bytes, static_shared_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Bucket, batch_log2, len_log2)

using Json = nlohmann::json;

namespace {

// The library would cut a number that does not fit.
template <class T>
T of_integers(const Json& json, const char* what) {
  for (const auto& [key, value] : json.items())
    if (value.is_number()) int_from_json(value, key, what);
  return json.get<T>();
}

}  // namespace

WorkerAnswer answer_from_line(const std::string& line, int64_t id) {
  constexpr const char* kWhat = "the worker's answer";
  const Json answer = parse_json(line, kWhat);
  if (answer.at("id") != id) throw Error(ErrorCode::invalid_argument, fmt::format("{} is to request {}; {} was asked", kWhat, canonical_text(answer["id"]), id));
  if (answer.contains("ok")) return {answer["ok"], std::nullopt};
  const Json& error = answer.at("error");
  const int code = int_from_json(error.at("code"), "code", kWhat);
  if (code < static_cast<int>(ErrorCode::invalid_argument) || code > static_cast<int>(ErrorCode::context_lost))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has the error code {}; there are {} to {}", kWhat, code, static_cast<int>(ErrorCode::invalid_argument), static_cast<int>(ErrorCode::context_lost)));
  return {nullptr, Error(static_cast<ErrorCode>(code), error.at("message").get<std::string>())};
}

std::string real_text(double value) { return fmt::format("{:a}", value); }

double real_from_text(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.data() + text.size()) throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is no real number", text));
  return value;
}

Json task_to_json(const WorkerTask& task) {
  return {{"device", task.device_id}, {"target", task.target}, {"store", task.store_dir}, {"spec", canonical_json(task.spec)}, {"policy", task.policy.canonical_json()}};
}

WorkerTask task_from_json(const Json& json) {
  return {json.at("device"), of_integers<Target>(json.at("target"), "the target"), json.at("store"), spec_from_json(json.at("spec")), MeasurePolicy::from_json(json.at("policy"))};
}

Json facts_to_json(const LaunchFacts& facts) { return facts; }
LaunchFacts facts_from_json(const Json& json) { return of_integers<LaunchFacts>(json, "the launch facts"); }

Json verdict_to_json(const Verdict& verdict) { return {{"right", verdict.ok}, {"error", real_text(verdict.error)}, {"what", verdict.what}}; }
Verdict verdict_from_json(const Json& json) { return {json.at("right"), real_from_text(json.at("error")), json.at("what")}; }

Json configs_to_json(const std::vector<KernelConfig>& configs) {
  Json list = Json::array();
  for (const KernelConfig& config : configs) list.push_back(config.canonical_json());
  return list;
}

std::vector<KernelConfig> configs_from_json(const Json& json) {
  std::vector<KernelConfig> configs;
  for (const Json& text : json) configs.push_back(KernelConfig::from_json(text));
  return configs;
}

Json bucket_to_json(Bucket bucket) { return bucket; }
Bucket bucket_from_json(const Json& json) { return of_integers<Bucket>(json, "the bucket"); }

}  // namespace pagetune
