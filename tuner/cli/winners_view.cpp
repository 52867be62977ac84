#include "tuner/cli/winners_view.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/launch_plan.hpp"
#include "tuner/cli/table.hpp"

namespace pagetune::cli {
namespace {

double bytes_of(const AttentionSpec& spec, Bucket bucket) {
  return static_cast<double>(kv_bytes(spec, static_cast<int64_t>(bucket.batch()) * bucket.len()));
}

}  // namespace

std::string shape_text(const KernelConfig& config) {
  std::string text;
  for (const auto& [name, value] : config.values())
    if (name != "VARIANT" && name != "NUM_SPLITS") text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text;
}

std::string winners_table(const AttentionSpec& spec, const std::vector<Winner>& winners) {
  bool floors = std::any_of(winners.begin(), winners.end(), [](const Winner& w) { return w.floor_us > 0; });
  std::vector<std::string> names{"batch x len", "variant", ">splits", "config", ">median us", ">95 % interval", ">GB/s"};
  if (floors) names.push_back(">of floor");
  names.insert(names.end(), {">default us", ">tied", "reason"});
  Table table(names);
  for (const Winner& w : winners) {
    std::vector<std::string> row{w.bucket.text(), fmt::format("V{}", w.config.variant()), w.config.even_share() ? fmt::format("{}/4 wave", spread_of(w.config)) : fmt::format("{}", w.config.num_splits()), shape_text(w.config),
                                 fmt::format("{:.2f}", w.median_us), fmt::format("{:.2f} to {:.2f}", w.ci_low_us, w.ci_high_us),
                                 fmt::format("{:.1f}", bytes_of(spec, w.bucket) / w.median_us / 1000)};
    if (floors) row.push_back(w.floor_us > 0 ? fmt::format("{:.1f} %", 100 * w.floor_us / w.median_us) : "");
    row.insert(row.end(), {w.default_us > 0 ? fmt::format("{:.2f}", w.default_us) : "", fmt::format("{}", w.tied), w.reason});
    table.add(row);
  }
  return table.text();
}

nlohmann::ordered_json winner_json(const AttentionSpec& spec, const Winner& w) {
  nlohmann::ordered_json made{{"spec", nlohmann::ordered_json::parse(canonical_json(spec))},
                              {"batch", w.bucket.batch()},
                              {"len", w.bucket.len()},
                              {"config", nlohmann::ordered_json::parse(w.config.canonical_json())},
                              {"median_us", w.median_us},
                              {"ci_low_us", w.ci_low_us},
                              {"ci_high_us", w.ci_high_us},
                              {"samples", w.samples},
                              {"default_us", w.default_us},
                              {"gb_per_s", bytes_of(spec, w.bucket) / w.median_us / 1000},
                              {"floor_us", w.floor_us},
                              {"tied", w.tied},
                              {"reason", w.reason},
                              {"error", w.error}};
  if (!w.runner_up.values().empty()) {
    made["runner_up"] = nlohmann::ordered_json::parse(w.runner_up.canonical_json());
    made["runner_up_us"] = w.runner_up_us;
  }
  return made;
}

}  // namespace pagetune::cli
