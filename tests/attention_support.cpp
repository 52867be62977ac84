#include "attention_support.hpp"

#include <cstdlib>
#include <map>
#include <mutex>

#include "codegen/default_config.hpp"
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

Binary binary_of(Device& device, const AttentionSpec& spec, int variant) {
  KernelConfig config = default_shape(spec, device.target());
  config.set("VARIANT", variant);
  config.set("NUM_SPLITS", variant == 1 ? 1 : 2);
  return build_binary(device.compiler(), test_store(), spec, config, device.target());
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

std::shared_ptr<const Module> module_of(Device& device, const AttentionSpec& spec, int variant) {
  static std::map<std::pair<std::string, int>, std::shared_ptr<const Module>> modules;
  auto& module = modules[{canonical_json(spec), variant}];
  if (module == nullptr) module = device.load(binary_of(device, spec, variant));
  return module;
}

void build_all(Device& device, const std::vector<AttentionSpec>& specs) {
  parallel_for(static_cast<int64_t>(specs.size()) * 2, [&](int64_t i) { binary_of(device, specs[static_cast<size_t>(i / 2)], static_cast<int>(i % 2) + 1); });
}

Outputs expect_right(Device& device, const HostProblem& problem, const std::string& where) {
  const Reference expected = reference(problem.spec(), problem.params());
  DeviceProblem on_device(device, problem);
  const auto run = [&](int variant, int num_splits) {
    on_device.run(*module_of(device, problem.spec(), variant), num_splits);
    const Check check = on_device.check(expected);
    EXPECT_TRUE(check.ok) << where << " V" << variant << " with " << num_splits << " splits on " << device.id() << ": " << check.what << "\n"
                          << canonical_json(problem.spec()) << ", " << name_of(problem.shape().placement);
  };
  run(1, 1);
  Outputs v1 = on_device.outputs();
  for (const int splits : split_counts()) run(2, splits);
  return v1;
}

Outputs expect_right(Device& device, const ProblemShape& shape, const std::string& where) { return expect_right(device, HostProblem(shape), where); }

Outputs outputs_of(Device& device, const HostProblem& problem, int variant, int num_splits) {
  DeviceProblem on_device(device, problem);
  on_device.run(*module_of(device, problem.spec(), variant), num_splits);
  return on_device.outputs();
}

double out_at(const AttentionSpec& spec, const Outputs& outputs, int sequence, int head, int dim) {
  return load_element(spec.out_dtype, outputs.out.data(), (static_cast<int64_t>(sequence) * spec.q_heads + head) * spec.head_dim_v + dim);
}

double hashed(int64_t a, int64_t b, int64_t c, int64_t d) {
  uint64_t seed = 0;
  for (int64_t part : {a, b, c, d}) seed = seed * 1'000'003 + static_cast<uint64_t>(part);
  return Random(seed).uniform(-2, 2);
}

}  // namespace pagetune::testing_support
