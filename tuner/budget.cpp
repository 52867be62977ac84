#include "tuner/budget.hpp"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "pagetune/error.hpp"

namespace pagetune {

Budget::Budget(double total_s, std::vector<double> weights, std::function<double()> now_s)
    : end_s_(now_s() + total_s), weights_(std::move(weights)), now_s_(std::move(now_s)) {}

double Budget::left_s() const { return end_s_ - now_s_(); }

double Budget::share_s(size_t work) const {
  double rest = std::accumulate(weights_.begin() + static_cast<std::ptrdiff_t>(work), weights_.end(), 0.0);
  return left_s() * weights_[work] / rest;
}

double sample_weight(double kv_bytes, int launches, double bytes_per_us) {
  constexpr double kFixedUs = 1000;         // recording a graph, its first replay, the host's part: about a millisecond
  constexpr double kUnknownBytesPerUs = 1e4;  // 10 GB/s: two cores of a server
  return kFixedUs + launches * kv_bytes / (bytes_per_us > 0 ? bytes_per_us : kUnknownBytesPerUs);
}

double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double parse_duration(const std::string& text) {
  auto refuse = [&] {
    return Error(ErrorCode::invalid_argument, fmt::format("'{}' is no duration: write seconds, minutes or hours above zero, such as 90, 90s, 3m, 1h30m", text));
  };
  double seconds = 0;
  const char* at = text.c_str();
  if (*at == '\0') throw refuse();
  while (*at) {
    // Only digits and a point: strtod alone would also take blanks, signs, exponents, hexadecimal and "inf".
    size_t length = std::strspn(at, "0123456789.");
    if (length == 0) throw refuse();
    std::string number(at, length);
    char* parsed = nullptr;
    double value = std::strtod(number.c_str(), &parsed);
    if (*parsed) throw refuse();
    const char* end = at + length;
    double unit = 1;
    if (*end == 'h')
      unit = 3600, ++end;
    else if (*end == 'm')
      unit = 60, ++end;
    else if (*end == 's')
      ++end;
    else if (*end)
      throw refuse();
    seconds += value * unit;
    at = end;
  }
  if (!(seconds > 0) || seconds > 1e7) throw refuse();
  return seconds;
}

std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  int whole = static_cast<int>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace pagetune
