#include <map>

#include "codegen/generate.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

extern "C" {
#define EMBEDDED(index, path) extern const char pt_embedded_##index##_begin[], pt_embedded_##index##_end[];
#include "embedded_table.inc"
#undef EMBEDDED
}

namespace pagetune {
namespace {

const std::map<std::string, std::string>& table() {
  static const std::map<std::string, std::string> files = {
#define EMBEDDED(index, path) {path, std::string(pt_embedded_##index##_begin, pt_embedded_##index##_end)},
#include "embedded_table.inc"
#undef EMBEDDED
  };
  return files;
}

}  // namespace

const std::string& embedded_file(const std::string& path) {
  auto found = table().find(path);
  if (found == table().end()) throw Error(ErrorCode::internal, "no file '" + path + "' is embedded in this build");
  return found->second;
}

std::vector<std::string> embedded_files() {
  std::vector<std::string> paths;
  for (const auto& [path, text] : table()) paths.push_back(path);
  return paths;
}

const std::string& generator_hash() {
  static const std::string hash = [] {
    std::string all;
    for (const auto& [path, text] : table()) {
      if (path == "configs/template_config.json") continue;  // the space has a hash of its own
      all += path + '\0' + std::to_string(text.size()) + '\0' + text;
    }
    return sha256_hex(all);
  }();
  return hash;
}

}  // namespace pagetune
