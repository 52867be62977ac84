#include "runtime/dispatch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "codegen/default_config.hpp"
#include "codegen/sha256.hpp"
#include "codegen/support.hpp"

namespace pagetune {

uint16_t DispatchTable::index_of(const KernelConfig& config) {
  const auto found = std::find(configs_.begin(), configs_.end(), config);
  if (found != configs_.end()) return static_cast<uint16_t>(found - configs_.begin());
  configs_.push_back(config);
  return static_cast<uint16_t>(configs_.size() - 1);
}

DispatchTable::DispatchTable(const AttentionSpec& spec, const Target& target, std::vector<LayeredWinner> winners, const Blocklist& blocked) : spec_(spec), target_(target), blocked_(blocked) {
  if (!spec.batch_invariant) admit(std::move(winners));
  smooth();
  DefaultConfigs defaults(spec, target);
  for (int i = 0; i < Bucket::kCells; ++i) {
    const Bucket bucket = Bucket::at(i);
    const int nearest = nearest_to(bucket);
    auto& [differing, alike] = cells_[static_cast<size_t>(i)];
    answered_by_[static_cast<size_t>(i)] = nearest;
    const LayeredWinner* winner = nearest < 0 ? nullptr : &admitted_[static_cast<size_t>(nearest)];
    const KernelConfig answer = winner != nullptr ? winner->winner.config : defaults.at(bucket);
    alike.index = index_of(answer);
    alike.source = winner == nullptr ? Source::analytic_default : winner->other_device ? Source::other_device : winner->winner.bucket == bucket ? Source::tuned : Source::nearest;
    differing = alike;
    const bool last_resort = winner == nullptr && answer.variant() == 1;  // the default's one pass: there is nothing else
    if (target.backend == Backend::cuda && !last_resort) {
      const KernelConfig for_unlike = defaults.at({bucket, false});
      if (needs_alike_lengths(answer, for_unlike)) {
        differing.index = index_of(for_unlike);
        differing.source = Source::analytic_default;
      }
    }
  }
  finish();
}

void DispatchTable::admit(std::vector<LayeredWinner> winners) {
  std::sort(winners.begin(), winners.end(), [](const LayeredWinner& a, const LayeredWinner& b) {
    return std::tie(a.other_device, a.winner.bucket, a.winner.config) < std::tie(b.other_device, b.winner.bucket, b.winner.config);
  });
  for (LayeredWinner& winner : winners) {
    if (const auto reason = refusal(winner.winner))
      rejected_.push_back(fmt::format("the winner of {}{} was left out: {}", winner.winner.bucket.text(), winner.other_device ? " of another device" : "", *reason));
    else
      admitted_.push_back(std::move(winner));
  }
}

void DispatchTable::smooth() {
  smoothed_.assign(admitted_.size(), false);
  std::map<Bucket, const KernelConfig*> measured;  // before any is smoothed, so that order does not matter
  for (const LayeredWinner& winner : admitted_)
    if (!winner.other_device) measured.try_emplace(winner.winner.bucket, &winner.winner.config);
  std::vector<size_t> even;
  for (size_t i = 0; i < admitted_.size(); ++i) {
    const Choice& w = admitted_[i].winner;
    if (admitted_[i].other_device || w.runner_up.values().empty() || !(w.runner_up_us > 0 && w.runner_up_us <= kEven * w.median_us)) continue;
    int with_winner = 0, with_runner_up = 0;
    for (const auto& [batch, len] : {std::pair{-1, 0}, {1, 0}, {0, -1}, {0, 1}}) {
      const auto found = measured.find({w.bucket.batch_log2 + batch, w.bucket.len_log2 + len});
      if (found == measured.end()) continue;
      with_winner += *found->second == w.config ? 1 : 0;
      with_runner_up += *found->second == w.runner_up ? 1 : 0;
    }
    Choice other = w;
    other.config = w.runner_up;
    if (with_runner_up > with_winner && !refusal(other)) even.push_back(i);
  }
  for (const size_t i : even) {
    smoothed_[i] = true;
    admitted_[i].winner.config = admitted_[i].winner.runner_up;
  }
}

int DispatchTable::nearest_to(Bucket bucket) const {
  int nearest = -1;
  auto best = std::tuple(true, INT_MAX, INT_MAX);
  for (size_t i = 0; i < admitted_.size(); ++i) {
    const LayeredWinner& winner = admitted_[i];
    const int batch = std::abs(winner.winner.bucket.batch_log2 - bucket.batch_log2), len = std::abs(winner.winner.bucket.len_log2 - bucket.len_log2);
    if (batch > kReach || len > kReach) continue;
    const auto rank = std::tuple(winner.other_device, batch + len + (winner.confirmed ? 0 : 1), batch + len);
    if (rank >= best) continue;  // ties go to the smaller bucket: the list is sorted
    nearest = static_cast<int>(i);
    best = rank;
  }
  return nearest;
}

void DispatchTable::finish() {
  std::string text = canonical_json(spec_);
  for (const auto& [differing, alike] : cells_) text += fmt::format(" {} {}", alike.index, differing.index);
  for (const auto& config : configs_) text += ' ' + config.canonical_json();
  digest_ = sha256_hex(text);
}

std::optional<std::string> DispatchTable::refusal(const Choice& winner) const {
  if (const Support support = supports(spec_, winner.config, target_); !support) return "not supported here: " + support.reason;
  if (const std::string* reason = blocked_.reason(winner.config)) return "blocked since it was measured: " + *reason;
  return std::nullopt;
}

std::string DispatchTable::explain(const CallShape& call) const {
  const Bucket bucket = call.bucket;
  const auto index = static_cast<size_t>(bucket.index());
  const Selection selection = at(call);
  const std::string config = configs_[selection.index].canonical_json();
  std::string text;
  if (spec_.batch_invariant) text = fmt::format("bucket {}: {}, the one config of a batch-invariant spec, which takes no winners", bucket.text(), config);
  else if (selection.source != cells_[index][1].source)
    text = fmt::format("bucket {}: {}, the analytic default: lengths differ, or their sum is not known, and the winner's schedule was measured on sequences of one length", bucket.text(), config);
  else if (from_snapshot_) text = fmt::format("bucket {}: {}, of the snapshot that the kernel was made from", bucket.text(), config);
  else if (const LayeredWinner* winner = answer(bucket)) text = fmt::format("bucket {}: {}, {}", bucket.text(), config, provenance(*winner, bucket));
  else if (admitted_.empty()) text = fmt::format("bucket {}: {}, the analytic default: there is no winner for this spec on this device", bucket.text(), config);
  else text = fmt::format("bucket {}: {}, the analytic default: none of the {} winners lies within {} octaves", bucket.text(), config, admitted_.size(), kReach);
  for (const auto& reason : rejected_) text += "; " + reason;
  return text;
}

std::string DispatchTable::provenance(const LayeredWinner& winner, Bucket bucket) const {
  std::string text = winner.winner.bucket == bucket ? "measured for this bucket" : fmt::format("from the nearest winner, {} (within {} octaves)", winner.winner.bucket.text(), kReach);
  if (winner.other_device) text += ", on another device of this class: tune here for this device's own";
  if (winner.shipped) text += ", out of the winners that come with pagetune";
  if (!winner.confirmed) text += ", unconfirmed: by another version of the kernels";
  if (smoothed_[static_cast<size_t>(&winner - admitted_.data())])
    text += fmt::format(", its runner-up, {:.1f} % slower, as in more of the buckets around", 100 * (winner.winner.runner_up_us / winner.winner.median_us - 1));
  return text;
}

const LayeredWinner* DispatchTable::answer(Bucket bucket) const {
  if (from_snapshot_) return nullptr;
  const int index = answered_by_[static_cast<size_t>(bucket.index())];
  return index < 0 ? nullptr : &admitted_[static_cast<size_t>(index)];
}

std::vector<CallShape> DispatchTable::reachable(int max_batch, int max_len) {
  const Bucket last = bucket_of(std::max(max_batch, 1), std::max(max_len, 1), 0);
  std::vector<CallShape> all;
  for (int b = 0; b <= last.batch_log2; ++b)
    for (int l = Bucket::kMinLenLog2; l <= last.len_log2; ++l)
      for (const bool alike : {false, true}) all.push_back({{b, l}, alike});
  return all;
}

}  // namespace pagetune
