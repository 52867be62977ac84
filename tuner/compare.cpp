#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tuner/device_problem.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

std::string place(const AttentionSpec& spec, size_t row) {
  return (spec.q_len == 1 ? "sequence " : "row ") + std::to_string(row / static_cast<size_t>(spec.q_heads)) + ", head " + std::to_string(row % static_cast<size_t>(spec.q_heads));
}

// The widest of the types that a result passes through.
Tolerance tolerance_of(const AttentionSpec& spec) {
  Tolerance widest = pagetune::tolerance_of(spec.out_dtype);
  for (const DType type : {spec.q_dtype, spec.kv_dtype}) {
    const Tolerance other = pagetune::tolerance_of(type);
    for (double Tolerance::*part : {&Tolerance::error, &Tolerance::row_error, &Tolerance::lse_abs, &Tolerance::lse_rel, &Tolerance::floor}) widest.*part = std::max(widest.*part, other.*part);
  }
  return widest;
}

}  // namespace

bool Outputs::operator==(const Outputs& other) const {
  return out == other.out && lse.size() == other.lse.size() && (lse.empty() || std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0);
}

Check compare(const AttentionSpec& spec, int64_t query_rows, const Outputs& outputs, const Reference& reference) {
  const Tolerance tolerance = tolerance_of(spec);
  const size_t rows = static_cast<size_t>(query_rows) * static_cast<size_t>(spec.q_heads);
  const size_t dim = spec.head_dim_v;
  Check check;
  const auto fail = [&](const std::string& what) {
    if (check.ok) check.what = what;
    check.ok = false;
  };

  double difference_square = 0;
  double reference_square = 0;
  std::vector<double> row(dim);
  for (size_t r = 0; r < rows; ++r) {
    load_elements(spec.out_dtype, outputs.out.data() + r * dim * (bits_of(spec.out_dtype) / 8), static_cast<int64_t>(dim), row.data());
    if (std::isnan(reference.lse[r])) {
      if (!std::all_of(row.begin(), row.end(), [](double x) { return std::isnan(x); })) fail("out was written where no query token is, at " + place(spec, r));
      if (spec.lse && !std::isnan(outputs.lse[r])) fail("LSE was written where no query token is, at " + place(spec, r));
      continue;
    }
    const bool empty = std::isinf(reference.lse[r]) && reference.lse[r] < 0;
    double row_difference = 0;
    double row_reference = 0;
    for (size_t d = 0; d < dim; ++d) {
      const double expected = reference.out[r * dim + d];
      if (std::isnan(row[d])) {
        fail("out is NaN or was not written at " + place(spec, r) + ", dim " + std::to_string(d));
        check.error = check.max_abs = INFINITY;
        break;
      }
      if (empty && row[d] != 0) fail("out is " + std::to_string(row[d]) + " where no key is visible and 0 is due, at " + place(spec, r) + ", dim " + std::to_string(d));
      const double difference = row[d] - expected;
      check.max_abs = std::max(check.max_abs, std::fabs(difference));
      row_difference += difference * difference;
      row_reference += expected * expected;
    }
    // A reference of exactly 0 (V = 0) has no relative error: there the row must be 0 as well.
    const double floor = row_reference > 0 ? tolerance.floor * std::sqrt(static_cast<double>(dim)) : 0;
    if (row_difference > 0 && !(std::sqrt(row_difference) <= tolerance.row_error * std::sqrt(row_reference) + floor)) {
      fail(fmt::format("out is off by {:g} where |ref| is {:g}, at {}", std::sqrt(row_difference), std::sqrt(row_reference), place(spec, r)));
    }
    difference_square += row_difference;
    reference_square += row_reference;

    if (!spec.lse) continue;
    const double lse = outputs.lse[r];
    if (std::isnan(lse)) {
      fail("LSE is NaN or was not written at " + place(spec, r));
    } else if (empty) {
      if (lse != reference.lse[r]) fail("LSE is " + std::to_string(lse) + " where no key is visible and -inf is due, at " + place(spec, r));
    } else {
      const double difference = std::fabs(lse - reference.lse[r]);
      check.lse_max_abs = std::max(check.lse_max_abs, difference);
      if (!(difference <= tolerance.lse_abs + tolerance.lse_rel * std::fabs(reference.lse[r]))) {
        fail("LSE is " + std::to_string(lse) + ", should be " + std::to_string(reference.lse[r]) + ", at " + place(spec, r));
      }
    }
  }
  if (std::isfinite(check.error) && reference_square > 0) check.error = std::sqrt(difference_square / reference_square);
  const double floor = tolerance.floor * std::sqrt(static_cast<double>(rows * dim));
  if (!(check.error <= tolerance.error) && !(std::sqrt(difference_square) <= floor)) {
    fail("relative error " + std::to_string(check.error) + " over the whole output; " + std::to_string(tolerance.error) + " is allowed for " + name_of(spec.out_dtype));
  }
  return check;
}

}  // namespace pagetune
