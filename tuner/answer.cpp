#include "tuner/answer.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "tuner/session.hpp"

namespace pagetune {
namespace {

const Winner* winner_of(const std::vector<Winner>& winners, Bucket bucket) {
  const auto found = std::find_if(winners.begin(), winners.end(), [&](const Winner& winner) { return winner.bucket == bucket; });
  return found == winners.end() ? nullptr : &*found;
}

int octaves(Bucket a, Bucket b) { return std::abs(a.batch_log2 - b.batch_log2) + std::abs(a.len_log2 - b.len_log2); }

bool in_reach(Bucket a, Bucket b) { return std::abs(a.batch_log2 - b.batch_log2) <= DispatchTable::kReach && std::abs(a.len_log2 - b.len_log2) <= DispatchTable::kReach; }

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
std::string others_in_reach(const std::vector<Winner>& winners, Bucket bucket, Bucket chosen) {
  std::string text;
  for (const Winner& winner : winners)
    if (winner.bucket != chosen && winner.bucket != bucket && in_reach(winner.bucket, bucket)) text += (text.empty() ? "" : ", ") + winner.bucket.text();
  return text.empty() ? "" : fmt::format("; also in reach, but not nearer, not supported here or blocked: {}", text);
}

std::string none_near(const std::vector<Winner>& winners, Bucket bucket) {
  if (winners.empty()) return "the store has no winner of this kernel on this device";
  const Winner& closest = *std::min_element(winners.begin(), winners.end(), [&](const Winner& a, const Winner& b) { return octaves(a.bucket, bucket) < octaves(b.bucket, bucket); });
  if (in_reach(closest.bucket, bucket)) return fmt::format("of the {} winners, those within {} octaves of {} are not supported here or blocked", winners.size(), DispatchTable::kReach, bucket.text());
  return fmt::format("none of the {} winners lies within {} octaves of {} on both axes; the closest is {}", winners.size(), DispatchTable::kReach, bucket.text(), closest.bucket.text());
}

}  // namespace

std::vector<SourceAnswer> answers_of(const AttentionSpec& spec, const Target& target, const MeasurePolicy& policy, const StoredRows& rows, const CallShape& call) {
  const DispatchTable table(spec, target, rows.winners, rows.blocked);
  const Source selected = table.at(call).source;
  const Bucket bucket = call.bucket;
  const Winner* own = winner_of(rows.winners, bucket);
  const std::optional<Bucket> near = table.nearest_winner(bucket);
  const bool own_admitted = near == bucket;

  SourceAnswer exact{Source::tuned, selected == Source::tuned, {}, {}, {}}, nearest{Source::nearest, selected == Source::nearest, {}, {}, {}},
      fallback{Source::analytic_default, selected == Source::analytic_default, {}, {}, {}};
  const auto row = [&](SourceAnswer& at, const Winner& winner) {
    at.winner = winner;
    at.remarks = remarks_on(winner, spec, target, policy);
  };
  const auto one_length = [](const Winner& winner) {
    return fmt::format("no: {} won with as many CTAs for each sequence, measured on sequences of one length; here lengths differ, or their sum is not known (--total-len)", winner.bucket.text());
  };
  const char* const one_config = "no: a batch-invariant kernel has one config for all buckets";

  if (own != nullptr) row(exact, *own);
  if (spec.batch_invariant) exact.why = one_config;
  else if (own == nullptr) exact.why = fmt::format("no: the store has no winner of bucket {} on this device", bucket.text());
  else if (!own_admitted) exact.why = "no: " + *table.refusal(*own);
  else exact.why = exact.answers ? "yes: measured for this bucket" : one_length(*own);

  if (near && !own_admitted) row(nearest, *winner_of(rows.winners, *near));
  if (spec.batch_invariant) nearest.why = one_config;
  else if (own_admitted) nearest.why = "no: the bucket has a winner of its own";
  else if (!near) nearest.why = "no: " + none_near(rows.winners, bucket);
  else nearest.why = (nearest.answers ? fmt::format("yes: {} is the nearest of {} winners", near->text(), rows.winners.size()) : one_length(*nearest.winner)) + others_in_reach(rows.winners, bucket, *near);

  fallback.why = fallback.answers ? "yes: no winner does" : "no: a winner does";
  return {exact, nearest, fallback};
}

}  // namespace pagetune
