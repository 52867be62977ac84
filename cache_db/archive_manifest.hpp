// The list that stands first in an archive of binaries.
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "codegen/binary.hpp"

namespace pagetune {

inline constexpr size_t kLargestManifest = size_t{16} << 20;  // bytes
inline constexpr size_t kMostArchivedBinaries = 50'000;       // kernels.db holds some thousands

// JSON with sorted keys: "format", "pagetune_version", "compilers", and "binaries" with "key", "target", "kind", "size" and "sha256" of each, in the order given.
std::string manifest_text(const std::vector<Binary>&, const std::set<std::string>& compilers);

struct Announced {
  Binary binary;  // without its data
  size_t size = 0;
};
using Manifest = std::map<std::string, Announced>;  // by key

// `file` is named in messages. Error invalid_argument for anything that manifest_text() does not write, for a key that is there twice and for more than a store holds.
Manifest parse_manifest(const std::string& file, const std::string& text);

}  // namespace pagetune
