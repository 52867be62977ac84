// What the attention tests share: the device under test, kernels built side by side, and "right in every variant and split".
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/config.hpp"
#include "codegen/launch_plan.hpp"
#include "runtime/device.hpp"
#include "tuner/problem.hpp"

namespace pagetune::testing_support {

// PAGETUNE_TEST_DEVICE, else "cpu". A test program runs on one device; CTest starts it once for each.
std::string test_device_id();

// Opens the device under test. No GPU: the test is skipped with the reason; no CPU backend: it fails, since every build that has these
// tests has that backend.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override;
  Device& device() const { return *device_; }
  bool on_cpu() const { return device_->target().backend == Backend::cpu; }
  // bf16 and fp16, on the CPU also fp32.
  std::vector<DType> dtypes() const;

 private:
  std::shared_ptr<Device> device_;
};

// One dtype throughout, LSE on.
AttentionSpec decode_spec(int q_heads, int kv_heads, int head_dim, int page_size, DType = DType::bf16);

// Skips the test, with supports()'s reason, on a device that refuses the spec: for features that a backend does not have yet.
#define require_supported(spec)                                                                                  \
  do {                                                                                                           \
    if (const std::string refusal_ = refusal_of(device(), (spec)); !refusal_.empty()) GTEST_SKIP() << refusal_; \
  } while (false)
// supports()'s reason; empty if the device takes the spec.
std::string refusal_of(Device&, const AttentionSpec&);

// One way to run a spec: values that stand in place of the analytic default's, and the plan of its launches. Plans whose values have one
// shape share a kernel.
struct NamedPlan {
  std::string name;  // "V2 with 3 splits"
  KernelConfig values;
  LaunchPlan plan;
};
// The ways that the tests try. CPU: V1, and V2 with every split count. CUDA: V1, V2 with each merge and split count, the even share, each with
// every loader that the config space admits. Since each of these is a binary of its own, `some` are fewer: the spec's hash leaves one merge
// out and gives the others one loader each. The specs of a theme then meet most pairs, and each theme has a test with all of them.
enum class Plans : unsigned char { some, all };
std::vector<NamedPlan> plans_of(Device&, const AttentionSpec&, Plans = Plans::some);

// One config for each schedule, merge and loader that the CUDA family admits for the spec and the target; needs no device.
std::vector<KernelConfig> cuda_ways(const AttentionSpec&, const Target&);

// The kernel of a plan, built once per program.
std::shared_ptr<const Module> module_of(Device&, const AttentionSpec&, const NamedPlan&);
// The analytic default's kernel of a variant, with num_splits left to the launch.
std::shared_ptr<const Module> module_of(Device&, const AttentionSpec&, int variant);
// Compiles the kernels of all plans of all specs on all cores, for module_of().
void build_all(Device&, const std::vector<AttentionSpec>&, Plans = Plans::some);

// True where a tool that tracks every memory access runs the program (PAGETUNE_TEST_SANITIZED=1): tests whose point is a large number of
// CTAs, tokens or cases then take fewer, through kernels of every schedule, merge and loader.
bool sanitized();
// All of a list of cases; every fifth under such a tool.
template <class T>
std::vector<T> sampled(const std::vector<T>& all) {
  std::vector<T> some;
  for (size_t i = 0; i < all.size(); i += sanitized() ? 5 : 1) some.push_back(all[i]);
  return some;
}

// V2's counts in the tests: no split, few, and more than most sequences here have tiles.
const std::vector<int>& split_counts();

// Runs every plan of the spec against the oracle and adds a failure for each that is not right. Returns V1's outputs.
Outputs expect_right(Device&, const HostProblem&, const std::string& where = "", Plans = Plans::some);
Outputs expect_right(Device&, const ProblemShape&, const std::string& where = "", Plans = Plans::some);
void expect_right_in_every_plan(Device&, const ProblemShape&);

// Outputs of one launch without a verdict.
Outputs outputs_of(Device&, const HostProblem&, int variant, int num_splits);
// Element of outputs. A row is a sequence where q_len is 1.
double out_at(const AttentionSpec&, const Outputs&, int row, int head, int dim);

// K = 0, q = 1, V[t] = value(t): out is the mean over the attended positions, LSE the logarithm of their number.
void fill_mean_probe(HostProblem&, const std::function<double(int64_t position)>& value = [](int64_t t) { return static_cast<double>(t); });
// Positions that a mean probe has seen: right to what fp16 can hold up to 2048.
void expect_seen(const AttentionSpec&, const Outputs&, int row, int head, double mean, int count);
// The probe run in every plan and compared with the oracle; V1's outputs.
Outputs expect_right_probe(Device&, const ProblemShape&);
// Every head of the row is exactly 0 and -inf.
void expect_empty(const AttentionSpec&, const Outputs&, int row);
// K and V that depend on position, KV head and dim alone: the same numbers wherever the pages lie.
void fill_by_position(HostProblem&);

// Values that depend on these numbers alone, uniform in [-2, 2): the same content wherever it lies.
double hashed(int64_t a, int64_t b, int64_t c, int64_t d = 0);

}  // namespace pagetune::testing_support
