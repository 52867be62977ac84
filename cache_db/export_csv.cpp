#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "cache_db/dispatch_columns.hpp"
#include "cache_db/export.hpp"
#include "codegen/space.hpp"

namespace pagetune {
namespace {

constexpr size_t kShortKey = 12;

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

// Shortest text that reads back to the same double; nothing for "unknown".
std::string number(double value) { return fmt::format("{}", value); }
std::string ratio(double value) { return fmt::format("{:.4f}", value); }

std::vector<std::string> cells(const Store::Row& row) {
  const Winner& w = row.winner;
  std::vector<std::string> line = {row.environment.device, row.environment.arch, w.env_key.substr(0, kShortKey), w.spec_key.substr(0, kShortKey)};
  std::map<std::string, int> dispatch = dispatch_values(row.spec);
  for (const char* column : kDispatchColumns) line.push_back(dispatch.contains(column) ? std::to_string(dispatch[column]) : "");
  int64_t bytes = kv_bytes(row.spec, int64_t{w.bucket.batch()} * w.bucket.len());
  bool rival = !w.runner_up.values().empty();
  line.push_back(w.bucket.text());
  line.push_back(w.config.canonical_json());
  line.push_back(number(w.median_us));
  line.push_back(number(w.ci_low_us));
  line.push_back(number(w.ci_high_us));
  line.push_back(w.median_us > 0 ? fmt::format("{:.1f}", static_cast<double>(bytes) / (w.median_us * 1e3)) : "");
  line.push_back(w.median_us > 0 && w.floor_us > 0 ? ratio(w.floor_us / w.median_us) : "");
  line.push_back(rival ? w.runner_up.canonical_json() : "");
  line.push_back(rival && w.median_us > 0 ? ratio(w.runner_up_us / w.median_us - 1) : "");
  line.push_back(number(w.error));
  line.push_back(w.reason);
  return line;
}

}  // namespace

std::string export_csv(std::vector<Store::Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) {
    return std::tie(a.environment.device, a.winner.env_key, a.winner.spec_key, a.winner.bucket) <
           std::tie(b.environment.device, b.winner.env_key, b.winner.spec_key, b.winner.bucket);
  });
  std::string text = fmt::format("environment,arch,env,spec,{},bucket,config,median_us,ci_low_us,ci_high_us,gb_per_s,fraction_of_floor,"
                                 "runner_up,gap,error,reason\n",
                                 fmt::join(kDispatchColumns, ","));
  for (const Store::Row& row : rows) {
    std::vector<std::string> line = cells(row);
    for (std::string& cell : line) cell = quoted(cell);
    text += fmt::format("{}\n", fmt::join(line, ","));
  }
  return text;
}

}  // namespace pagetune
