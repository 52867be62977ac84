#include <utility>

#include "cache_db/export.hpp"
#include "cache_db/table_format.hpp"
#include "cache_db/table_names.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/sha256.hpp"

namespace pagetune {
namespace {

using Table = std::vector<Store::Row>;

nlohmann::ordered_json metadata(const Table& table) {
  const Store::Row& first = table.front();
  nlohmann::ordered_json json;
  json["format"] = kTableFormat;
  json["pagetune_version"] = PAGETUNE_VERSION;
  json["digest"] = table_digest(table);
  json["environment"] = nlohmann::ordered_json::parse(first.environment.canonical_json());
  json["spec"] = nlohmann::ordered_json::parse(canonical_json(first.spec));
  nlohmann::ordered_json winner = winner_to_json(first.winner);
  for (const char* field : kSharedFields) json[field] = winner[field];
  return json;
}

std::string table_text(const Table& table) {
  nlohmann::ordered_json json;
  json[kMetadataKey] = metadata(table);
  for (const Store::Row& row : table) {
    nlohmann::ordered_json winner = winner_to_json(row.winner);
    for (const char* field : kSharedFields) {
      if (winner[field] == json[kMetadataKey][field]) winner.erase(field);
    }
    json[row.winner.bucket.text()] = std::move(winner);
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string table_digest(const std::vector<Store::Row>& rows) {
  std::string all = rows.front().environment.canonical_json() + "\n" + canonical_json(rows.front().spec) + "\n";
  for (const Store::Row& row : rows) all += winner_digest(row.winner) + "\n";
  return sha256_hex(all);
}

std::vector<ExportedFile> export_json(std::vector<Store::Row> rows) {
  std::vector<ExportedFile> files;
  for (const NamedTable& table : named_tables(std::move(rows))) files.push_back({table.name + ".json", table_text(table.rows)});
  return files;
}

}  // namespace pagetune
