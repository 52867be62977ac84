// Reads a cubin (a 64-bit ELF file) without a device: the template's facts and what the compiler spent on a kernel.
#pragma once
#include <string>
#include <vector>

#include "codegen/binary.hpp"

namespace pagetune::cuda {

// Error io: what is wrong with the image ("truncated", "no symbol pt_facts", …).
LaunchFacts read_cubin(const std::string& data, const std::string& entry);

// Names of the kernels in the image.
std::vector<std::string> kernels_of(const std::string& data);

}  // namespace pagetune::cuda
