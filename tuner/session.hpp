// A tuning session: from a work list to winners in the store.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/store.hpp"
#include "tuner/policy.hpp"
#include "tuner/recording.hpp"
#include "tuner/search.hpp"
#include "tuner/workbench.hpp"
#include "tuner/worklist.hpp"

namespace pagetune {

struct Progress {
  size_t work = 0, works = 0;   // index of the running work among those to do
  std::string what;             // "bucket 8x8192: compiling 24 kernels"
  double eta_s = 0;             // until the session ends; at most what is left of the budget
};

enum class Outcome : unsigned char { tuned, stored_before, failed, not_reached };
const char* name_of(Outcome);

struct WorkResult {
  Work work;
  Outcome outcome = Outcome::not_reached;
  std::optional<Winner> winner;        // of tuned and stored_before
  std::string message;                 // why not, one sentence
  int candidates = 0, timed = 0;       // after pruning; of them with a time
  std::vector<std::pair<std::string, int>> rejected;  // reason -> how many, before and in the race
};

// Where a session runs.
struct SessionContext {
  Target target;
  Environment environment;
  Store* store = nullptr;
  std::function<std::unique_ptr<Workbench>(const AttentionSpec&)> workbench;
  std::function<double()> now_s;        // steady clock, seconds
  std::function<bool()> interrupted;    // the user wants to stop: the running round is finished
  std::function<void(const Progress&)> progress;
  std::function<void(const WorkResult&)> ended;  // of a work, once its winner is stored or it has failed; may be empty
};

struct SessionOptions {
  double budget_s = 180;
  bool retune = false;  // also what is in the store already
  MeasurePolicy policy;
  Search search = Search::racing;
  std::function<void(const RecordedRace&)> record;  // gets every race with its samples; may be empty
  std::string id;       // recorded with each winner
};

struct SessionReport {
  std::vector<WorkResult> works;       // in the order of the work list
  std::vector<std::string> wrong;      // candidates with a wrong result or that took their workers along, one sentence each: they are blocked
  std::vector<std::string> left_out;   // candidates whose workers somebody else ended: the next session tries them again
  std::vector<std::string> throttled;  // problems in whose race the device slowed down and stayed slow
  bool interrupted = false;
  int count(Outcome) const;
  bool complete() const;               // every work has its winner, and no candidate was blocked or left out
};

// Throws WorkerUnavailable if the device's worker cannot be had any more; what was tuned before is stored.
SessionReport run_session(const SessionContext&, const SessionOptions&, const std::vector<Work>&);

// What of its measurement is not as this build and policy would make it: such a winner is unconfirmed.
struct Changes {
  bool policy = false, space = false, generator = false;
  bool any() const { return policy || space || generator; }
};
Changes changes_since(const Winner&, const AttentionSpec&, const Target&, const MeasurePolicy&);
// Does a stored winner answer for the same measurement as this build and policy would make?
bool is_current(const Winner&, const AttentionSpec&, const Target&, const MeasurePolicy&);
// The stored winner of a work that is_current() and not blocked since, if any.
std::optional<Winner> current_winner(const Store&, const std::string& env_key, const Work&, const Target&, const MeasurePolicy&);

}  // namespace pagetune
