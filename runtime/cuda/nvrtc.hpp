// The NVRTC compiler, found with dlopen. Makes cubins for any architecture it knows, with or without a GPU.
#pragma once
#include <string>

#include "runtime/device.hpp"

namespace pagetune::cuda {

// Error no_device with the paths tried. Looks at PAGETUNE_NVRTC (a file; then nothing else), the loader's path,
// CUDA_HOME, /usr/local/cuda.
Compiler& nvrtc();

// "nvrtc 13.0": for the environment's fingerprint.
std::string nvrtc_version();
// The file it was loaded from, as the loader names it.
std::string nvrtc_path();

// A utility kernel of templates/cuda/ that has no spec, for `arch`.
std::string compile_utility(const std::string& path, const std::string& arch);

}  // namespace pagetune::cuda
