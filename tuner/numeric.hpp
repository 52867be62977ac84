// Element types on the host: conversion, random values, and how far a kernel may be from the fp64 oracle.
#pragma once
#include <cstdint>

#include "pagetune/spec.hpp"

namespace pagetune {

// Round to nearest even; NaN stays NaN.
uint16_t bf16_from_float(float);
uint16_t fp16_from_float(float);
float float_from_bf16(uint16_t);
float float_from_fp16(uint16_t);

// Element `index` of an array of bf16, fp16 or fp32; Error unsupported for other types.
double load_element(DType, const void* array, int64_t index);
void store_element(DType, void* array, int64_t index, double value);
void load_elements(DType, const void* array, int64_t count, double* to);

// SplitMix64: small, and any seed gives a full-period stream of its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int below(int limit) { return static_cast<int>(next() % static_cast<uint64_t>(limit)); }
  double uniform(double low, double high) { return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53); }

 private:
  uint64_t state_;
};

// Largest deviation from the oracle that rounding alone explains.
struct Tolerance {
  double error;      // |out - ref| / |ref| over the whole output
  double row_error;  // the same over one (sequence, head)
  double lse_abs;    // |lse - ref| <= lse_abs + lse_rel * |ref|
  double lse_rel;
  double floor;      // of each element of out, where the row is not 0: what the type's range cuts off, for values of a few units
};
Tolerance tolerance_of(DType);

}  // namespace pagetune
