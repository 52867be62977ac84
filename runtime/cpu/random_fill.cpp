#include "runtime/cpu/random_fill.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// splitmix64: a counter is enough, so the elements are independent of each other.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 24 random bits as a float in [-2, 2), exactly.
float uniform(uint64_t bits) { return static_cast<float>(static_cast<int>(bits >> 40) - (1 << 23)) * 0x1p-22f; }

// Towards zero, so that nothing rounds up to 2.
uint16_t bf16_of(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

uint16_t fp16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const int exponent = static_cast<int>(bits >> 23 & 0xffu) - 127 + 15;
  if (exponent <= 0) return static_cast<uint16_t>(sign);  // below 2^-14: zero is near enough for random data
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ffu));
}

template <class Element, class Convert> void fill(void* memory, size_t bytes, uint64_t seed, Convert convert) {
  auto* out = static_cast<unsigned char*>(memory);
  const uint64_t stream = mix(seed);
  for (size_t i = 0; i < bytes / sizeof(Element); ++i) {
    const Element value = convert(uniform(mix(stream + i)));
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

void fill_random(void* memory, size_t bytes, DType type, uint64_t seed) {
  switch (type) {
    case DType::bf16: return fill<uint16_t>(memory, bytes, seed, bf16_of);
    case DType::fp16: return fill<uint16_t>(memory, bytes, seed, fp16_of);
    case DType::fp32: return fill<float>(memory, bytes, seed, [](float value) { return value; });
    default: throw Error(ErrorCode::unsupported, std::string("random data of type ") + name_of(type) + " is not available; allowed: bf16, fp16, fp32");
  }
}

}  // namespace pagetune
