// Opens libpagetune_cpu.so, the library that holds LLVM. Looked for, in this order: PAGETUNE_CPU_BACKEND (a path; then nothing else),
// beside the program or library that this code is in, ../lib from there, the loader's own search path.
#pragma once
#include <memory>

#include "runtime/device.hpp"

namespace pagetune {

// Error no_device with every path tried and why it failed. The library stays open; a failure is tried again at the next call.
Compiler& cpu_compiler();
// The file of that library. Errors likewise.
std::string cpu_library();
// A device with a thread pool of its own. threads: 0 for PAGETUNE_CPU_THREADS, else all hardware threads.
std::shared_ptr<Device> open_cpu_device(int threads = 0);

}  // namespace pagetune
