// A HostProblem on a device, its outputs, and the verdict on them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "codegen/launch_plan.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/device.hpp"
#include "tuner/guarded.hpp"
#include "tuner/host_problem.hpp"
#include "tuner/oracle.hpp"

namespace pagetune {

struct Check {
  bool ok = true;
  double error = 0;        // |out - ref| / |ref|, Euclidean over the whole output
  double max_abs = 0;      // largest |out - ref|
  double lse_max_abs = 0;  // the same of the LSE, over rows that see a key; 0 for a spec without LSE
  std::string what;        // empty if ok; else what is wrong and where, one sentence
};

// What a launch left behind, as values: out [row][q_heads][head_dim_v] without strides, lse [row][q_heads] if the spec has it.
struct Outputs {
  std::vector<char> out;   // elements of the spec's out_dtype
  std::vector<float> lse;
  bool operator==(const Outputs& other) const;  // bit for bit
};

// Every element written, no NaN, empty rows exactly 0 and -inf (or their sink), and within the tolerance of the spec's types as a whole and
// row by row. Rows whose reference is NaN must still be NaN.
Check compare(const AttentionSpec&, int64_t rows, const Outputs&, const Reference&);

class DeviceProblem {
 public:
  // Copies the problem. The HostProblem must outlive this and must not change (with the sparse shape, on the CPU, it is used in place).
  DeviceProblem(Device&, const HostProblem&);
  ~DeviceProblem();

  // Parameters for a launch; workspace of workspace_bytes().
  const pt_decode_params& params() const { return params_; }
  void set_flags(unsigned flags) { params_.flags = flags; }  // PT_LAUNCH_…, of the launches from here on

  // Poisons outputs and a workspace of exactly this size, for a launch of the caller's.
  void poison(size_t workspace_bytes);
  // The same, launches and waits. Call outputs() and check() afterwards.
  void run(const Module&, LaunchPlan);
  // The same, in the workspace as the launch before left it.
  void run_again(const Module&, LaunchPlan);
  void run(Kernel&);
  void run(Kernel&, Selection);

  Outputs outputs() const;
  // compare(), and: nothing but out, LSE and workspace has changed, guard zones included.
  Check check(const Reference&) const;
  // Of the last run of a checked spec.
  pt_error_record error_record() const;

 private:
  class Memory;
  void poison_outputs();
  void launch(const Module&, LaunchPlan);
  size_t row_bytes() const;             // of out
  int64_t out_byte(int64_t row) const;  // where it begins

  Device& device_;
  const HostProblem& host_;
  pt_decode_params params_;
  std::unique_ptr<Memory> k_, v_, q_, out_, lse_;
  std::vector<std::unique_ptr<Memory>> arrays_;  // as the host's
  std::unique_ptr<GuardedBuffer> workspace_;
};

}  // namespace pagetune
