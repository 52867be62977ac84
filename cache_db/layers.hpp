// Which winners may answer for one spec on one device, out of what the user's store and the shipped database hold. Pure.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

// Those of the rows that may answer on the device, of each spec: measured in its own environment, or in another of its class.
LayeredWinners candidates(const Environment& own, const std::string& generator, const std::vector<Store::Row>& rows, bool shipped = false);

// Of one spec's candidates, at most one for each bucket that was measured in the device's own environment, and one for each that was measured in another of its class. Of several the confirmed one
// (see LayeredWinner) before others, the user's before the shipped, then the smaller upper end of the interval, then the smaller median, configs and runner-up's time.
// Sorted: own before others, then by bucket.
std::vector<LayeredWinner> layered(const std::vector<LayeredWinner>& candidates);

}  // namespace pagetune
