#include "decode_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "codegen/launch_plan.hpp"
#include "pagetune/error.hpp"
#include "runtime/build.hpp"
#include "runtime/parallel.hpp"
#include "tuner/candidates.hpp"
#include "tuner/cli/progress.hpp"

namespace pagetune::bench {

std::vector<Work> works_of(const std::vector<Group>& groups, size_t memory_limit) {
  std::vector<AttentionSpec> specs;  // in order: a session takes the works of one spec together
  std::map<std::string, std::set<Bucket>> buckets;
  for (const Group& group : groups)
    for (const Contender& contender : group.contenders)
      for (size_t k = 0; k < contender.passes.size(); ++k) {
        const AttentionSpec& spec = group.cells[contender.passes[k]].spec;
        const Bucket bucket = contender.calls[k].bucket;
        if (static_cast<size_t>(kv_bytes(spec, int64_t{bucket.batch()} * bucket.len())) > memory_limit) continue;
        if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
        buckets[canonical_json(spec)].insert(bucket);
      }
  std::vector<Work> works;
  for (const AttentionSpec& spec : specs)
    for (const Bucket bucket : buckets[canonical_json(spec)]) works.push_back({spec, bucket, {}});
  return works;
}

KernelList candidate_kernels(const std::vector<Work>& works, const Target& target, const Store& store, const std::string& env_key) {
  KernelList kernels, others;
  std::map<std::string, std::set<KernelConfig>> seen;
  std::vector<CandidateSet> sets;
  for (const Work& work : works) {
    sets.push_back(candidates_of(work, target, store, env_key));
    if (seen[canonical_json(work.spec)].insert(shape_of(sets.back().default_config)).second) kernels.emplace_back(work.spec, sets.back().default_config);
  }
  for (size_t i = 0; i < works.size(); ++i)
    for (const KernelConfig& config : sets[i].configs)
      if (seen[canonical_json(works[i].spec)].insert(shape_of(config)).second) others.emplace_back(works[i].spec, config);
  constexpr size_t kStrides = 16;
  for (size_t first = 0; first < kStrides; ++first)
    for (size_t i = first; i < others.size(); i += kStrides) kernels.push_back(others[i]);
  return kernels;
}

void add_kernel(KernelList& kernels, const AttentionSpec& spec, const KernelConfig& config) {
  const KernelConfig shape = shape_of(config);
  const auto same = [&](const auto& kernel) { return shape_of(kernel.second) == shape && kernel.first == spec; };
  if (std::none_of(kernels.begin(), kernels.end(), same)) kernels.emplace_back(spec, config);
}

int64_t build_kernels(Compiler& compiler, Store& store, const Target& target, const KernelList& kernels, double limit_s) {
  constexpr int64_t kThreads = 32;  // each takes some hundred MB
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int64_t> built{0};
  std::mutex mutex;
  const auto one = [&](int64_t i) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (cli::interrupted() || passed.count() > limit_s) return;
    const auto& [spec, config] = kernels[static_cast<size_t>(i)];
    try {
      build_binary(compiler, store, spec, config, target);
      ++built;
    } catch (const Error& failure) {
      const std::lock_guard lock(mutex);
      fmt::print(stderr, "not built: {}: {}\n", config.canonical_json(), std::string(failure.what()).substr(0, 200));
    }
  };
  parallel_for(static_cast<int64_t>(kernels.size()), one, kThreads);
  return built;
}

}  // namespace pagetune::bench
