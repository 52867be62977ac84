// The element type as a policy, and the few numbers that templates share.
#pragma once
#include "cuda/ptx.cuh"

constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLog2E = 1.44269504088896340736f;
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// Of numbers that are not negative: without the signs a division has half the instructions.
constexpr int quotient(int a, int b) { return static_cast<int>(static_cast<u32>(a) / static_cast<u32>(b)); }
constexpr int ceil_div(int a, int b) { return quotient(a + b - 1, b); }
constexpr int ceil_shift(int a, int log2) { return (a + (1 << log2) - 1) >> log2; }  // ceil_div(a, 1 << log2)
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
constexpr int min_of(int a, int b) { return a < b ? a : b; }
constexpr int max_of(int a, int b) { return a > b ? a : b; }

// spec::dtype: 0 bf16, 1 fp16.
static_assert(spec::dtype <= 1 && spec::out_dtype <= 1, "this template reads and writes 16-bit floats");

// Exponent bits of two elements; all of one's set: it is Inf or NaN.
constexpr u32 kExponents = spec::dtype == 0 ? 0x7f807f80u : 0x7c007c00u;
__device__ __forceinline__ bool is_finite(u32 element) { return (element & kExponents & 0xffffu) != (kExponents & 0xffffu); }
__device__ __forceinline__ float to_float(unsigned short element) {
  if constexpr (spec::dtype == 0) return __uint_as_float(static_cast<u32>(element) << 16);
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(element));
  return x;
}
__device__ __forceinline__ u32 pack(float low, float high) {
  if constexpr (spec::dtype == 0) return ptx::pack_bf16(low, high);
  else return ptx::pack_fp16(low, high);
}
__device__ __forceinline__ u32 pack_out(float low, float high) {
  if constexpr (spec::out_dtype == 0) return ptx::pack_bf16(low, high);
  else return ptx::pack_fp16(low, high);
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (spec::dtype == 0) ptx::mma_bf16(c, a, b0, b1);
  else ptx::mma_fp16(c, a, b0, b1);
}

// log2(2^a + 2^b); -inf is neutral.
__device__ __forceinline__ float log2_add(float a, float b) {
  const float top = fmaxf(a, b);
  if (top == minus_infinity()) return top;
  return top + ptx::log2_approx(ptx::exp2_approx(a - top) + ptx::exp2_approx(b - top));
}
// tanh through exp2: 1 - 2 / (e^2x + 1), exact at both ends.
__device__ __forceinline__ float tanh_exp2(float x) { return 1.f - __fdividef(2.f, ptx::exp2_approx(2.f * kLog2E * x) + 1.f); }
