// Target: the exact architecture that a kernel is made for, and its limits. Made from a device or by name.
#pragma once
#include <string>

namespace pagetune {

enum class Backend : unsigned char { cuda, cpu };
const char* name_of(Backend);

struct Target {
  Backend backend = Backend::cuda;
  std::string arch;            // "sm_90a"; CPU: LLVM's name of the host CPU, or "x86-64-v2", …
  std::string cpu_features;    // CPU: sorted "+a,+b", all that matters to the object code; CUDA: empty
  int compute_capability = 0;  // 90 for sm_90 and sm_90a; CPU: 0
  int processors = 0;          // SMs, or hardware threads
  int shared_per_block = 0;    // bytes a block can opt in to; CPU: 0
  int shared_per_processor = 0;
  int registers_per_processor = 0;
  int threads_per_processor = 0;
  int vector_bits = 0;         // CPU: widest vector; CUDA: 0

  bool operator==(const Target&) const = default;

  // "sm_80", "sm_90a", "sm_100a", "120a", … with the limits of the architecture's usual part, or "cpu" (this machine's baseline).
  // Error: names the value and the architectures known.
  static Target by_name(const std::string& name);
};

}  // namespace pagetune
