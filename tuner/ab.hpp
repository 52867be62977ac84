// Two configs against each other: when to stop, and what may then be said. Times, the clock and the stop request come in as callbacks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tuner/policy.hpp"
#include "tuner/statistics.hpp"
#include "tuner/workbench.hpp"

namespace pagetune {

struct AbHooks {
  std::function<double()> a_us, b_us;     // one sample each, in microseconds per launch
  std::function<double()> seconds_left;   // of the budget
  std::function<bool()> interrupted;      // asked between rounds
};

enum class AbVerdict : unsigned char { a_faster, b_faster, same, undecided, wrong };
const char* name_of(AbVerdict);

struct AbResult {
  AbVerdict verdict = AbVerdict::undecided;
  Verdict a_check, b_check;   // against the oracle; of compare(). Of a wrong one nothing below has a value
  double a_us = 0, b_us = 0;  // medians
  double ratio = 0;           // median over the rounds of time of B / time of A
  Interval interval;          // 95 %, of that median; the extremes where there are too few rounds for one
  int rounds = 0;
  bool interrupted = false;
};

// Rounds of one sample each, A first in one and B first in the next. Ends when it is known which is faster by more than the tie band, or that the
// two lie within it, when the budget is used up, or on request. There is one round at least. Error internal for a time that is not positive.
AbResult run_ab(const MeasurePolicy&, const AbHooks&);

// Builds and verifies both on the workbench; if one is wrong neither is timed, and there is one result that says so. Else run_ab() `times` times on one problem of the bucket,
// less often if it is interrupted: the budget is that of the rounds of each. Errors of the workbench pass through.
std::vector<AbResult> compare(Workbench&, Bucket, const KernelConfig& a, const KernelConfig& b, const MeasurePolicy&, int times, double budget_s, const std::function<double()>& now_s,
                              const std::function<bool()>& interrupted);

// "B is 3.2 % faster (95 % interval 2.9 to 3.6 %)", "no difference: within 2 %", "not decided within 20 s": faster is the share by which
// more launches fit into the same time. A wrong result is named with what is wrong.
std::string sentence(const AbResult&, const MeasurePolicy&, double budget_s);

}  // namespace pagetune
