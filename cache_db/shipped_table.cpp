#include "cache_db/shipped_table.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "cache_db/source.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// An object of this library or program, for dladdr().
const char kHere = 0;

}  // namespace

std::string ShippedTable::default_path() {
  if (const char* set = std::getenv("PAGETUNE_SYSTEM_DB")) return set;
  Dl_info info{};
  if (dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  if (error) return "";
  for (const char* place : {"pagetune/winners.db", "../share/pagetune/winners.db"}) {
    const std::filesystem::path path = file.parent_path() / place;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}

std::vector<Store::Row> ShippedTable::rows_of(const std::string& spec_key) const {
  if (path_.empty()) return {};
  try {
    Source source = read_source(path_, spec_key);
    for (const std::string& problem : source.problems) problems_.say(problem);
    return std::move(source.content.rows);
  } catch (const Error& failure) {
    problems_.say(std::string(failure.what()) + "; the winners that come with pagetune do not count, set PAGETUNE_SYSTEM_DB to another such file or to nothing");
    return {};
  }
}

}  // namespace pagetune
