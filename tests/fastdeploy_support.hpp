// FastDeploy's file as tests read it, and its generator as they model it.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fastdeploy_support {

using Json = nlohmann::ordered_json;

inline constexpr const char* kFile = PAGETUNE_SOURCE_DIR "/tests/fuzz/corpus/template_config/append_attention.json";

inline std::string file_text(const std::string& path = kFile) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// What the generator writes: the instantiations as C++ names them, and the names of the files.
struct Generated {
  std::multiset<std::string> instantiations;
  std::multiset<std::string> files;
};

// As custom_ops/utils/auto_gen_template_instantiation.py works: for each data type the product of dispatch_params, of which the arguments are taken by name.
inline Generated generate(const std::string& text) {
  Generated all;
  const Json json = Json::parse(text);
  for (const auto& [key, entry] : json.items()) {
    for (const Json& row : entry["data_types"]) {
      std::vector<Json> combinations{Json::object()};
      for (const auto& [param, values] : entry["dispatch_params"].items()) {
        std::vector<Json> longer;
        for (const Json& combination : combinations) {
          for (const Json& value : values) {
            longer.push_back(combination);
            longer.back()[param] = value;
          }
        }
        combinations = std::move(longer);
      }
      for (size_t i = 0; i < combinations.size(); ++i) {
        std::vector<std::string> arguments;
        for (const Json& param : entry["template_params"]) {
          const auto name = param.get<std::string>();
          if (name == "T") arguments.push_back(row[0]);
          else if (name == "OutT") arguments.push_back(row[1]);
          else if (name == "NUM_WARP_Q") arguments.emplace_back(combinations[i].at("BLOCK_SHAPE_Q") <= 32 ? "1" : "4");
          else arguments.push_back(combinations[i].at(name).dump());
        }
        all.instantiations.insert(fmt::format("{}<{}>", entry["function_name"].get<std::string>(), fmt::join(arguments, ", ")));
        const size_t most = entry["max_instances_per_file"];
        if (i % most == 0) all.files.insert(fmt::format("{}{}_part_{:02}.cu", entry["file_prefix"].get<std::string>(), row[2].get<std::string>(), i / most));
      }
    }
  }
  return all;
}

}  // namespace fastdeploy_support
