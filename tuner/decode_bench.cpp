#include "tuner/decode_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "codegen/default_config.hpp"
#include "runtime/build.hpp"
#include "runtime/parallel.hpp"
#include "tuner/numeric.hpp"
#include "tuner/problem.hpp"
#include "tuner/statistics.hpp"

namespace pagetune {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time that it lives to a sum, if there is one.
class Adding {
 public:
  explicit Adding(double* sum) : sum_(sum) {}
  ~Adding() {
    if (sum_ != nullptr) *sum_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  Adding(const Adding&) = delete;
  Adding& operator=(const Adding&) = delete;

 private:
  double* sum_;
  Clock::time_point begin_ = Clock::now();
};

struct Lane {
  std::vector<std::shared_ptr<const Module>> modules;  // of each pass
  int launches = 0;                                    // of each pass
  std::unique_ptr<Device::Recording> recording;
  std::vector<double> samples;
};

// The oracle reads a long sequence page by page: few pairs of it say as much as many of a short one.
int groups_to_check(const DecodeCell& cell) {
  constexpr int kMost = 8, kLeast = 2;
  constexpr int kTokens = 1 << 16;
  return std::clamp(kTokens / std::max(cell.len, 1), kLeast, kMost);
}

void time_lanes(std::vector<Lane>& lanes, const MeasurePolicy& policy) {
  // By time: an idle GPU runs at a fifth of its clock.
  const auto end = Clock::now() + std::chrono::milliseconds(policy.warmup_ms);
  do
    for (Lane& lane : lanes)
      if (lane.recording) lane.recording->replay_us();
  while (Clock::now() < end);
  constexpr int kReplays = 25;
  for (int k = 0; k < kReplays; ++k)
    for (Lane& lane : lanes)
      if (lane.recording) lane.samples.push_back(lane.recording->replay_us() / lane.launches);
}

}  // namespace

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

CallShape call_shape(const DecodeCell& cell) {
  int64_t total = 0;
  for (const int len : lengths_of(cell)) total += len;
  return call_shape(cell.batch, cell.len, total);
}

std::vector<Chosen> ConfigChooser::choose(const std::string& which, const AttentionSpec& spec, const CallShape& call) {
  const KernelConfig analytic = default_config(spec, device_.target(), call);
  std::vector<Chosen> chosen;
  if (which != "default") {
    auto table = tables_.find(spec);
    if (table == tables_.end()) table = tables_.try_emplace(spec, spec, device_.target(), store_.layered_winners(device_.environment(), spec_key(spec))).first;
    const Selection selection = table->second.at(call);
    chosen.push_back({table->second.configs()[selection.index], selection.source != Source::analytic_default});
  }
  if (which != "tuned" && (chosen.empty() || chosen.front().config != analytic)) chosen.push_back({analytic, false});
  return chosen;
}

std::vector<Measured> measure_ways(Device& device, Store& store, const std::vector<DecodeCell>& cells, const std::vector<Way>& ways, const MeasurePolicy& policy, const MeasureOptions& measure) {
  const auto add_to = [&](double BenchSeconds::*what) { return measure.seconds != nullptr ? &(measure.seconds->*what) : nullptr; };
  std::vector<Pass> all;
  for (const Way& way : ways) all.insert(all.end(), way.begin(), way.end());
  {
    const Adding adding(add_to(&BenchSeconds::building));
    const auto build = [&](int64_t i) {
      const Pass& pass = all[static_cast<size_t>(i)];
      build_binary(device.compiler(), store, cells[pass.cell].spec, pass.config, device.target());
    };
    parallel_for(static_cast<int64_t>(all.size()), build, kCompileThreads);
  }
  std::vector<std::unique_ptr<BenchProblem>> problems;
  for (size_t c = 0; c < cells.size(); ++c) {
    const Adding adding(add_to(&BenchSeconds::problems));
    const DecodeCell& cell = cells[c];
    BenchOptions options;
    options.rotation_bytes = static_cast<int64_t>(policy.rotation_l2) * device.environment().l2_bytes;
    options.features = cell.features;
    options.flags = cell.flags | policy.flags();
    options.memory_limit = measure.memory_limit;
    options.pool = measure.pool;
    options.prepared_len = cell.prepared_len;
    options.all_pages = cell.all_pages;
    options.plans.clear();
    for (const Pass& pass : all)
      if (pass.cell == c) options.plans.emplace_back(pass.config, device.target());
    problems.push_back(std::make_unique<BenchProblem>(device, cell.spec, lengths_of(cell), options));
  }

  std::vector<Measured> results;
  std::vector<Lane> lanes(ways.size());
  for (size_t w = 0; w < ways.size(); ++w) {
    const Adding adding(add_to(&BenchSeconds::checks));
    Lane& lane = lanes[w];
    Measured result{.config = ways[w].front().config, .correct = true};
    for (const Pass& pass : ways[w]) {
      const BenchProblem& problem = *problems[pass.cell];
      lane.modules.push_back(build_module(device, store, cells[pass.cell].spec, pass.config));
      lane.launches = std::max(lane.launches, policy.launches_for(problem.sets()));
      result.kv_bytes += problem.kv_bytes();
      if (!result.correct) continue;
      const Check check = problem.check(*lane.modules.back(), LaunchPlan(pass.config, device.target()), groups_to_check(cells[pass.cell]));
      result.error = std::max(result.error, check.error);
      result.correct = check.ok;
      result.what = check.what;
    }
    results.push_back(result);
  }
  const Adding adding(add_to(&BenchSeconds::timing));
  for (size_t w = 0; w < ways.size(); ++w) {
    if (!results[w].correct) continue;
    Lane& lane = lanes[w];
    // The CPU keeps this function and calls it at each replay; lanes and problems outlive it.
    lane.recording = device.record([&lane, &problems, &device, way = ways[w]](void* stream) {
      for (int i = 0; i < lane.launches; ++i)
        for (size_t k = 0; k < way.size(); ++k) problems[way[k].cell]->enqueue(*lane.modules[k], LaunchPlan(way[k].config, device.target()), 1, stream, i);
    });
    lane.recording->replay_us();  // the first replay uploads the graph and the code
  }
  time_lanes(lanes, policy);
  for (size_t w = 0; w < ways.size(); ++w) {
    if (lanes[w].samples.empty()) continue;
    results[w].median_us = median(lanes[w].samples);
    results[w].min_us = *std::min_element(lanes[w].samples.begin(), lanes[w].samples.end());
  }
  return results;
}

std::vector<Measured> measure_decode(Device& device, Store& store, const DecodeCell& cell, const std::vector<KernelConfig>& configs, const MeasurePolicy& policy, const MeasureOptions& measure) {
  std::vector<Way> ways;
  for (const KernelConfig& config : configs) ways.push_back({{0, config}});
  return measure_ways(device, store, {cell}, ways, policy, measure);
}

}  // namespace pagetune
