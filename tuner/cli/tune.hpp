// Tuning as a step of a verb.
#pragma once
#include <string>

#include "tuner/cli/workset.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {

// --budget in seconds, --search by its name; UsageError.
double budget_seconds(const std::string& text);
Search search_option(const std::string& name);

// How a session of the program runs. Workers: only `pagetune` itself has the verb for them.
struct TuneWays {
  bool workers = false;        // candidates run in worker processes
  bool beside_others = false;  // several devices at a time: what is shown names the device
  Search search = Search::racing;
  std::function<void(const RecordedRace&)> record;  // may be empty
};
// Runs a session over the list, with progress, or events, on stderr unless quiet.
SessionReport tune_workset(const Workset&, Store&, double budget_s, bool retune, bool quiet, const TuneWays& = {});

}  // namespace pagetune::cli
