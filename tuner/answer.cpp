#include "tuner/answer.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "tuner/session.hpp"

namespace pagetune {
namespace {

using Winners = std::vector<const LayeredWinner*>;

Winners of_device(const std::vector<LayeredWinner>& all, bool other_device) {
  Winners chosen;
  for (const LayeredWinner& one : all)
    if (one.other_device == other_device) chosen.push_back(&one);
  return chosen;
}

const LayeredWinner* winner_of(const Winners& winners, Bucket bucket) {
  const auto found = std::find_if(winners.begin(), winners.end(), [&](const LayeredWinner* one) { return one->winner.bucket == bucket; });
  return found == winners.end() ? nullptr : *found;
}

int octaves(Bucket a, Bucket b) { return std::abs(a.batch_log2 - b.batch_log2) + std::abs(a.len_log2 - b.len_log2); }

bool in_reach(Bucket a, Bucket b) { return std::abs(a.batch_log2 - b.batch_log2) <= DispatchTable::kReach && std::abs(a.len_log2 - b.len_log2) <= DispatchTable::kReach; }

// How a winner was measured.
std::optional<Winner> measured(const StoredRows& stored, const LayeredWinner& one) {
  const auto found = std::find_if(stored.rows.begin(), stored.rows.end(), [&](const Store::Row& row) { return Choice(row.winner) == one.winner && (row.winner.env_key != stored.env_key) == one.other_device; });
  return found == stored.rows.end() ? std::nullopt : std::optional(found->winner);
}

std::vector<std::string> remarks_on(const Winner& winner, const AttentionSpec& spec, const Target& target, const MeasurePolicy& policy) {
  const Changes changes = changes_since(winner, spec, target, policy);
  std::string changed;
  const auto name = [&](bool is_other, const char* what) {
    if (is_other) changed += fmt::format("{}another {}", changed.empty() ? "" : ", ", what);
  };
  name(changes.policy, "measuring policy");
  name(changes.space, "config space");
  name(changes.generator, "kernel generator");
  std::vector<std::string> made;
  if (!changed.empty()) made.push_back(fmt::format("{} is not current: measured with {}; it counts until pagetune tune measures it again", winner.bucket.text(), changed));
  return made;
}

// Other winners that would have been near enough.
std::string others_in_reach(const Winners& winners, Bucket bucket, Bucket chosen) {
  std::string text;
  for (const LayeredWinner* one : winners) {
    const Bucket other = one->winner.bucket;
    if (other != chosen && other != bucket && in_reach(other, bucket)) text += (text.empty() ? "" : ", ") + other.text();
  }
  return text.empty() ? "" : fmt::format("; also in reach, but not nearer, not supported here or blocked: {}", text);
}

std::string none_near(const Winners& winners, Bucket bucket, const char* where) {
  if (winners.empty()) return fmt::format("no layer has a winner of this kernel on {}", where);
  const Bucket closest = (*std::min_element(winners.begin(), winners.end(), [&](const LayeredWinner* a, const LayeredWinner* b) { return octaves(a->winner.bucket, bucket) < octaves(b->winner.bucket, bucket); }))->winner.bucket;
  if (in_reach(closest, bucket)) return fmt::format("of the {} winners, those within {} octaves of {} are not supported here or blocked", winners.size(), DispatchTable::kReach, bucket.text());
  return fmt::format("none of the {} winners lies within {} octaves of {} on both axes; the closest is {}", winners.size(), DispatchTable::kReach, bucket.text(), closest.text());
}

}  // namespace

std::vector<SourceAnswer> answers_of(const AttentionSpec& spec, const Target& target, const MeasurePolicy& policy, const StoredRows& rows, const CallShape& call) {
  const DispatchTable table(spec, target, rows.winners, rows.blocked);
  const Source selected = table.at(call).source;
  const Bucket bucket = call.bucket;
  const Winners here = of_device(rows.winners, false), elsewhere = of_device(rows.winners, true);
  const LayeredWinner* own = winner_of(here, bucket);
  const LayeredWinner* admitted = table.answer(bucket);
  const bool answered_here = admitted != nullptr && !admitted->other_device, own_admitted = answered_here && admitted->winner.bucket == bucket;

  const auto source = [&](Source which) { return SourceAnswer{which, selected == which, {}, {}, {}}; };
  SourceAnswer exact = source(Source::tuned), nearest = source(Source::nearest), other = source(Source::other_device), fallback = source(Source::analytic_default);
  const auto row = [&](SourceAnswer& at, const LayeredWinner& one) {
    at.winner = measured(rows, one);
    if (at.winner) at.remarks = remarks_on(*at.winner, spec, target, policy);
    if (one.shipped) at.remarks.push_back(fmt::format("{} is of the winners that come with pagetune", one.winner.bucket.text()));
  };
  const auto one_length = [](const Choice& winner) {
    return fmt::format("no: {} won with as many CTAs for each sequence, measured on sequences of one length; here lengths differ, or their sum is not known (--total-len)", winner.bucket.text());
  };
  const auto near = [&](SourceAnswer& at, const Winners& among, const char* of) {
    row(at, *winner_of(among, admitted->winner.bucket));
    if (at.winner) at.winner->config = admitted->winner.config;  // its runner-up, if the buckets around have that
    at.why = (at.answers ? fmt::format("yes: {} is the nearest of {} winners{}", admitted->winner.bucket.text(), among.size(), of) : one_length(admitted->winner)) + others_in_reach(among, bucket, admitted->winner.bucket);
  };
  const char* const one_config = "no: a batch-invariant kernel has one config for all buckets";

  if (own != nullptr) row(exact, *own);
  if (own_admitted && exact.winner) exact.winner->config = admitted->winner.config;
  if (spec.batch_invariant) exact.why = one_config;
  else if (own == nullptr) exact.why = fmt::format("no: no layer has a winner of bucket {} on this device", bucket.text());
  else if (!own_admitted) exact.why = "no: " + *table.refusal(own->winner);
  else exact.why = exact.answers ? "yes: measured for this bucket" : one_length(own->winner);

  if (spec.batch_invariant) nearest.why = one_config;
  else if (own_admitted) nearest.why = "no: the bucket has a winner of its own";
  else if (!answered_here) nearest.why = "no: " + none_near(here, bucket, "this device");
  else near(nearest, here, "");

  if (spec.batch_invariant) other.why = one_config;
  else if (answered_here) other.why = "no: this device has a winner in reach";
  else if (admitted == nullptr) other.why = "no: " + none_near(elsewhere, bucket, "another device of its class");
  else near(other, elsewhere, " of other devices of this class");

  fallback.why = fallback.answers ? "yes: no winner does" : "no: a winner does";
  return {exact, nearest, other, fallback};
}

}  // namespace pagetune
