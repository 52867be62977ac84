#pragma once
#include <cstddef>
#include <cstdint>

#include "pagetune/spec.hpp"

namespace pagetune {

// Uniform in [-2, 2) as bf16, fp16 or fp32 (Error unsupported otherwise); the same bytes for the same seed.
void fill_random(void* memory, size_t bytes, DType, uint64_t seed);

}  // namespace pagetune
