// A model on a device: what tune, plan, prewarm and explain begin with.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cache_db/store.hpp"
#include "runtime/device.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/policy.hpp"
#include "tuner/worklist.hpp"

namespace pagetune::cli {

struct Workset {
  std::shared_ptr<Device> device;
  MeasurePolicy policy;
  WorkList list;
};

// Buckets are limited to K and V that fit half of the device's free memory.
Workset make_workset(const ModelAttention&, const ModelOptions&, const std::string& device_id);

// What programs called on the device with no winner to answer; `again`: also where there is a winner of this build by now.
Workset make_untuned_workset(const ModelOptions&, const Store&, const std::string& device_id, bool again);

// The specs of a list in order, each once.
std::vector<AttentionSpec> specs_of(const WorkList&);
// Prints the groups that are not supported and the buckets that do not fit.
void print_left_out(const WorkList&);
// Prints what the store worked around, each once.
void print_problems(const Store&);
// Works were asked for, and none can be done here.
bool none_suits(const WorkList&);
// Throws Error unsupported with the reasons if none_suits().
void require_some(const WorkList&, const Target&);

}  // namespace pagetune::cli
