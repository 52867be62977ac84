#include "cache_db/table_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pagetune {
namespace {

constexpr size_t kShortKey = 8;         // hex digits of a key in a file name
constexpr size_t kLongestDevice = 100;  // so that a name stays below the 255 bytes of common file systems

std::string spec_part(const AttentionSpec& spec) {
  std::string head = std::to_string(spec.head_dim_k);
  if (spec.head_dim_v != spec.head_dim_k) head += fmt::format("v{}", spec.head_dim_v);
  std::string name = fmt::format("head={},gqa={},kv_heads={},page={},dtype={}", head, spec.group_size(), spec.kv_heads, spec.page_size,
                                 name_of(spec.q_dtype));
  if (spec.kv_dtype != spec.q_dtype) name += fmt::format(",kv_dtype={}", name_of(spec.kv_dtype));
  name += fmt::format(",layout={}", name_of(spec.layout));
  if (spec.headwise) name += ",headwise=1";
  return name;
}

std::string device_part(const Environment& environment) { return environment.file_name().substr(0, kLongestDevice); }

}  // namespace

std::vector<NamedTable> named_tables(std::vector<Store::Row> rows) {
  std::map<std::pair<std::string, std::string>, std::map<Bucket, Store::Row>> grouped;  // (environment, spec) -> bucket -> row
  for (Store::Row& row : rows) {
    auto& table = grouped[{row.winner.env_key, row.winner.spec_key}];
    Bucket bucket = row.winner.bucket;
    table.insert_or_assign(bucket, std::move(row));
  }
  std::map<std::string, std::map<std::string, int>> specs_of_name, environments_of_name;
  for (const auto& [keys, table] : grouped) {
    const Store::Row& row = table.begin()->second;
    ++environments_of_name[device_part(row.environment)][keys.first];
    ++specs_of_name[spec_part(row.spec)][keys.second];
  }
  std::vector<NamedTable> tables;
  for (const auto& [keys, by_bucket] : grouped) {
    std::vector<Store::Row> table;
    for (const auto& [bucket, row] : by_bucket) table.push_back(row);
    const Store::Row& row = table.front();
    std::string name = spec_part(row.spec);
    if (specs_of_name[name].size() > 1) name += ",spec=" + keys.second.substr(0, kShortKey);
    std::string device = device_part(row.environment);
    name += ",device_name=" + device;
    if (environments_of_name[device].size() > 1) name += ",env=" + keys.first.substr(0, kShortKey);
    tables.push_back({name, std::move(table)});
  }
  std::sort(tables.begin(), tables.end(), [](const NamedTable& a, const NamedTable& b) { return a.name < b.name; });
  return tables;
}

}  // namespace pagetune
