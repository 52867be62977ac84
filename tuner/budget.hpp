// Budget: spreads a session's time over its works.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace pagetune {

// Each work's share is in proportion to its weight, the time that one sample of it takes: all works then get about as many samples. What a
// work leaves over goes to those after it.
class Budget {
 public:
  // now_s: a clock that never goes back, in seconds.
  Budget(double total_s, std::vector<double> weights, std::function<double()> now_s);

  double left_s() const;
  // Seconds for work i, counted from now, if works i, i + 1, … are still to come.
  double share_s(size_t work) const;
  double weight(size_t work) const { return weights_[work]; }

 private:
  double end_s_;
  std::vector<double> weights_;
  std::function<double()> now_s_;
};

// Weight of a work: fixed cost of a sample plus its launches at the rate at which memory can be read (0: unknown, then 10 GB/s).
double sample_weight(double kv_bytes, int launches, double bytes_per_us);

// Of a clock that never goes back.
double steady_seconds();

// "90", "90s", "3m", "1h30m", "0.5h" in seconds. Error invalid_argument with the text and the forms allowed.
double parse_duration(const std::string& text);
// "2m 05s", "12.3 s"
std::string duration_text(double seconds);

}  // namespace pagetune
