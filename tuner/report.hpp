// A tuned store as one HTML page for people: heat maps, the table of winners, what won. Pure.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

struct ReportInput {
  std::string title;                          // "llama-3.1-8b", "all winners of the store"
  std::vector<Store::Row> rows;               // in any order, not empty
  std::map<std::string, std::string> layers;  // spec key -> "layers 0-31"; a spec that is not here gets no such text
};

// One file without references to others: styles, scripts and figures are inside. The same rows give the same bytes with the same build. All text
// from rows is escaped.
std::string report_html(ReportInput);

}  // namespace pagetune
