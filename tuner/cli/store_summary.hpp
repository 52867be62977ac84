// What a store holds, counted as operators ask for it.
#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cache_db/inspection.hpp"

namespace pagetune::cli {

// The winners of one kernel on one environment.
struct WinnerCount {
  std::string env_key;
  Environment environment;
  AttentionSpec spec;
  int winners = 0;
  int current = 0;                             // measured as this build would measure: the others are unconfirmed
  int generator = 0, space = 0, policy = 0;    // of the unconfirmed, those of another kernel generator, config space, measuring policy
  int blocked = 0;                             // whose kernel was found wrong or crashing since: they do not answer
  WinnerCount& operator+=(const WinnerCount&);
};
std::vector<WinnerCount> count_winners(const StoreReport&);  // sorted by (environment, spec)

// Calls that were counted and have no current winner, the most frequent first.
std::vector<Store::Untuned> waiting_calls(const StoreReport&);

// "2026-01-31" of days since 1970.
std::string date_text(int64_t days);
// "13.4 MiB"
std::string bytes_text(int64_t bytes);
// "1 winner", "2 winners"; `plural` if it is not the noun and an s.
std::string counted(int64_t count, const std::string& noun, const std::string& plural = "");

// "--store", "--json" of the verbs that look after a store.
struct CareOptions {
  std::string store;
  bool json = false;
};
void add_care_options(CLI::App&, CareOptions&);

nlohmann::ordered_json file_json(const FileReport&);
// As text, whatever bytes damage left in its strings.
std::string document_text(const nlohmann::ordered_json&);

// The directory that verbs which look after a store work on: `wanted`, else the default one; as an absolute path, or ":memory:". Makes nothing.
std::string store_directory(const std::string& wanted);

}  // namespace pagetune::cli
