// Reading and writing FastDeploy's template_config.json.
#pragma once
#include <string>
#include <vector>

#include "codegen/fastdeploy.hpp"

namespace pagetune::fastdeploy {

// A file of four entries has 9 KiB.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int64_t kMaxInstantiations = 100'000;
constexpr size_t kMaxParameters = 64;  // of a template; FastDeploy's have 12 at most, and what merges instantiations takes quadratic time in them

// What FastDeploy's generator accepts and compiles: its keys and no others, a value for each template parameter, no instantiation and no generated file twice. Entries in the order of
// their names. Error invalid_argument naming `file`, the place, the value and what is allowed.
std::vector<Entry> read_template_config(const std::string& file, const std::string& json_text);

// The text of such a file. Inverse of read_template_config().
std::string template_config_text(const std::vector<Entry>&);

}  // namespace pagetune::fastdeploy
