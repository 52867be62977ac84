#include "codegen/target.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Shared memory and threads: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability". SMs: data sheet of the
// part named, which only matters where a kernel is made for a GPU that is not here.
struct Part {
  const char* arch;
  int shared_per_block_kib;
  int shared_per_processor_kib;
  int threads_per_processor;
  int processors;
};
constexpr std::array kParts = {
    Part{"sm_80", 163, 164, 2048, 108},    // A100
    Part{"sm_86", 99, 100, 1536, 84},      // A10, A40 (72 and 84 SMs)
    Part{"sm_87", 163, 164, 1536, 16},     // Jetson AGX Orin
    Part{"sm_89", 99, 100, 1536, 142},     // L40S
    Part{"sm_90", 227, 228, 2048, 132},    // H100 SXM, H200
    Part{"sm_90a", 227, 228, 2048, 132},
    Part{"sm_100", 227, 228, 2048, 148},   // B200
    Part{"sm_100a", 227, 228, 2048, 148},
    Part{"sm_103", 227, 228, 2048, 148},   // B300
    Part{"sm_103a", 227, 228, 2048, 148},
    Part{"sm_120", 99, 100, 1536, 188},    // RTX PRO 6000 Blackwell
    Part{"sm_120a", 99, 100, 1536, 188},
    Part{"sm_121", 99, 100, 1536, 48},     // GB10 (DGX Spark)
    Part{"sm_121a", 99, 100, 1536, 48},
};
constexpr int kRegistersPerProcessor = 64 * 1024;  // every architecture above

int capability_of(const std::string& arch) { return std::stoi(arch.substr(3)); }

}  // namespace

const char* name_of(Backend backend) { return backend == Backend::cuda ? "cuda" : "cpu"; }

Target Target::by_name(const std::string& name) {
  if (name == "cpu") {
    Target target;
    target.backend = Backend::cpu;
    target.arch = "x86-64-v3";  // psABI level: AVX2, FMA, F16C; it names its features, so cpu_features stays empty
    target.vector_bits = 256;
    target.processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return target;
  }
  const bool bare = !name.empty() && name.front() >= '0' && name.front() <= '9';
  const std::string arch = bare ? "sm_" + name : name;
  for (const Part& part : kParts) {
    if (arch != part.arch) continue;
    Target target;
    target.backend = Backend::cuda;
    target.arch = arch;
    target.compute_capability = capability_of(arch);
    target.processors = part.processors;
    target.shared_per_block = part.shared_per_block_kib * 1024;
    target.shared_per_processor = part.shared_per_processor_kib * 1024;
    target.registers_per_processor = kRegistersPerProcessor;
    target.threads_per_processor = part.threads_per_processor;
    return target;
  }
  std::vector<std::string> known;
  for (const Part& part : kParts) known.emplace_back(part.arch);
  throw Error(ErrorCode::invalid_argument, fmt::format("the target '{}' is unknown; use cpu or one of {}", name, fmt::join(known, ", ")));
}

}  // namespace pagetune
