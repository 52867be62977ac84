// What libpagetune_cpu.so offers to the core, which opens it with dlopen. Both sides are built from one tree; the ABI number catches a
// library of another version.
#pragma once
#include <cstddef>
#include <memory>

#include "runtime/device.hpp"

namespace pagetune {

constexpr int kCpuProviderAbi = 1;

// Lives as long as the process. Thread-safe.
class CpuProvider {
 public:
  virtual ~CpuProvider() = default;
  virtual Compiler& compiler() = 0;
  // threads: of the device's own pool, 1 to 1024; 0: PAGETUNE_CPU_THREADS, else the hardware threads this process may use. Each call
  // makes a device with a pool of its own. Error invalid_argument for another number or a PAGETUNE_CPU_THREADS that is none.
  virtual std::shared_ptr<Device> open_device(int threads) = 0;
};

}  // namespace pagetune

extern "C" {
// Null with a sentence in `message` if the ABI differs or LLVM cannot make code for this machine.
using pagetune_cpu_open_function = pagetune::CpuProvider*(int abi, char* message, size_t message_size);
__attribute__((visibility("default"))) pagetune_cpu_open_function pagetune_cpu_open;
}
