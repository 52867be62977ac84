#include "runtime/cpu/provider.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "pagetune/error.hpp"
#include "runtime/cpu/device.hpp"
#include "runtime/cpu/linker.hpp"
#include "runtime/cpu/llvm_compiler.hpp"
#include "runtime/cpu/llvm_setup.hpp"

namespace pagetune {
namespace {

constexpr int kMaxThreads = 1024;

int default_threads() {
  const char* text = std::getenv("PAGETUNE_CPU_THREADS");
  if (text == nullptr || *text == '\0') {
    const unsigned hardware = std::thread::hardware_concurrency();
    return hardware == 0 ? 1 : static_cast<int>(hardware);
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 1 || value > kMaxThreads)
    throw Error(ErrorCode::invalid_argument, std::string("PAGETUNE_CPU_THREADS is '") + text +
                                                 "'; allowed is a whole number from 1 to 1024; unset it to use all hardware threads");
  return static_cast<int>(value);
}

class Provider final : public CpuProvider {
 public:
  Compiler& compiler() override { return compiler_; }

  std::shared_ptr<Device> open_device(int threads) override {
    if (threads < 0 || threads > kMaxThreads)
      throw Error(ErrorCode::invalid_argument,
                  "a CPU device was asked for " + std::to_string(threads) + " threads; allowed is 1 to 1024, or 0 for the default");
    return std::make_shared<CpuDevice>(threads == 0 ? default_threads() : threads, compiler_, linker_);
  }

 private:
  LlvmCompiler compiler_;
  std::shared_ptr<Linker> linker_ = std::make_shared<Linker>();
};

}  // namespace
}  // namespace pagetune

extern "C" pagetune::CpuProvider* pagetune_cpu_open(int abi, char* message, size_t message_size) {
  using namespace pagetune;
  if (abi != kCpuProviderAbi) {
    std::snprintf(message, message_size, "the CPU backend has ABI %d, the core wants %d: install both from one build", kCpuProviderAbi, abi);
    return nullptr;
  }
  try {
    set_up_llvm();
    // Never destroyed: kernels may be released by other static objects after this library's own.
    static Provider* const provider = new Provider;
    return provider;
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "%s", error.what());
    return nullptr;
  }
}
