// MeasurePolicy: how candidates are timed and when a race ends. Part of a winner's identity: a change means measuring again.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "codegen/target.hpp"
#include "pagetune/params.h"

namespace pagetune {

// Ratios are per mille, so that the canonical JSON holds integers only.
struct MeasurePolicy {
  int launches_per_sample = 20;  // dependent launches of one recording, as an engine replays them; even, so that the chain closes
  int most_launches = 128;       // a recording grows up to this so that its launches touch the whole rotation before they come back
  int rotation_l2 = 4;           // distinct KV that a recording touches, in multiples of the L2 cache
  int warmup_ms = 50;            // an idle GPU runs at a fifth of its clock and needs about this long to leave it
  int first_samples = 3;         // of every candidate before the slow ones are dropped
  int drop_permille = 1300;      // dropped after the first samples: slower than this share of the best
  int min_rounds = 6;            // fewest for which order statistics give a 95 % interval of a median
  int max_rounds = 60;           // more does not narrow an interval below what clocks drift in the meantime
  int final_rounds = 15;         // fresh rounds of winner, default and runner-up; a 99.75 % interval then lies inside the extremes
  int tie_permille = 20;         // candidates this close are tied
  int gain_permille = 10;        // a winner is at least this much faster than the default, or equals one that is
  int throttle_permille = 900;   // of the speed so far: a round in which the device was slower is taken anew
  int eager = 0;                 // launches are made one by one, as an engine without graphs makes them, and not replayed
  int overlap = 1;               // launches are programmatic dependent ones, as an engine that can promise it launches them

  unsigned flags() const { return overlap != 0 ? PT_LAUNCH_OVERLAP : 0; }

  static MeasurePolicy for_backend(Backend);

  // Launches of one recording over a problem with this many sets of KV: even, so that the chain closes.
  int launches_for(int sets) const;
  double drop_ratio() const { return drop_permille / 1000.0; }
  double tie_band() const { return tie_permille / 1000.0; }
  double min_gain() const { return gain_permille / 1000.0; }
  double throttle_ratio() const { return throttle_permille / 1000.0; }

  static const std::vector<std::pair<const char*, int MeasurePolicy::*>>& fields();  // all of them, by name
  std::string canonical_json() const;
  // Of canonical_json(); Error invalid_argument for anything else.
  static MeasurePolicy from_json(const std::string& text);
  std::string hash() const;  // sha256 of canonical_json(), hex

  bool operator==(const MeasurePolicy&) const = default;
};

}  // namespace pagetune
