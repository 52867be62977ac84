#include "runtime/no_winners.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

namespace pagetune {
namespace {

// Smaller: more like this device. What decides whether winners carry over comes first.
auto distance(const Environment& own, const Environment& other, int winners) {
  return std::tuple(other.backend != own.backend, other.class_text() != own.class_text(), other.arch != own.arch, other.device != own.device, -winners, other.canonical_json());
}

std::string nearest(const Environment& own, const std::vector<Store::Row>& rows) {
  std::map<std::string, std::pair<Environment, int>> devices;
  for (const Store::Row& row : rows) {
    auto& [environment, winners] = devices[row.winner.env_key];
    environment = row.environment;
    ++winners;
  }
  const std::pair<Environment, int>* found = nullptr;
  for (const auto& [key, device] : devices)
    if (found == nullptr || distance(own, device.first, device.second) < distance(own, found->first, found->second)) found = &device;
  return fmt::format("the nearest are {} for {}, {}", found->second, found->first.text(),
                     found->first.class_text() == own.class_text() ? "which are blocked or not of this build's config space" : "another class of device, which do not carry over");
}

}  // namespace

std::string no_winners_sentence(const Environment& own, const AttentionSpec& spec, const std::vector<Store::Row>& rows, size_t other_specs) {
  std::string there = rows.empty() ? "no device has winners for it" : nearest(own, rows);
  if (other_specs > 0) there += fmt::format("; {} other spec{} winners here", other_specs, other_specs == 1 ? " has" : "s have");
  return fmt::format("pagetune: the analytic default runs, untuned, for spec {} on {}: {}. To tune it: pagetune tune MODEL on this machine, or pagetune tune --from-untuned after this program has run", canonical_json(spec),
                     own.text(), there);
}

void say_no_winners(const Store& store, const Environment& own, const AttentionSpec& spec) {
  if (std::getenv("PAGETUNE_QUIET") != nullptr) return;
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> said;
  {
    const std::lock_guard lock(mutex);
    if (!said.insert({own.key(), spec_key(spec)}).second) return;
  }
  fmt::print(stderr, "{}\n", no_winners_sentence(own, spec, store.rows_of(spec_key(spec)), store.layered_winners(own).size()));
}

}  // namespace pagetune
