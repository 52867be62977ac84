#include "cache_db/layers.hpp"

#include <array>
#include <tuple>

namespace pagetune {
namespace {

bool better(const LayeredWinner& a, const LayeredWinner& b) {
  const auto rank = [](const LayeredWinner& x) {
    return std::tuple(!x.confirmed, x.shipped, x.winner.ci_high_us, x.winner.median_us, x.winner.config, x.winner.runner_up, x.winner.runner_up_us);
  };
  return rank(a) < rank(b);
}

}  // namespace

LayeredWinners candidates(const Environment& own, const std::string& generator, const std::vector<Store::Row>& rows, bool shipped) {
  const std::string own_key = own.key(), own_class = own.class_text();
  LayeredWinners found;
  for (const Store::Row& row : rows) {
    const bool other_device = row.winner.env_key != own_key;
    if (other_device && row.environment.class_text() != own_class) continue;
    found[row.winner.spec_key].emplace_back(row.winner, other_device, row.winner.generator_hash == generator, shipped);
  }
  return found;
}

std::vector<LayeredWinner> layered(const std::vector<LayeredWinner>& candidates) {
  std::array<std::array<const LayeredWinner*, Bucket::kCells>, 2> best{};
  for (const LayeredWinner& one : candidates) {
    const LayeredWinner*& place = best[one.other_device ? 1 : 0][static_cast<size_t>(one.winner.bucket.index())];
    if (place == nullptr || better(one, *place)) place = &one;
  }
  std::vector<LayeredWinner> found;
  for (const auto& cells : best)
    for (const LayeredWinner* one : cells)
      if (one != nullptr) found.push_back(*one);
  return found;
}

}  // namespace pagetune
