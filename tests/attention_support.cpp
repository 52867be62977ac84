#include "attention_support.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <optional>

#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/build.hpp"
#include "tuner/numeric.hpp"
#include "runtime/parallel.hpp"
#include "specs.hpp"

namespace pagetune::testing_support {
namespace {

bool on_cpu(const Device& device) { return device.target().backend == Backend::cpu; }

// Binaries are shared among the processes that name a directory; a sanitizer's run then does not compile under the sanitizer.
Store& test_store() {
  const char* directory = std::getenv("PAGETUNE_TEST_STORE");
  static const std::shared_ptr<Store> store = Store::open(directory != nullptr ? directory : ":memory:");
  return *store;
}

KernelConfig config_of(Device& device, const AttentionSpec& spec, const NamedPlan& plan) {
  KernelConfig config = default_shape(spec, device.target());
  for (const auto& [name, value] : plan.values.values()) config.set(name, value);
  return config;
}

Binary binary_of(Device& device, const AttentionSpec& spec, const NamedPlan& plan) {
  return build_binary(device.compiler(), test_store(), spec, config_of(device, spec, plan), device.target());
}

NamedPlan variant_plan(int variant, int num_splits) {
  return {"V" + std::to_string(variant) + " with " + std::to_string(num_splits) + " splits", KernelConfig({{"VARIANT", variant}, {"NUM_SPLITS", variant == 1 ? 1 : std::max(2, num_splits)}}), num_splits};
}

}  // namespace

std::string test_device_id() {
  const char* id = std::getenv("PAGETUNE_TEST_DEVICE");
  return id != nullptr ? id : "cpu";
}

bool sanitized() {
  static const bool value = std::getenv("PAGETUNE_TEST_SANITIZED") != nullptr;
  return value;
}

const std::vector<int>& split_counts() {
  static const std::vector<int> counts = sanitized() ? std::vector<int>{1, 6} : std::vector<int>{1, 2, 3, 8, 48};  // in clusters: one of 2 and of 8 CTAs, three of 16 and of 2
  return counts;
}

void DeviceTest::SetUp() {
  const std::string id = test_device_id();
  try {
    device_ = open_device(id);
  } catch (const Error& error) {
    if (id == "cpu" || error.code() != ErrorCode::no_device) FAIL() << "cannot open " << id << ": " << error.what();
    GTEST_SKIP() << "the device under test is absent: " << error.what();
  }
}

std::vector<DType> DeviceTest::dtypes() const {
  if (on_cpu()) return {DType::bf16, DType::fp16, DType::fp32};
  return {DType::bf16, DType::fp16};
}

AttentionSpec decode_spec(int q_heads, int kv_heads, int head_dim, int page_size, DType type) { return uniform_spec(q_heads, kv_heads, head_dim, page_size, type, true); }

std::string refusal_of(Device& device, const AttentionSpec& spec) {
  const Support support = supports(spec, device.target());
  return support ? std::string() : support.reason;
}

namespace {

// How tiles are spread and results merged, and who brings the tiles to whom: what the CUDA family multiplies out. Each needs a binary of its own.
constexpr const char* kPipelines[] = {"copies", "bulk rows", "boxes", "boxes for warpgroups"};  // by LOADER, but for the last
constexpr int kForWarpgroups = 3, kPipelineKinds = 4;
struct Way {
  int variant, even, merge, pipeline;
};

std::vector<LaunchPlan> launches_of(const Way& way) {
  std::vector<LaunchPlan> launches;
  if (way.variant == 1) launches.emplace_back(1);
  else if (way.even == 0) {
    for (const int splits : split_counts())
      if (way.merge == 0 || (way.merge == 1 && splits > 1) || splits % 2 == 0) launches.emplace_back(splits);
  } else {
    for (const int ctas : {1, 3, 40}) {
      launches.emplace_back();
      launches.back().num_ctas = ctas;
    }
  }
  return launches;
}

std::string text_of(const Way& way, const LaunchPlan& plan) {
  std::string text = way.variant == 1 ? "V1" : plan.num_ctas > 0 ? "V2 shared evenly by " + std::to_string(plan.num_ctas) + " CTAs" : "V2 with " + std::to_string(plan.num_splits) + " splits";
  if (way.variant == 2 && way.even == 0) text += ", merge " + std::to_string(way.merge);
  return text + ", " + kPipelines[way.pipeline];
}

// Warps, tokens of a unit and stages: the first that fits.
struct Pipeline {
  int warps, tile, stages;
};
std::optional<KernelConfig> values_of(const AttentionSpec& spec, const Target& target, const Way& way) {
  static const std::vector<Pipeline> rings = {{4, 32, 4}, {4, 16, 8}, {2, 16, 4}, {1, 16, 2}}, own = {{4, 16, 3}, {4, 16, 2}, {2, 16, 2}, {1, 16, 2}}, wide = {{8, 32, 8}, {8, 32, 4}, {8, 16, 8}, {8, 16, 4}};
  const bool warpgroups = way.pipeline == kForWarpgroups;
  const int loader = std::min(way.pipeline, 2);
  for (const auto& [warps, tile, stages] : warpgroups ? wide : loader == 2 ? rings : own) {
    KernelConfig values({{"VARIANT", way.variant}, {"NUM_SPLITS", way.variant == 1 || way.even != 0 ? 1 : 2}, {"CTA_QUARTERS", way.even}, {"MERGE", way.merge}, {"LOADER", loader}, {"NUM_WARPS", warps}, {"TILE_KV", tile}, {"NUM_STAGES", stages}});
    if (supports(spec, values, target) && (ConfigSpace::builtin().derived("WARPGROUPS", spec, values, target) > 0) == warpgroups) return values;
  }
  return std::nullopt;
}

void add_plans(Device& device, const AttentionSpec& spec, const Way& way, std::vector<NamedPlan>& plans) {
  const std::optional<KernelConfig> values = values_of(spec, device.target(), way);
  if (!values) return;
  for (const LaunchPlan& launch : launches_of(way)) plans.push_back({text_of(way, launch), *values, launch});
}

// V1, V2 with each merge, the even share.
constexpr Way kSchedules[] = {{1, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 1, 0}, {2, 0, 2, 0}, {2, 1, 1, 0}};

}  // namespace

std::vector<KernelConfig> cuda_ways(const AttentionSpec& spec, const Target& target) {
  std::vector<KernelConfig> ways;
  for (Way way : kSchedules) {
    for (way.pipeline = 0; way.pipeline < kPipelineKinds; ++way.pipeline) {
      if (const std::optional<KernelConfig> values = values_of(spec, target, way)) ways.push_back(*values);
    }
  }
  return ways;
}

std::vector<NamedPlan> plans_of(Device& device, const AttentionSpec& spec, Plans which) {
  std::vector<NamedPlan> plans;
  if (on_cpu(device)) {
    plans.push_back(variant_plan(1, 1));
    for (const int splits : split_counts()) plans.push_back(variant_plan(2, splits));
    return plans;
  }
  const size_t hash = which == Plans::some ? std::hash<std::string>()(canonical_json(spec)) : 0;
  auto turn = static_cast<int>(hash % kPipelineKinds);
  const auto left_out = static_cast<int>(hash / kPipelineKinds % 3);
  for (Way way : kSchedules) {
    if (which == Plans::some && way.variant == 2 && way.even == 0 && way.merge == left_out) continue;
    for (int i = 0; i < kPipelineKinds; ++i) {
      way.pipeline = (turn + i) % kPipelineKinds;
      const size_t before = plans.size();
      add_plans(device, spec, way, plans);
      if (which == Plans::some && plans.size() > before) break;
    }
    ++turn;
  }
  return plans;
}

std::shared_ptr<const Module> module_of(Device& device, const AttentionSpec& spec, const NamedPlan& plan) {
  static std::map<std::pair<std::string, std::string>, std::shared_ptr<const Module>> modules;
  auto& module = modules[{canonical_json(spec), shape_of(config_of(device, spec, plan)).canonical_json()}];
  if (module == nullptr) module = device.load(binary_of(device, spec, plan));
  return module;
}

std::shared_ptr<const Module> module_of(Device& device, const AttentionSpec& spec, int variant) { return module_of(device, spec, variant_plan(variant, variant)); }

void build_all(Device& device, const std::vector<AttentionSpec>& specs, Plans which) {
  std::map<std::pair<std::string, std::string>, std::pair<AttentionSpec, NamedPlan>> shapes;
  for (const AttentionSpec& spec : specs)
    for (const NamedPlan& plan : plans_of(device, spec, which)) shapes.try_emplace({canonical_json(spec), shape_of(config_of(device, spec, plan)).canonical_json()}, spec, plan);
  std::vector<const std::pair<AttentionSpec, NamedPlan>*> work;
  for (const auto& [key, one] : shapes) work.push_back(&one);
  parallel_for(static_cast<int64_t>(work.size()), [&](int64_t i) { binary_of(device, work[static_cast<size_t>(i)]->first, work[static_cast<size_t>(i)]->second); });
}

Outputs expect_right(Device& device, const HostProblem& problem, const std::string& where, Plans which) {
  const Reference expected = reference(problem.spec(), problem.params());
  DeviceProblem on_device(device, problem);
  Outputs v1;
  build_all(device, {problem.spec()}, which);
  for (const NamedPlan& plan : plans_of(device, problem.spec(), which)) {
    if (std::getenv("PAGETUNE_TEST_TRACE") != nullptr) std::cerr << plan.name << " of " << canonical_json(problem.spec()) << std::endl;  // flushed: the next line may hang
    on_device.run(*module_of(device, problem.spec(), plan), plan.plan);
    const Check check = on_device.check(expected);
    EXPECT_TRUE(check.ok) << where << " " << plan.name << " on " << device.id() << ": " << check.what << "\n" << text_of(problem.shape()).substr(0, 2000);
    if (v1.out.empty()) v1 = on_device.outputs();
  }
  return v1;
}

Outputs expect_right(Device& device, const ProblemShape& shape, const std::string& where, Plans which) { return expect_right(device, HostProblem(shape), where, which); }

void expect_right_in_every_plan(Device& device, const ProblemShape& shape) { expect_right(device, shape, "", Plans::all); }

Outputs outputs_of(Device& device, const HostProblem& problem, int variant, int num_splits) {
  DeviceProblem on_device(device, problem);
  on_device.run(*module_of(device, problem.spec(), variant), num_splits);
  return on_device.outputs();
}

double out_at(const AttentionSpec& spec, const Outputs& outputs, int row, int head, int dim) {
  return load_element(spec.out_dtype, outputs.out.data(), (static_cast<int64_t>(row) * spec.q_heads + head) * spec.head_dim_v + dim);
}

void fill_mean_probe(HostProblem& problem, const std::function<double(int64_t)>& value) {
  problem.fill_q([](int, int, int) { return 1; });
  problem.fill_k([](int64_t, int, int, int) { return 0; });
  problem.fill_v([&](int64_t position, int, int, int) { return value(position); });
}

void expect_seen(const AttentionSpec& spec, const Outputs& outputs, int row, int head, double mean, int count) {
  SCOPED_TRACE("row " + std::to_string(row) + ", head " + std::to_string(head));
  EXPECT_NEAR(out_at(spec, outputs, row, head, 0), mean, 1e-3 * std::fabs(mean) + 1e-3);
  EXPECT_NEAR(out_at(spec, outputs, row, head, spec.head_dim_v - 1), mean, 1e-3 * std::fabs(mean) + 1e-3);
  EXPECT_NEAR(outputs.lse.at(static_cast<size_t>(row) * static_cast<size_t>(spec.q_heads) + static_cast<size_t>(head)), std::log(count), 1e-4);
}

Outputs expect_right_probe(Device& device, const ProblemShape& shape) {
  HostProblem problem(shape);
  fill_mean_probe(problem);
  return expect_right(device, problem);
}

void expect_empty(const AttentionSpec& spec, const Outputs& outputs, int row) {
  for (int h = 0; h < spec.q_heads; ++h) {
    EXPECT_EQ(outputs.lse.at(static_cast<size_t>(row) * static_cast<size_t>(spec.q_heads) + static_cast<size_t>(h)), -INFINITY);
    for (int d = 0; d < spec.head_dim_v; ++d) ASSERT_EQ(out_at(spec, outputs, row, h, d), 0);
  }
}

void fill_by_position(HostProblem& problem) {
  problem.fill_k([](int64_t position, int, int head, int dim) { return hashed(position, head, dim); });
  problem.fill_v([](int64_t position, int, int head, int dim) { return hashed(position, head, dim, 1); });
}

double hashed(int64_t a, int64_t b, int64_t c, int64_t d) {
  uint64_t seed = 0;
  for (int64_t part : {a, b, c, d}) seed = seed * 1'000'003 + static_cast<uint64_t>(part);
  return Random(seed).uniform(-2, 2);
}

}  // namespace pagetune::testing_support
