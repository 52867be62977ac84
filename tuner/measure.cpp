#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include "runtime/build.hpp"
#include "tuner/problem.hpp"
#include "codegen/launch_plan.hpp"
#include "tuner/workbench.hpp"

namespace pagetune {
namespace {

class DeviceWorkbench final : public Workbench {
 public:
  DeviceWorkbench(Device& device, Store& store, const AttentionSpec& spec, const MeasurePolicy& policy)
      : device_(device), store_(store), spec_(spec), policy_(policy) {}

  LaunchFacts build(const KernelConfig& config) override {
    auto module = build_module(device_, store_, spec_, config);
    std::lock_guard lock(mutex_);
    modules_[shape_of(config)] = module;
    return module->facts();
  }

  Verdict verify(const KernelConfig& config) override {
    if (!verifier_) verifier_ = std::make_unique<Verifier>(device_, spec_);
    Check check = verifier_->check(module(config), LaunchPlan(config, device_.target()));
    // Any split count may be raced with this binary: an odd one leaves shares of unequal size. Clusters take an even one: three of them meet.
    if (check.ok && config.variant() == 2 && !config.even_share()) {
      Check odd = verifier_->check(module(config), config.get("MERGE", 0) == 2 ? 6 : 3);
      check.ok = odd.ok;
      check.what = odd.what;
      check.error = std::max(check.error, odd.error);
    }
    return {check.ok, check.error, check.what};
  }

  void open(Bucket bucket, const std::vector<KernelConfig>& configs) override {
    BenchOptions options;
    options.flags = policy_.flags();
    options.plans.clear();
    for (const KernelConfig& config : configs) options.plans.emplace_back(config, device_.target());
    options.rotation_bytes = static_cast<int64_t>(policy_.rotation_l2) * device_.environment().l2_bytes;
    problem_ = std::make_unique<BenchProblem>(device_, spec_, std::vector<int>(static_cast<size_t>(bucket.batch()), bucket.len()), options);
    warm_ = false;
  }

  void close() override {
    recordings_.clear();
    problem_.reset();
  }

  double sample_us(const KernelConfig& config) override {
    auto& recording = recordings_[config];
    if (!recording) {
      const Module& kernel = module(config);
      recording = device_.record(
          [this, &kernel, plan = LaunchPlan(config, device_.target())](void* stream) { problem_->enqueue(kernel, plan, launches(), stream); },
          policy_.eager != 0 ? Device::Launches::eager : Device::Launches::graph);
      recording->replay_us();  // the first replay uploads the code, and the graph
      warm_up(*recording);
    }
    return recording->replay_us() / launches();
  }

 private:
  int launches() const { return policy_.launches_for(problem_->sets()); }

  const Module& module(const KernelConfig& config) {
    std::lock_guard lock(mutex_);
    return *modules_.at(shape_of(config));
  }

  // By time, not by count: what has to come up is the clock.
  void warm_up(Device::Recording& recording) {
    if (warm_) return;
    warm_ = true;
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(policy_.warmup_ms);
    while (std::chrono::steady_clock::now() < end) recording.replay_us();
  }

  Device& device_;
  Store& store_;
  AttentionSpec spec_;
  MeasurePolicy policy_;
  std::unique_ptr<Verifier> verifier_;  // made when first asked: its references take the CPU a moment
  std::mutex mutex_;
  std::map<KernelConfig, std::shared_ptr<const Module>> modules_;  // by shape
  std::unique_ptr<BenchProblem> problem_;
  std::map<KernelConfig, std::unique_ptr<Device::Recording>> recordings_;
  bool warm_ = false;
};

}  // namespace

std::unique_ptr<Workbench> make_workbench(Device& device, Store& store, const AttentionSpec& spec, const MeasurePolicy& policy) {
  return std::make_unique<DeviceWorkbench>(device, store, spec, policy);
}

}  // namespace pagetune
