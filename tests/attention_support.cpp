#include "attention_support.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>

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

Store& test_store() {
  static const std::shared_ptr<Store> store = Store::open(":memory:");
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
  static const std::vector<int> counts = sanitized() ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 8, 40};
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

std::vector<NamedPlan> plans_of(Device& device, const AttentionSpec& spec) {
  std::vector<NamedPlan> plans = {variant_plan(1, 1)};
  for (const int splits : split_counts()) plans.push_back(variant_plan(2, splits));
  // What a family may have beside that, where the config space admits it for the spec and the target.
  const auto& parameters = ConfigSpace::builtin().family(spec.kind, device.target().backend).tuning_params;
  const KernelConfig usual = default_shape(spec, device.target());
  const auto add = [&](NamedPlan plan, const std::string& what, std::map<std::string, int> more) {
    plan.name += what;
    for (const auto& [name, value] : more) plan.values.set(name, value);
    if (supports(spec, config_of(device, spec, plan), device.target())) plans.push_back(std::move(plan));
  };
  if (const auto merges = parameters.find("MERGE"); merges != parameters.end()) {
    for (const int merge : merges->second)
      if (merge != usual.get("MERGE", 0))
        for (const int splits : {2, 3, 8, 16}) add(variant_plan(2, splits), ", merge " + std::to_string(merge), {{"MERGE", merge}});
  }
  if (parameters.count("CTA_QUARTERS") != 0) {
    for (const int ctas : {1, 3, 40}) {
      NamedPlan even{"V2 with an even share of " + std::to_string(ctas) + " CTAs", KernelConfig({{"VARIANT", 2}, {"NUM_SPLITS", 1}, {"CTA_QUARTERS", 1}}), LaunchPlan()};
      even.plan.num_ctas = ctas;
      add(std::move(even), "", parameters.count("MERGE") != 0 ? std::map<std::string, int>{{"MERGE", 1}} : std::map<std::string, int>());
    }
  }
  if (parameters.count("LOADER") != 0 && !sanitized()) {
    add(variant_plan(1, 1), ", bulk copies", {{"LOADER", 1}});
    // A ring of 8 stages for 4 warps; where it does not fit, of 2 for one.
    for (const auto& [warps, stages] : {std::pair(4, 8), std::pair(1, 2)}) {
      const std::map<std::string, int> boxes = {{"LOADER", 2}, {"NUM_WARPS", warps}, {"NUM_STAGES", stages}};
      add(variant_plan(1, 1), ", boxes", boxes);
      NamedPlan even{"V2 with an even share of 3 CTAs", KernelConfig({{"VARIANT", 2}, {"NUM_SPLITS", 1}, {"CTA_QUARTERS", 1}, {"MERGE", 1}}), LaunchPlan()};
      even.plan.num_ctas = 3;
      add(std::move(even), ", boxes", boxes);
      if (spec.head_dim_k <= 128) break;
    }
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

void build_all(Device& device, const std::vector<AttentionSpec>& specs) {
  std::map<std::pair<std::string, std::string>, std::pair<AttentionSpec, NamedPlan>> shapes;
  for (const AttentionSpec& spec : specs)
    for (const NamedPlan& plan : plans_of(device, spec)) shapes.try_emplace({canonical_json(spec), shape_of(config_of(device, spec, plan)).canonical_json()}, spec, plan);
  std::vector<const std::pair<AttentionSpec, NamedPlan>*> work;
  for (const auto& [key, one] : shapes) work.push_back(&one);
  parallel_for(static_cast<int64_t>(work.size()), [&](int64_t i) { binary_of(device, work[static_cast<size_t>(i)]->first, work[static_cast<size_t>(i)]->second); });
}

Outputs expect_right(Device& device, const HostProblem& problem, const std::string& where) {
  const Reference expected = reference(problem.spec(), problem.params());
  DeviceProblem on_device(device, problem);
  Outputs v1;
  for (const NamedPlan& plan : plans_of(device, problem.spec())) {
    on_device.run(*module_of(device, problem.spec(), plan), plan.plan);
    const Check check = on_device.check(expected);
    EXPECT_TRUE(check.ok) << where << " " << plan.name << " on " << device.id() << ": " << check.what << "\n" << text_of(problem.shape()).substr(0, 2000);
    if (v1.out.empty()) v1 = on_device.outputs();
  }
  return v1;
}

Outputs expect_right(Device& device, const ProblemShape& shape, const std::string& where) { return expect_right(device, HostProblem(shape), where); }

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
