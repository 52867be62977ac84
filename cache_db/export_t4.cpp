#include <nlohmann/json.hpp>

#include <utility>

#include "cache_db/export.hpp"
#include "cache_db/table_names.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kT4Version = "1.0.0";

// Kernel Tuner gives times in milliseconds.
double ms(double us) { return us / 1000; }

Json measurement(const char* name, double value, const char* unit) { return {{"name", name}, {"value", value}, {"unit", unit}}; }

// One problem and the config that was chosen or came second. A file has one space: the bucket's batch and length are parameters of it.
Json result(const Winner& winner, const KernelConfig& config, double median_us) {
  Json configuration = Json::parse(config.canonical_json());
  configuration["BATCH"] = winner.bucket.batch();
  configuration["LEN"] = winner.bucket.len();
  return {{"configuration", configuration},
          {"times", {{"runtimes", Json::array({ms(median_us)})}}},
          {"invalidity", "correct"},  // others never win
          {"correctness", 1},
          {"measurements", Json::array({measurement("time", ms(median_us), "ms")})},
          {"objectives", Json::array({"time"})}};
}

std::string text_of(const NamedTable& table) {
  Json results = Json::array();
  for (const auto& [winner, environment, spec] : table.rows) {
    Json chosen = result(winner, winner.config, winner.median_us);
    for (const auto& [name, value] : {std::pair("time_ci_low", winner.ci_low_us), {"time_ci_high", winner.ci_high_us}, {"time_default", winner.default_us}})
      chosen["measurements"].push_back(measurement(name, ms(value), "ms"));
    chosen["measurements"].push_back(measurement("samples", winner.samples, ""));
    chosen["measurements"].push_back(measurement("error", winner.error, ""));
    results.push_back(std::move(chosen));
    if (!winner.runner_up.values().empty()) results.push_back(result(winner, winner.runner_up, winner.runner_up_us));
  }
  const Store::Row& first = table.rows.front();
  const Json environment = {{"device_query", Json::parse(first.environment.canonical_json())}, {"requirements", Json::array({std::string("pagetune==") + PAGETUNE_VERSION})}};
  return Json{{"schema_version", kT4Version}, {"metadata", {{"environment", environment}, {"problem", Json::parse(canonical_json(first.spec))}}}, {"results", results}}.dump(
             2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace

std::vector<ExportedFile> export_t4(std::vector<Store::Row> rows) {
  std::vector<ExportedFile> files;
  for (const NamedTable& table : named_tables(std::move(rows))) files.push_back({table.name + ".t4.json", text_of(table)});
  return files;
}

}  // namespace pagetune
