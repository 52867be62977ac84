#include "tuner/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace pagetune {
namespace {

// Largest k such that the k-th smallest and k-th largest values enclose the median with at least `confidence`; 0 if none does.
// Coverage is 1 - 2 P(Binomial(n, 1/2) <= k - 1).
int inner_rank(int n, double confidence) {
  double tail = 0;
  int rank = 0;
  for (int k = 0; 2 * k < n; ++k) {
    tail += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
    if (1 - 2 * tail < confidence) break;
    rank = k + 1;
  }
  return rank;
}

}  // namespace

double median(std::vector<double> sample) {
  std::sort(sample.begin(), sample.end());
  size_t middle = sample.size() / 2;
  return sample.size() % 2 ? sample[middle] : (sample[middle - 1] + sample[middle]) / 2;
}

Interval median_interval(std::vector<double> sample, double confidence) {
  std::sort(sample.begin(), sample.end());
  int rank = std::max(1, inner_rank(static_cast<int>(sample.size()), confidence));
  return {sample[rank - 1], sample[sample.size() - rank]};
}

bool interval_exists(int count, double confidence) { return inner_rank(count, confidence) > 0; }

}  // namespace pagetune
