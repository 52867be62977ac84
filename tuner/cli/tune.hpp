// Tuning as a step of a verb.
#pragma once
#include <string>

#include "tuner/cli/workset.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {

// --budget in seconds, --search by its name; UsageError.
double budget_seconds(const std::string& text);
Search search_option(const std::string& name);
// Runs a session over the list, with progress on stderr unless quiet.
SessionReport tune_workset(const Workset&, Store&, double budget_s, bool retune, bool quiet, Search = Search::racing, const std::function<void(const RecordedRace&)>& record = {});

}  // namespace pagetune::cli
