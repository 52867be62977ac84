#include "codegen/fastdeploy_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/json.hpp"
#include "codegen/json_fields.hpp"
#include "pagetune/error.hpp"

namespace pagetune::fastdeploy {
namespace {

// Names go into C++ code, names of files and messages.
std::string name(const JsonFields& fields, const nlohmann::json& json, const std::string& where, const std::string& also = "") {
  std::string text = fields.text(json, where);
  constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  if (text.find_first_not_of(kLetters + also) != std::string::npos) {
    fields.fail(where, fmt::format("is {}; allowed are letters, digits{} and _", canonical_text(json), also.empty() ? "" : fmt::format(", {}", fmt::join(also, ", "))));
  }
  return text;
}

std::vector<std::string> template_params(const JsonFields& fields, const nlohmann::json& json, const std::string& where) {
  const size_t count = fields.array(json, where).size();
  if (count > kMaxParameters) fields.fail(where, fmt::format("has {} names; a template may have {} parameters", count, kMaxParameters));
  std::vector<std::string> names;
  for (const auto& item : json) {
    names.push_back(name(fields, item, where));
    if (std::count(names.begin(), names.end(), names.back()) > 1) fields.fail(where, fmt::format("names {} twice", names.back()));
  }
  if (std::find(names.begin(), names.end(), "T") == names.end()) fields.fail(where, "lacks T, the type that data_types gives");
  return names;
}

// The generator takes T and OutT from data_types and derives NUM_WARP_Q from BLOCK_SHAPE_Q.
std::vector<Entry::Parameter> dispatch_params(const JsonFields& fields, const nlohmann::json& json, const std::string& where, const std::vector<std::string>& names) {
  std::vector<Entry::Parameter> params;
  for (const std::string& param : names) {
    if (param == "T" || param == "OutT") continue;
    const std::string key = param == "NUM_WARP_Q" ? "BLOCK_SHAPE_Q" : param;
    if (!fields.object(json, where).contains(key)) fields.fail(where, fmt::format("lacks values of {}, from which the template parameter {} is taken", key, param));
    if (key == param) params.push_back({param, fields.distinct_integers(json[param], where + "." + param)});
  }
  for (const auto& [key, values] : json.items()) {
    if (std::none_of(params.begin(), params.end(), [&, &param = key](const Entry::Parameter& known) { return known.name == param; })) {
      fields.fail(where, fmt::format("has values of {}, which no template parameter takes: each instantiation would be there once for each of them; template_params are {}",
                                     canonical_text(key), fmt::join(names, ", ")));
    }
  }
  return params;
}

std::vector<Entry::DataType> data_types(const JsonFields& fields, const nlohmann::json& json, const std::string& where, bool has_out) {
  std::vector<Entry::DataType> rows;
  std::set<std::pair<std::string, std::string>> types;
  for (const auto& row : fields.array(json, where)) {
    if (!row.is_array() || row.size() != 3) fields.fail(where, fmt::format("has the row {}; a row is [T, OutT, suffix of the files]", canonical_text(row)));
    const bool no_out = !has_out && row[1] == "";
    rows.push_back({name(fields, row[0], where, ":"), no_out ? "" : name(fields, row[1], where, ":"), name(fields, row[2], where)});
    if (!types.emplace(rows.back().in, has_out ? rows.back().out : "").second) fields.fail(where, fmt::format("names the types of {} twice", canonical_text(row)));
  }
  if (rows.empty()) fields.fail(where, "is empty; name at least one row [T, OutT, suffix of the files]");
  return rows;
}

// The generator replaces these two by Python's str.format(), for which any other brace is an error.
std::string function_signature(const JsonFields& fields, const nlohmann::json& json, const std::string& where) {
  const std::string text = fields.text(json, where);
  std::string rest = text;
  for (const std::string placeholder : {"{function_name}", "{template_args}"}) {
    const size_t at = rest.find(placeholder);
    if (at == std::string::npos) fields.fail(where, fmt::format("lacks {}", placeholder));
    rest.erase(at, placeholder.size());
  }
  if (rest.find_first_of("{}") != std::string::npos) fields.fail(where, "has braces beside {function_name} and {template_args}, once each");
  return text;
}

Entry read_entry(const JsonFields& fields, const std::string& key, const nlohmann::json& json) {
  fields.check_keys(fields.object(json, key), key,
                    {"name", "function_name", "impl_file", "template_params", "dispatch_params", "data_types", "max_instances_per_file", "file_prefix", "function_signature"});
  Entry entry;
  entry.name = name(fields, json["name"], key + ".name");
  if (entry.name != key) fields.fail(key + ".name", fmt::format("is '{}'; it must be the entry's own key '{}'", entry.name, key));
  entry.function_name = name(fields, json["function_name"], key + ".function_name", ":");
  entry.impl_file = name(fields, json["impl_file"], key + ".impl_file", "./-");
  entry.template_params = template_params(fields, json["template_params"], key + ".template_params");
  entry.dispatch_params = dispatch_params(fields, json["dispatch_params"], key + ".dispatch_params", entry.template_params);
  const bool has_out = std::find(entry.template_params.begin(), entry.template_params.end(), "OutT") != entry.template_params.end();
  entry.data_types = data_types(fields, json["data_types"], key + ".data_types", has_out);
  entry.max_instances_per_file = fields.integer(json["max_instances_per_file"], key + ".max_instances_per_file");
  if (entry.max_instances_per_file < 1) fields.fail(key + ".max_instances_per_file", fmt::format("is {}; it must be at least 1", entry.max_instances_per_file));
  entry.file_prefix = name(fields, json["file_prefix"], key + ".file_prefix");
  entry.function_signature = function_signature(fields, json["function_signature"], key + ".function_signature");
  return entry;
}

void check_file_names(const JsonFields& fields, const std::vector<Entry>& entries) {
  std::map<std::string, std::string> writers;
  for (const Entry& entry : entries) {
    for (const Entry::DataType& type : entry.data_types) {
      const auto [writer, fresh] = writers.emplace(entry.file_prefix + type.suffix, entry.name);
      if (!fresh) fields.fail(entry.name + ".file_prefix", fmt::format("and a suffix give the files {}, which {} writes too: name another prefix or suffix", writer->first, writer->second));
    }
  }
}

// Bounded at each step, so that no product overflows.
void check_count(const JsonFields& fields, const std::vector<Entry>& entries) {
  int64_t total = 0;
  for (const Entry& entry : entries) {
    auto count = static_cast<int64_t>(entry.data_types.size());
    for (const Entry::Parameter& param : entry.dispatch_params) count = std::min(count * static_cast<int64_t>(param.values.size()), kMaxInstantiations + 1);
    total += count;
    if (total > kMaxInstantiations) fields.fail(entry.name, fmt::format("brings the file's instantiations over {}; name fewer values", kMaxInstantiations));
  }
}

}  // namespace

std::vector<Entry> read_template_config(const std::string& file, const std::string& json_text) {
  if (json_text.size() > kMaxFileBytes)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} bytes; a template config may have {}. Give FastDeploy's custom_ops/gpu_ops/append_attn/template_config.json", file, json_text.size(), kMaxFileBytes));
  const nlohmann::json json = parse_json(json_text, file);
  if (!json.is_object() || json.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be an object with an entry for each kernel template, not {}", file, json.is_object() ? "an empty one" : json.type_name()));
  const JsonFields fields(file);
  std::vector<Entry> entries;
  for (const auto& [key, value] : json.items()) entries.push_back(read_entry(fields, name(fields, key, "a key"), value));
  check_file_names(fields, entries);
  check_count(fields, entries);
  return entries;
}

std::string template_config_text(const std::vector<Entry>& entries) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Entry& entry : entries) {
    nlohmann::ordered_json params = nlohmann::ordered_json::object(), types = nlohmann::ordered_json::array();
    for (const Entry::Parameter& param : entry.dispatch_params) params[param.name] = param.values;
    for (const Entry::DataType& type : entry.data_types) types.push_back({type.in, type.out, type.suffix});
    json[entry.name] = {{"name", entry.name},
                        {"function_name", entry.function_name},
                        {"impl_file", entry.impl_file},
                        {"template_params", entry.template_params},
                        {"dispatch_params", params},
                        {"data_types", types},
                        {"max_instances_per_file", entry.max_instances_per_file},
                        {"file_prefix", entry.file_prefix},
                        {"function_signature", entry.function_signature}};
  }
  return json.dump(2) + "\n";
}

}  // namespace pagetune::fastdeploy
