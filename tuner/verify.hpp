// Is a compiled kernel right? Asked of every binary before it is timed.
#pragma once
#include <memory>

#include "runtime/device.hpp"
#include "tuner/device_problem.hpp"

namespace pagetune {

// A small fixed set of ragged problems of one spec on poisoned memory, with their references. Made once, asked for many modules.
class Verifier {
 public:
  Verifier(Device&, const AttentionSpec&);
  ~Verifier();

  // Runs every problem twice. Not ok: a wrong value, an element not written, NaN, a write outside, or other bits the second time.
  // error, max_abs and lse_max_abs are the worst of all problems.
  Check check(const Module&, LaunchPlan) const;

 private:
  struct Case;
  std::vector<std::unique_ptr<Case>> cases_;
};

Check verify(Device&, const Module&, const AttentionSpec&, LaunchPlan);

}  // namespace pagetune
