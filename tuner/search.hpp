// Searchers: which candidates get first samples, before the race between those that are left. Pure: they see medians and a clock.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "codegen/config.hpp"

namespace pagetune {

// A candidate that may be timed once it was verified.
struct Entrant {
  KernelConfig config;
  int shared_bytes = 0;
  bool is_default = false;
  bool is_incumbent = false;  // the winner stored by an earlier session
};

enum class Search : unsigned char {
  racing,      // all of them, or, where the budget does not reach, one split count of every shape and then all of the three best shapes
  exhaustive,  // all of them to the last round, the slow ones too: the reference that regret is measured against
  model        // a few spread over the space, then those for which a model of the times so far expects the most
};
const char* name_of(Search);
// "racing", "exhaustive", "model"; Error invalid_argument that lists them.
Search search_from(const std::string& name);

// What is known so far.
struct Standings {
  std::vector<double> median_us;  // of each entrant: NaN: no sample yet, infinity: failed
  double seconds_left = 0;        // of the race's budget
  double sample_s = 0;            // what a sample has cost, at most
  double admit_s = 0;             // what the verification of a shape has cost, at most
  int first_samples = 0;          // of an entrant that is asked for
};

class Searcher {
 public:
  virtual ~Searcher() = default;
  // Entrants to sample now, in this order; some may have samples already, and get no more. Empty: nobody else.
  virtual std::vector<size_t> next(const Standings&) = 0;
};
// The entrants outlive the searcher. Every searcher asks for the default first, then, alone or with others, for the incumbent.
std::unique_ptr<Searcher> make_searcher(Search, const std::vector<Entrant>&);

}  // namespace pagetune
