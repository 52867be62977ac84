#include "cache_db/layers.hpp"

#include <map>
#include <tuple>
#include <utility>

#include "cache_db/winner_json.hpp"

namespace pagetune {
namespace {

bool better(const LayeredWinner& a, const LayeredWinner& b) {
  const auto rank = [](const LayeredWinner& x) { return std::tuple(!x.confirmed, x.shipped, x.winner.ci_high_us); };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return winner_to_json(a.winner).dump() < winner_to_json(b.winner).dump();
}

}  // namespace

std::vector<LayeredWinner> layered(const Environment& own, const std::string& generator, const std::vector<Store::Row>& user, const std::vector<Store::Row>& shipped) {
  const std::string own_key = own.key(), own_class = own.class_text();
  std::map<std::pair<bool, Bucket>, LayeredWinner> best;
  for (const auto* rows : {&user, &shipped}) {
    for (const Store::Row& row : *rows) {
      const bool other_device = row.winner.env_key != own_key;
      if (other_device && row.environment.class_text() != own_class) continue;
      LayeredWinner candidate{row.winner, other_device, row.winner.generator_hash == generator, rows == &shipped};
      const auto [place, is_new] = best.try_emplace({other_device, row.winner.bucket}, candidate);
      if (!is_new && better(candidate, place->second)) place->second = std::move(candidate);
    }
  }
  std::vector<LayeredWinner> found;
  for (auto& [key, winner] : best) found.push_back(std::move(winner));
  return found;
}

}  // namespace pagetune
