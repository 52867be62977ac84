// Kernels of the device under test, with a store of their own.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_support.hpp"
#include "pagetune/pagetune.hpp"
#include "store_samples.hpp"

namespace pagetune::testing_support {

class RuntimeKernel : public DeviceTest {
 protected:
  std::shared_ptr<Kernel> kernel_of(const AttentionSpec& spec) { return get_kernel(spec, options()); }
  KernelOptions options() { return {.device = test_device_id(), .cache_dir = dir_.path()}; }
  const std::string& cache() const { return dir_.path(); }

  // One launch through the kernel against the oracle; the message of what is wrong, or empty.
  std::string verdict(Kernel& kernel, const HostProblem& problem, const Reference& expected) {
    DeviceProblem on_device(device(), problem);
    on_device.run(kernel);
    return on_device.check(expected).what;
  }
  std::string verdict(Kernel& kernel, std::vector<int> lens) {
    const HostProblem problem({.spec = kernel.spec(), .lens = std::move(lens)});
    return verdict(kernel, problem, reference(problem.spec(), problem.params()));
  }

 private:
  const TempDir dir_;
};

}  // namespace pagetune::testing_support
