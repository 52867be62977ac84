// What the attention tests share: the device under test, kernels built side by side, and "right in every variant and split".
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

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

// The analytic default's kernel of a variant, built once per program. num_splits is no part of it.
std::shared_ptr<const Module> module_of(Device&, const AttentionSpec&, int variant);
// Compiles V1 and V2 of all specs on all cores, for module_of().
void build_all(Device&, const std::vector<AttentionSpec>&);

// True where a tool that tracks every memory access runs the program (PAGETUNE_TEST_SANITIZED=1): tests whose point is a large number of
// CTAs or tokens then take fewer split counts or shorter sequences, through the same kernels.
bool sanitized();

// V2's counts in the tests: no split, few, and more than any sequence here has tiles.
const std::vector<int>& split_counts();

// Runs V1 and V2 with every split count against the oracle and adds a failure for each that is not right. Returns V1's outputs.
Outputs expect_right(Device&, const HostProblem&, const std::string& where = "");
Outputs expect_right(Device&, const ProblemShape&, const std::string& where = "");

// Outputs of one launch without a verdict.
Outputs outputs_of(Device&, const HostProblem&, int variant, int num_splits);
// Element of outputs.
double out_at(const AttentionSpec&, const Outputs&, int sequence, int head, int dim);

// Values that depend on these numbers alone, uniform in [-2, 2): the same content wherever it lies.
double hashed(int64_t a, int64_t b, int64_t c, int64_t d = 0);

}  // namespace pagetune::testing_support
