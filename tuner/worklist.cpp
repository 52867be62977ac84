#include "tuner/worklist.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "codegen/support.hpp"

namespace pagetune {
namespace {

int64_t kv_bytes_of(const AttentionSpec& spec, Bucket bucket) { return kv_bytes(spec, static_cast<int64_t>(bucket.batch()) * bucket.len()); }

void add(WorkList& list, const Work& work, int64_t kv_limit_bytes) {
  const int64_t bytes = kv_bytes_of(work.spec, work.bucket);
  if (kv_limit_bytes > 0 && bytes > kv_limit_bytes)
    list.skipped.push_back({"bucket " + work.bucket.text(), fmt::format("its {:.1f} MiB of K and V exceed {:.1f} MiB, half of the free memory", static_cast<double>(bytes) / (1 << 20),
                                                                        static_cast<double>(kv_limit_bytes) / (1 << 20))});
  else
    list.works.push_back(work);
}

}  // namespace

Grid default_grid(Backend backend) {
  // Few enough to tune a model in minutes, far enough apart that the nearest bucket still fits what lies between. A CPU serves small batches.
  if (backend == Backend::cpu) return {{1, 4}, {512, 2048}};
  return {{1, 8, 64}, {1024, 8192, 32768}};
}

std::string ranges_text(const std::vector<int>& indices) {
  std::string text;
  for (size_t i = 0; i < indices.size();) {
    size_t end = i;
    while (end + 1 < indices.size() && indices[end + 1] == indices[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end == i ? fmt::format("{}", indices[i]) : fmt::format("{}-{}", indices[i], indices[end]);
    i = end + 1;
  }
  return text;
}

std::string spec_text(const AttentionSpec& spec) {
  std::string dims = spec.head_dim_k == spec.head_dim_v ? fmt::format("{}", spec.head_dim_k) : fmt::format("{}/{}", spec.head_dim_k, spec.head_dim_v);
  std::string dtype = name_of(spec.q_dtype);
  if (spec.kv_dtype != spec.q_dtype) dtype += fmt::format(" with {} KV", name_of(spec.kv_dtype));
  return fmt::format("{}/{} heads, dim {}, page {}, {}, {}", spec.q_heads, spec.kv_heads, dims, spec.page_size, dtype, name_of(spec.layout));
}

WorkList work_list(const ModelAttention& model, const Target& target, const Grid& grid, int64_t kv_limit_bytes) {
  WorkList list;
  std::vector<int> lens = grid.lens;
  if (!grid.lens_asked_for && model.max_position > 0)
    for (int& len : lens) len = std::min(len, model.max_position);

  std::vector<AttentionSpec> specs;
  std::vector<std::vector<int>> layers;
  for (const LayerGroup& group : model.groups) {
    if (Support support = supports(group.spec, target); !support) {
      list.refused.push_back({"layers " + ranges_text(group.layers), support.reason});
      continue;
    }
    // Groups that differ only in launch-time values (how long the window is) share their kernels.
    auto found = std::find(specs.begin(), specs.end(), group.spec);
    size_t at = static_cast<size_t>(found - specs.begin());
    if (found == specs.end()) {
      specs.push_back(group.spec);
      layers.emplace_back();
    }
    layers[at].insert(layers[at].end(), group.layers.begin(), group.layers.end());
    std::sort(layers[at].begin(), layers[at].end());
  }

  for (size_t i = 0; i < specs.size(); ++i) {
    std::set<Bucket> buckets;
    for (int batch : grid.batches)
      for (int len : lens) buckets.insert(bucket_of(batch, len, 0));
    for (Bucket bucket : buckets) add(list, {specs[i], bucket, layers[i]}, kv_limit_bytes);
  }
  return list;
}

WorkList untuned_list(const std::vector<Store::Untuned>& calls, const std::string& env_key, const Target& target, int64_t kv_limit_bytes) {
  struct Counted {
    const AttentionSpec* spec;
    double bytes = 0;  // that all its calls read
    std::vector<std::pair<double, Work>> works;
  };
  std::map<std::string, Counted> specs;
  for (const Store::Untuned& call : calls) {
    if (call.environment.key() != env_key) continue;
    Counted& counted = specs.try_emplace(canonical_json(call.spec), Counted{&call.spec}).first->second;
    const double bytes = static_cast<double>(call.hits) * static_cast<double>(kv_bytes_of(call.spec, call.bucket));
    counted.bytes += bytes;
    counted.works.emplace_back(bytes, Work{call.spec, call.bucket, {}, call.hits});
  }
  std::vector<Counted> sorted;
  for (auto& [json, counted] : specs) sorted.push_back(std::move(counted));
  std::stable_sort(sorted.begin(), sorted.end(), [](const Counted& a, const Counted& b) { return a.bytes > b.bytes; });
  WorkList list;
  for (Counted& counted : sorted) {
    if (const Support support = supports(*counted.spec, target); !support) {
      list.refused.push_back({spec_text(*counted.spec), support.reason});
      continue;
    }
    std::stable_sort(counted.works.begin(), counted.works.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [bytes, work] : counted.works) add(list, work, kv_limit_bytes);
  }
  return list;
}

}  // namespace pagetune
