#include "tuner/surrogate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <string>

namespace pagetune {
namespace {

constexpr size_t kMostNames = 3;    // values of a parameter without an order
constexpr double kLength = 0.35;    // distance over which times tell of each other, of a space whose parameters all go from 0 to 1
constexpr double kNoise = 0.01;     // of a time, relative: medians of a few samples
constexpr int kAbsent = -1;         // value of a parameter that a config does not have

}  // namespace

Surrogate::Surrogate(const std::vector<KernelConfig>& configs) {
  std::map<std::string, std::set<int>> values;
  for (const KernelConfig& config : configs)
    for (const auto& [name, value] : config.values()) values[name].insert(value);
  for (auto& [name, all] : values)
    for (const KernelConfig& config : configs) all.insert(config.get(name, kAbsent));
  std::erase_if(values, [](const auto& entry) { return entry.second.size() == 1; });

  for (const auto& [name, all] : values) is_name_.push_back(all.size() <= kMostNames);
  for (const KernelConfig& config : configs) {
    std::vector<double> row;
    for (const auto& [name, all] : values) {
      const double low = std::log2(2.0 + *all.begin()), high = std::log2(2.0 + *all.rbegin());
      row.push_back((std::log2(2.0 + config.get(name, kAbsent)) - low) / (high - low));
    }
    features_.push_back(std::move(row));
  }
}

double Surrogate::distance(size_t a, size_t b) const {
  if (is_name_.empty()) return 0;
  double sum = 0;
  for (size_t k = 0; k < is_name_.size(); ++k) {
    const double apart = features_[a][k] - features_[b][k];
    sum += is_name_[k] ? (apart == 0 ? 0 : 1) : apart * apart;
  }
  return std::sqrt(sum / static_cast<double>(is_name_.size()));
}

// Matern 3/2: times have kinks where a resource runs out.
double Surrogate::covariance(size_t a, size_t b) const {
  const double r = std::sqrt(3.0) * distance(a, b) / kLength;
  return variance_ * (1 + r) * std::exp(-r);
}

void Surrogate::fit(const std::vector<size_t>& configs, const std::vector<double>& us) {
  known_ = configs;
  const size_t n = known_.size();
  std::vector<double> y;
  for (const double x : us) y.push_back(std::log(x));
  mean_ = 0;
  for (const double x : y) mean_ += x / static_cast<double>(n);
  variance_ = kNoise * kNoise;
  for (const double x : y) variance_ += (x - mean_) * (x - mean_) / static_cast<double>(n);

  factor_.assign(n * n, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j <= i; ++j) {
      double sum = covariance(known_[i], known_[j]) + (i == j ? kNoise * kNoise : 0);
      for (size_t k = 0; k < j; ++k) sum -= factor_[i * n + k] * factor_[j * n + k];
      factor_[i * n + j] = i == j ? std::sqrt(std::max(sum, kNoise * kNoise * 1e-3)) : sum / factor_[j * n + j];
    }
  weights_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {  // L z = y
    double sum = y[i] - mean_;
    for (size_t k = 0; k < i; ++k) sum -= factor_[i * n + k] * weights_[k];
    weights_[i] = sum / factor_[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {  // L^T w = z
    double sum = weights_[i];
    for (size_t k = i + 1; k < n; ++k) sum -= factor_[k * n + i] * weights_[k];
    weights_[i] = sum / factor_[i * n + i];
  }
}

Surrogate::Prediction Surrogate::predict(size_t config) const {
  const size_t n = known_.size();
  std::vector<double> solved(n);
  double log_us = mean_, variance = variance_;
  for (size_t i = 0; i < n; ++i) {
    const double k = covariance(config, known_[i]);
    log_us += k * weights_[i];
    double sum = k;
    for (size_t j = 0; j < i; ++j) sum -= factor_[i * n + j] * solved[j];
    solved[i] = sum / factor_[i * n + i];
    variance -= solved[i] * solved[i];
  }
  return {log_us, std::sqrt(std::max(variance, 0.0))};
}

double Surrogate::expected_gain(size_t config, double log_us) const {
  const Prediction at = predict(config);
  const double below = log_us - at.log_us;
  if (at.deviation < 1e-9) return std::max(below, 0.0);
  const double z = below / at.deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi), share = std::erfc(-z / std::numbers::sqrt2) / 2;
  return below * share + at.deviation * density;
}

}  // namespace pagetune
