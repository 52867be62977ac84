#include "tuner/estimate.hpp"

#include <algorithm>

#include "tuner/budget.hpp"

namespace pagetune {

double build_seconds(int shapes, Backend backend, int host_threads) {
  // A header-free decode kernel through NVRTC takes 0.4 s, one through LLVM 0.1 s; both verify in about 0.05 s.
  const double compile_s = backend == Backend::cuda ? 0.4 : 0.1;
  constexpr double kVerify = 0.05;
  return shapes * (compile_s / std::clamp(host_threads, 1, 8) + kVerify);
}

double race_seconds(int candidates, double kv_bytes, const MeasurePolicy& policy, double bytes_per_us) {
  // Of the candidates about an eighth, at most a dozen, survive the first samples; they race for half of the rounds on average.
  const double survivors = std::min(12.0, 1 + candidates / 8.0);
  const double samples = candidates * policy.first_samples + survivors * policy.max_rounds / 2.0 + 3.0 * policy.final_rounds;
  return samples * sample_weight(kv_bytes, policy.launches_per_sample, bytes_per_us) * 1e-6;
}

}  // namespace pagetune
