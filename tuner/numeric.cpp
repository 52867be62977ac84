#include "tuner/numeric.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

[[noreturn]] void unknown_type(DType type) {
  throw Error(ErrorCode::unsupported, std::string("host conversion of ") + name_of(type) + " is not implemented; bf16, fp16 and fp32 are");
}

template <class T>
T element(const void* array, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void set_element(void* array, int64_t index, T value) {
  std::memcpy(static_cast<char*>(array) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float float_from_bf16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

uint16_t fp16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return static_cast<uint16_t>(sign | 0x7C00);  // half-way between the largest half and 2^16
  if (magnitude < 0x1p-14F) {
    // Subnormal: a multiple of 2^-24. nearbyint rounds to even; 1024 of them is the smallest normal number.
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24F)));
  }
  const uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112U << 23)) >> 13));  // exponent bias 127 -> 15
}

float float_from_fp16(uint16_t value) {
  const float sign = (value & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = (value >> 10) & 31;
  const int mantissa = value & 1023;
  if (exponent == 31) return mantissa != 0 ? std::bit_cast<float>(0x7FC00000U) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

double load_element(DType type, const void* array, int64_t index) {
  switch (type) {
    case DType::bf16: return float_from_bf16(element<uint16_t>(array, index));
    case DType::fp16: return float_from_fp16(element<uint16_t>(array, index));
    case DType::fp32: return element<float>(array, index);
    default: unknown_type(type);
  }
}

void store_element(DType type, void* array, int64_t index, double value) {
  switch (type) {
    case DType::bf16: return set_element(array, index, bf16_from_float(static_cast<float>(value)));
    case DType::fp16: return set_element(array, index, fp16_from_float(static_cast<float>(value)));
    case DType::fp32: return set_element(array, index, static_cast<float>(value));
    default: unknown_type(type);
  }
}

void load_elements(DType type, const void* array, int64_t count, double* to) {
  if (type == DType::bf16) {
    for (int64_t i = 0; i < count; ++i) to[i] = float_from_bf16(element<uint16_t>(array, i));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = load_element(type, array, i);
}

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

Tolerance tolerance_of(DType type) {
  // Two roundings to the element type stand between kernel and oracle: the probabilities before P*V, and the output. Each is off by at
  // most u (bf16 2^-8, fp16 2^-11), by about 0.4 u in the mean square, so 2 u is never reached by rounding and always by a lost key of
  // a short row. One row alone can cancel, hence the wider row bound. fp32: sums of up to 2^17 products with u = 2^-24 and a
  // polynomial exp2 good to about 1e-7. LSE: products are exact and sums are fp32 for every type; the relative part is the fp32
  // rounding of a large LSE in base 2 and again in base e. Where a sink takes nearly all of the weight, each of some hundred
  // probabilities, and the output, is off by half of what the type ends at: fp16 at 2^-24, the others at 2^-126.
  switch (type) {
    case DType::bf16: return {8e-3, 2.4e-2, 2e-3, 3e-7, 1e-34};
    case DType::fp16: return {2e-3, 6e-3, 2e-3, 3e-7, 1e-5};
    case DType::fp32: return {1e-5, 1e-4, 2e-4, 3e-7, 1e-34};
    default: unknown_type(type);
  }
}

}  // namespace pagetune
