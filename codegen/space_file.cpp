#include "codegen/space_file.hpp"

#include <fmt/format.h>

#include "codegen/json.hpp"
#include "codegen/json_fields.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kWhat = "the config space";

Domain domain(const JsonFields& fields, const nlohmann::json& json, const std::string& where) {
  Domain result;
  if (json.is_array()) {
    result.values = fields.distinct_integers(json, where);
    return result;
  }
  fields.check_keys(fields.object(json, where), where, {"min", "max", "step"});
  result.min = fields.integer(json["min"], where + ".min");
  result.max = fields.integer(json["max"], where + ".max");
  result.step = fields.integer(json["step"], where + ".step");
  if (result.min > result.max || result.step < 1) {
    fields.fail(where, fmt::format("has min {}, max {}, step {}; min must not be over max, and step at least 1", result.min, result.max, result.step));
  }
  return result;
}

Family family(const JsonFields& fields, const std::string& entry, const nlohmann::json& json) {
  fields.check_keys(fields.object(json, entry), entry,
                    {"name", "function_name", "impl_file", "template_params", "dispatch_params", "data_types", "tuning_params", "derived", "conditions"});
  Family family;
  family.name = fields.text(json["name"], entry + ".name");
  if (family.name != entry) fields.fail(entry + ".name", fmt::format("is '{}'; it must be the entry's own key '{}'", family.name, entry));
  family.function_name = fields.text(json["function_name"], entry + ".function_name");
  family.impl_file = fields.text(json["impl_file"], entry + ".impl_file");
  family.template_params = fields.texts(json["template_params"], entry + ".template_params");
  for (const auto& [name, value] : fields.object(json["dispatch_params"], entry + ".dispatch_params").items()) {
    family.dispatch_params[name] = domain(fields, value, fmt::format("{}.dispatch_params.{}", entry, name));
  }
  for (const auto& row : fields.array(json["data_types"], entry + ".data_types")) {
    family.data_types.push_back(fields.texts(row, entry + ".data_types"));
    if (family.data_types.back().size() != 3) {
      fields.fail(entry + ".data_types", fmt::format("has the row {}; a row is [in, out, suffix]", canonical_text(row)));
    }
  }
  for (const auto& [name, value] : fields.object(json["tuning_params"], entry + ".tuning_params").items()) {
    family.tuning_params[name] = fields.distinct_integers(value, fmt::format("{}.tuning_params.{}", entry, name));
  }
  for (const auto& item : fields.array(json["derived"], entry + ".derived")) {
    const std::string where = entry + ".derived";
    fields.check_keys(fields.object(item, where), where, {"name", "expression"});
    family.derived.push_back({fields.text(item["name"], where + ".name"), fields.text(item["expression"], where + ".expression")});
  }
  for (const auto& item : fields.array(json["conditions"], entry + ".conditions")) {
    const std::string where = entry + ".conditions";
    fields.check_keys(fields.object(item, where), where, {"expression", "reason"});
    family.conditions.push_back({fields.text(item["expression"], where + ".expression"), fields.text(item["reason"], where + ".reason")});
  }
  return family;
}

}  // namespace

std::vector<Family> read_families(const std::string& json_text) {
  const nlohmann::json json = parse_json(json_text, kWhat);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be an object of kernel families, not {}", kWhat, json.type_name()));
  }
  std::vector<Family> families;
  for (const auto& [entry, value] : json.items()) families.push_back(family(JsonFields(kWhat), entry, value));
  return families;
}

}  // namespace pagetune
