#include "tuner/decode_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "runtime/build.hpp"
#include "runtime/parallel.hpp"
#include "tuner/numeric.hpp"
#include "tuner/problem.hpp"
#include "tuner/statistics.hpp"

namespace pagetune {

std::vector<int> lengths_of(const DecodeCell& cell) {
  std::vector<int> lens(static_cast<size_t>(cell.batch), cell.len);
  if (!cell.ragged || cell.batch == 1) return lens;
  for (int i = 0; i < cell.batch; ++i) {
    double share = static_cast<double>(i) / (cell.batch - 1);
    lens[static_cast<size_t>(i)] = std::max(1, static_cast<int>(std::lround(cell.len * std::pow(16.0, share - 1))));
  }
  // Not std::shuffle: its order is the library's choice, and cells are to be comparable between builds.
  Random random(0xCE11);
  for (int i = cell.batch - 1; i > 0; --i) std::swap(lens[static_cast<size_t>(i)], lens[static_cast<size_t>(random.below(i + 1))]);
  return lens;
}

std::vector<Measured> measure_decode(Device& device, Store& store, const DecodeCell& cell, const std::vector<KernelConfig>& configs,
                                     const MeasurePolicy& policy) {
  BenchOptions options;
  options.rotation_bytes = static_cast<int64_t>(policy.rotation_l2) * device.environment().l2_bytes;
  options.features = cell.features;
  options.flags = cell.flags | policy.flags();
  options.plans.clear();
  for (const KernelConfig& config : configs) options.plans.emplace_back(config, device.target());
  BenchProblem problem(device, cell.spec, lengths_of(cell), options);

  struct Lane {
    std::shared_ptr<const Module> module;
    std::unique_ptr<Device::Recording> recording;
    std::vector<double> samples;
  };
  std::vector<Measured> results;
  std::vector<Lane> lanes(configs.size());
  const int launches = policy.launches_for(problem.sets());
  parallel_for(static_cast<int64_t>(configs.size()), [&](int64_t i) { build_binary(device.compiler(), store, cell.spec, configs[static_cast<size_t>(i)], device.target()); });
  for (size_t i = 0; i < configs.size(); ++i) {
    lanes[i].module = build_module(device, store, cell.spec, configs[i]);
    Check check = problem.check(*lanes[i].module, LaunchPlan(configs[i], device.target()));
    results.push_back({configs[i], 0, 0, problem.kv_bytes(), check.error, check.ok, check.what});
    if (!check.ok) continue;
    lanes[i].recording = device.record(
        [&problem, kernel = lanes[i].module, plan = LaunchPlan(configs[i], device.target()), launches](void* stream) {
          problem.enqueue(*kernel, plan, launches, stream);  // the CPU keeps this function: nothing of the loop by reference
        });
    lanes[i].recording->replay_us();  // the first replay uploads the graph and the code
  }
  // By time: an idle GPU runs at a fifth of its clock.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(policy.warmup_ms);
  do
    for (Lane& lane : lanes)
      if (lane.recording) lane.recording->replay_us();
  while (std::chrono::steady_clock::now() < end);
  constexpr int kReplays = 25;
  for (int k = 0; k < kReplays; ++k)
    for (Lane& lane : lanes)
      if (lane.recording) lane.samples.push_back(lane.recording->replay_us() / launches);
  for (size_t i = 0; i < configs.size(); ++i) {
    if (lanes[i].samples.empty()) continue;
    results[i].median_us = median(lanes[i].samples);
    results[i].min_us = *std::min_element(lanes[i].samples.begin(), lanes[i].samples.end());
  }
  return results;
}

}  // namespace pagetune
