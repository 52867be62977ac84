#include "tuner/worker_messages.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "pagetune/error.hpp"

namespace pagetune {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Target, backend, arch, cpu_features, compute_capability, processors, shared_per_block, shared_per_processor, registers_per_processor,
                                   threads_per_processor, vector_bits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchFacts, params_size, params_version, variant, threads, shared_bytes, tile_tokens, rows_per_cta, head_tiles, merge_threads, kv_heads,
                                   q_heads, even_share, cluster, box_tokens, page_size, head_dim_k, head_dim_v, flat_map, dtype, registers, local_bytes, static_shared_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Bucket, batch_log2, len_log2)

using Json = nlohmann::json;

std::string real_text(double value) { return fmt::format("{:a}", value); }

double real_from_text(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is no real number", text));
  return value;
}

Json task_to_json(const WorkerTask& task) {
  return {{"device", task.device_id}, {"target", task.target}, {"store", task.store_dir}, {"spec", canonical_json(task.spec)}, {"policy", task.policy.canonical_json()}};
}

WorkerTask task_from_json(const Json& json) {
  return {json.at("device"), json.at("target").get<Target>(), json.at("store"), spec_from_json(json.at("spec")), MeasurePolicy::from_json(json.at("policy"))};
}

Json facts_to_json(const LaunchFacts& facts) { return facts; }
LaunchFacts facts_from_json(const Json& json) { return json.get<LaunchFacts>(); }

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
Bucket bucket_from_json(const Json& json) { return json.get<Bucket>(); }

}  // namespace pagetune
