// Medians and their distribution-free confidence intervals.
#pragma once
#include <vector>

namespace pagetune {

// Mean of the two middle values for an even count. The sample is not empty.
double median(std::vector<double> sample);

struct Interval {
  double low = 0, high = 0;
  double half_width() const { return (high - low) / 2; }
};

// Confidence interval of the median from order statistics: the innermost symmetric pair of ranks whose coverage under the binomial
// distribution reaches `confidence`. Makes no assumption about the noise. A sample too small for any pair gives its extremes; ask
// interval_exists() whether they have the coverage.
Interval median_interval(std::vector<double> sample, double confidence);
bool interval_exists(int count, double confidence);

}  // namespace pagetune
