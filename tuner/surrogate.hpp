// A small model of a space's times: a Gaussian process over the logarithms of the times, by the configs' parameters.
#pragma once
#include <cstddef>
#include <vector>

#include "codegen/config.hpp"

namespace pagetune {

class Surrogate {
 public:
  // All configs that will be asked about: they fix each parameter's scale. A parameter with up to three values is a name, one with more a number on a
  // logarithmic scale.
  explicit Surrogate(const std::vector<KernelConfig>&);

  double distance(size_t a, size_t b) const;  // root mean square over the parameters, each from 0 to 1

  // Learns the times in microseconds of some configs, by index. Not empty; each time positive and finite.
  void fit(const std::vector<size_t>& configs, const std::vector<double>& us);
  struct Prediction {
    double log_us = 0, deviation = 0;
  };
  Prediction predict(size_t config) const;
  // By how much a config is expected to be below `log_us`, in natural logarithms: what is above counts as 0.
  double expected_gain(size_t config, double log_us) const;

 private:
  double covariance(size_t a, size_t b) const;

  std::vector<std::vector<double>> features_;  // [config][parameter]
  std::vector<char> is_name_;                  // of a parameter
  std::vector<size_t> known_;
  std::vector<double> weights_;                // K^-1 (y - mean)
  std::vector<double> factor_;                 // lower Cholesky factor of K, row by row
  double mean_ = 0, variance_ = 0;
};

}  // namespace pagetune
