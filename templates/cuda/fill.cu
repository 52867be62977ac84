// Fills memory with pseudo-random 16-bit floats, uniform in [-2, 2): inputs of benches and of the tuner, never zeros.
// format: 0 bf16, 1 fp16. Every element depends on its index and the seed alone.
extern "C" __global__ void pt_fill(unsigned short* out, unsigned long long count, int format, unsigned long long seed) {
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    unsigned long long x = i + seed * 0x9e3779b97f4a7c15ull;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const float value = static_cast<float>(static_cast<int>(x & 0xffffff) - 0x800000) * (1.f / 0x400000);
    unsigned short bits;
    if (format == 0) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    out[i] = bits;
  }
}
