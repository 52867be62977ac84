#include "tuner/cli/workset.hpp"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "pagetune/error.hpp"
#include "tuner/session.hpp"

namespace pagetune::cli {

namespace {

// The device, and how it measures; no works yet.
Workset opened(const ModelOptions& options, const std::string& device_id) {
  Workset made;
  made.device = open_device(device_id);
  made.policy = MeasurePolicy::for_backend(made.device->target().backend);
  made.policy.eager = options.eager ? 1 : 0;
  return made;
}

}  // namespace

Workset make_workset(const ModelAttention& model, const ModelOptions& options, const std::string& device_id) {
  Workset made = opened(options, device_id);
  const Target& target = made.device->target();
  made.list = work_list(model, target, grid(options, target.backend), static_cast<int64_t>(made.device->free_bytes() / 2));
  return made;
}

Workset make_untuned_workset(const ModelOptions& options, const Store& store, const std::string& device_id, bool again) {
  Workset made = opened(options, device_id);
  const Target& target = made.device->target();
  const std::string env_key = made.device->environment().key();
  made.list = untuned_list(store.untuned(), env_key, target, static_cast<int64_t>(made.device->free_bytes() / 2));
  if (!again) std::erase_if(made.list.works, [&](const Work& work) { return current_winner(store, env_key, work, target, made.policy).has_value(); });
  return made;
}

std::vector<AttentionSpec> specs_of(const WorkList& list) {
  std::vector<AttentionSpec> specs;
  for (const Work& work : list.works)
    if (std::find(specs.begin(), specs.end(), work.spec) == specs.end()) specs.push_back(work.spec);
  return specs;
}

void print_left_out(const WorkList& list) {
  for (const LeftOut& group : list.refused) fmt::print(stderr, "not supported: {}: {}\n", group.what, group.reason);
  for (const LeftOut& bucket : list.skipped) fmt::print(stderr, "skipped: {}: {}\n", bucket.what, bucket.reason);
}

void print_problems(const Store& store) {
  for (const std::string& problem : store.problems()) fmt::print(stderr, "store: {}\n", problem);
}

bool none_suits(const WorkList& list) { return list.works.empty() && !(list.refused.empty() && list.skipped.empty()); }

void require_some(const WorkList& list, const Target& target) {
  if (!none_suits(list)) return;
  std::string reasons;
  for (const auto* left_out : {&list.refused, &list.skipped})
    for (const LeftOut& one : *left_out) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", one.what, one.reason);
  throw Error(ErrorCode::unsupported, fmt::format("nothing can be done on {} {}: {}", name_of(target.backend), target.arch, reasons));
}

}  // namespace pagetune::cli
