// Vectors of fp32 lanes, conversion from and to the cache's element type, exp2. The width is a template parameter; LLVM legalises it.
#pragma once
#include "constants.hpp"

#define PT_INLINE static inline __attribute__((always_inline))

using Byte = unsigned char;
template <int n> using Floats = float __attribute__((ext_vector_type(n)));
template <int n> using Halves = _Float16 __attribute__((ext_vector_type(n)));
template <int n> using Ints = int __attribute__((ext_vector_type(n)));
template <int n> using Words = unsigned __attribute__((ext_vector_type(n)));
template <int n> using Shorts = unsigned short __attribute__((ext_vector_type(n)));

constexpr float kInfinity = __builtin_inff();

PT_INLINE int element_bytes() { return spec_dtype == kFp32 ? 4 : 2; }
PT_INLINE int out_element_bytes() { return spec_out_dtype == kFp32 ? 4 : 2; }

// Bit casts between vectors of equal size.
template <class To, class From> PT_INLINE To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class V> PT_INLINE V load_raw(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <int n> PT_INLINE Floats<n> load_floats(const float* from) { return load_raw<Floats<n>>(from); }
template <int n> PT_INLINE void store_floats(float* to, Floats<n> v) { __builtin_memcpy(to, &v, sizeof v); }

// n elements of the spec's dtype from column `dim` of a row, as fp32. bf16 is the upper half of an fp32.
template <int n> PT_INLINE Floats<n> load_row(const Byte* row, int dim) {
  if (spec_dtype == kFp32) return load_raw<Floats<n>>(row + dim * 4);
  if (spec_dtype == kFp16) return __builtin_convertvector(load_raw<Halves<n>>(row + dim * 2), Floats<n>);
  return as<Floats<n>>(__builtin_convertvector(load_raw<Shorts<n>>(row + dim * 2), Words<n>) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN where the rounding's carry would make it an infinity.
template <int n> PT_INLINE Shorts<n> to_bf16(Floats<n> v) {
  Words<n> bits = as<Words<n>>(v);
  Words<n> rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  Words<n> quiet = bits | 0x400000u;
  return __builtin_convertvector((v == v ? rounded : quiet) >> 16, Shorts<n>);
}

template <int n> PT_INLINE void store_out(Byte* row, int dim, Floats<n> v) {
  if (spec_out_dtype == kFp32) {
    __builtin_memcpy(row + dim * 4, &v, sizeof v);
  } else if (spec_out_dtype == kFp16) {
    Halves<n> half = __builtin_convertvector(v, Halves<n>);
    __builtin_memcpy(row + dim * 2, &half, sizeof half);
  } else {
    Shorts<n> brain = to_bf16<n>(v);
    __builtin_memcpy(row + dim * 2, &brain, sizeof brain);
  }
}

template <int n> PT_INLINE Floats<n> larger(Floats<n> a, Floats<n> b) { return a > b ? a : b; }

// 2^x for x <= 0; exactly 0 below -125, NaN for NaN. 2^n comes from the low bits of x + 1.5 * 2^23, which also rounds x to the integer
// n; the rest in [-1/2, 1/2] goes through a polynomial of degree 6 (coefficients of Cephes' exp2f, relative error below 2e-7).
template <int n> PT_INLINE Floats<n> exp2_nonpositive(Floats<n> x) {
  constexpr float kRound = 12582912.0f;
  Floats<n> shifted = x + kRound;
  Floats<n> r = x - (shifted - kRound);
  Floats<n> y = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  y = y * r + 9.618437357674640e-3f;
  y = y * r + 5.550332471162809e-2f;
  y = y * r + 2.402264791363012e-1f;
  y = y * r + 6.931472028550421e-1f;
  y = y * r + 1.0f;
  Floats<n> power = as<Floats<n>>((as<Words<n>>(shifted) << 23) + 0x3f800000u);
  return x < -125.0f ? Floats<n>(0.0f) : y * power;
}

// The odd polynomial and its bound are those of Cephes' tanhf; beyond it, 1 - t and 1 + t with t = e^(-2|x|) lose nothing. Relative
// error below 3e-7; +-1 for infinities, NaN for NaN.
template <int n> PT_INLINE Floats<n> tanh_of(Floats<n> x) {
  Floats<n> magnitude = x < 0.0f ? -x : x;
  Floats<n> t = exp2_nonpositive<n>(magnitude * -2.885390081777927f);
  Floats<n> far = (1.0f - t) / (1.0f + t);
  Floats<n> z = x * x;
  Floats<n> y = z * -5.70498872745e-3f + 2.06390887954e-2f;
  y = y * z - 5.37397155531e-2f;
  y = y * z + 1.33314422036e-1f;
  y = y * z - 3.33332819422e-1f;
  Floats<n> close = y * z * x + x;
  return magnitude < 0.625f ? close : (x < 0.0f ? -far : far);
}

template <int n> PT_INLINE Ints<n> lane_numbers() {
  Ints<n> lanes;
#pragma clang loop unroll(full)
  for (int i = 0; i < n; ++i) lanes[i] = i;
  return lanes;
}

template <int n> PT_INLINE float sum_of(Floats<n> v) {
  if constexpr (n == 4) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else {
    return sum_of<n / 2>(v.lo + v.hi);
  }
}

template <int n> PT_INLINE float largest_of(Floats<n> v) {
  if constexpr (n == 4) {
    float a = v[0] > v[1] ? v[0] : v[1];
    float b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
  } else {
    return largest_of<n / 2>(larger<n / 2>(v.lo, v.hi));
  }
}

// Lanes with bit `w` from b, the others from a; the second function gives each lane's partner at distance w of the same vector.
template <int w> PT_INLINE Floats<4> own_half(Floats<4> a, Floats<4> b) {
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 0, 1, 6, 7);
  return __builtin_shufflevector(a, b, 0, 5, 2, 7);
}
template <int w> PT_INLINE Floats<4> other_half(Floats<4> a, Floats<4> b) {
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 2, 3, 4, 5);
  return __builtin_shufflevector(a, b, 1, 4, 3, 6);
}
template <int w> PT_INLINE Floats<8> own_half(Floats<8> a, Floats<8> b) {
  if constexpr (w == 4) return __builtin_shufflevector(a, b, 0, 1, 2, 3, 12, 13, 14, 15);
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 0, 1, 10, 11, 4, 5, 14, 15);
  return __builtin_shufflevector(a, b, 0, 9, 2, 11, 4, 13, 6, 15);
}
template <int w> PT_INLINE Floats<8> other_half(Floats<8> a, Floats<8> b) {
  if constexpr (w == 4) return __builtin_shufflevector(a, b, 4, 5, 6, 7, 8, 9, 10, 11);
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 2, 3, 8, 9, 6, 7, 12, 13);
  return __builtin_shufflevector(a, b, 1, 8, 3, 10, 5, 12, 7, 14);
}
template <int w> PT_INLINE Floats<16> own_half(Floats<16> a, Floats<16> b) {
  if constexpr (w == 8) return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31);
  if constexpr (w == 4) return __builtin_shufflevector(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31);
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31);
  return __builtin_shufflevector(a, b, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31);
}
template <int w> PT_INLINE Floats<16> other_half(Floats<16> a, Floats<16> b) {
  if constexpr (w == 8) return __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
  if constexpr (w == 4) return __builtin_shufflevector(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  if constexpr (w == 2) return __builtin_shufflevector(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29);
  return __builtin_shufflevector(a, b, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
}

// n vectors of n lanes in, one vector of their n sums out: a butterfly of n - 1 steps in place of n horizontal sums. Lane j of the
// result is the sum over the lanes of v[j].
template <int n, int w = n / 2> PT_INLINE Floats<n> sums_of(Floats<n> (&v)[n]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < w; ++i) v[i] = own_half<w>(v[i], v[i + w]) + other_half<w>(v[i], v[i + w]);
  if constexpr (w > 1) {
    return sums_of<n, w / 2>(v);
  } else {
    return v[0];
  }
}
