// What `doctor` looks at, one check each: what was found, and what to do about it.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache_db/inspection.hpp"

namespace pagetune::cli {

enum class Level : unsigned char { ok, warning, error };
const char* name_of(Level);

struct Check {
  Level level = Level::ok;
  std::string what;    // "NVRTC"
  std::string found;   // one sentence
  std::string remedy;  // what to do; empty where all is well
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // the same for programs
};

// The driver, NVRTC, the CPU backend, SQLite. Compiles a kernel for each device, which nothing keeps. `devices` gets those that can be used.
std::vector<Check> machine_checks(std::vector<Environment>& devices);

// The cache directory and what lies in it, of which nothing is made or changed. `dir`: an absolute path or ":memory:"; `rule`: what chose it.
std::vector<Check> store_checks(const std::string& dir, const std::string& rule, const std::vector<Environment>& devices);

}  // namespace pagetune::cli
