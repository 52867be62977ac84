// The part of a config that is given at launch: configs that differ only in it share one binary.
#pragma once
#include <algorithm>

#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/params.h"

namespace pagetune {

// How a launch spreads the KV tiles: each sequence in num_splits parts, or, where num_ctas > 0, all tiles evenly over that many CTAs.
struct LaunchPlan {
  int num_splits = 1;
  int num_ctas = 0;

  LaunchPlan() = default;
  LaunchPlan(int splits) : num_splits(splits) {}  // NOLINT(google-explicit-constructor): a split count is a plan

  // CTA_QUARTERS counts in quarters of the device's processors, so that one table serves parts of any size.
  LaunchPlan(const KernelConfig& config, const Target& target) : num_splits(config.num_splits()) {
    if (config.even_share()) num_ctas = std::max(1, config.get("CTA_QUARTERS", 0) * target.processors / 4);
  }

  bool merges() const { return num_splits > 1 || num_ctas > 0; }
  bool operator==(const LaunchPlan&) const = default;
};

// How an even share's pairs of (sequence, KV head, row tile) and the ranges of its line fit each other, whatever the lengths: fields of the same names of
// pt_decode_params, which spare every CTA of a launch the divisions (templates/cuda/schedule.cuh: Shares::Fit).
struct ShareFit {
  int whole_pairs, whole_ranges, cut_ranges;

  // `lanes`: KV heads x row tiles, which share a range side by side where all heads of a sequence have the same tiles.
  ShareFit(int batch, int lanes, int num_ctas, bool heads_are_alike) {
    const bool side_by_side = heads_are_alike && num_ctas >= lanes;
    const int pairs = std::max(side_by_side ? batch : batch * lanes, 1), ranges = side_by_side ? num_ctas / lanes : num_ctas;
    whole_pairs = (pairs + ranges - 1) / ranges;
    whole_ranges = (pairs + whole_pairs - 1) / whole_pairs;
    cut_ranges = ranges / pairs;
  }
  void tell(pt_decode_params& p) const { p.whole_pairs = whole_pairs, p.whole_ranges = whole_ranges, p.cut_ranges = cut_ranges; }
};

// CTAs of a cluster where clusters merge: what divides the splits, the widest power of two, at most 16. Where that is not all of them, each cluster
// leaves one partial result.
inline int cluster_of(int num_splits) { return std::min(num_splits & -num_splits, 16); }

// What grows with the number of CTAs among configs of one shape.
inline int spread_of(const KernelConfig& config) { return config.even_share() ? config.at("CTA_QUARTERS") : config.num_splits(); }

// The config of the binary: without launch-time values.
inline KernelConfig shape_of(KernelConfig config) {
  if (config.even_share()) config.set("CTA_QUARTERS", 1);
  config.set("NUM_SPLITS", 0);
  return config;
}

}  // namespace pagetune
