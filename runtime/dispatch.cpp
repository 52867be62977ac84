#include "runtime/dispatch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

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

DispatchTable::DispatchTable(const AttentionSpec& spec, const Target& target, const std::vector<Winner>& winners, const Blocklist& blocked) : spec_(spec), target_(target), blocked_(blocked) {
  std::vector<KernelConfig> admitted;
  if (!spec.batch_invariant) {
    auto sorted = winners;
    std::sort(sorted.begin(), sorted.end(), [](const Winner& a, const Winner& b) { return std::tie(a.bucket, a.config) < std::tie(b.bucket, b.config); });
    for (const auto& winner : sorted) {
      if (const auto reason = refusal(winner)) {
        rejected_.push_back(fmt::format("the winner of {} was left out: {}", winner.bucket.text(), *reason));
        continue;
      }
      buckets_.push_back(winner.bucket);
      admitted.push_back(winner.config);
    }
  }
  DefaultConfigs defaults(spec, target);
  std::string text = canonical_json(spec);
  for (int i = 0; i < Bucket::kCells; ++i) {
    const Bucket bucket = Bucket::at(i);
    int nearest = -1, distance = 2 * kReach + 1;
    for (size_t w = 0; w < buckets_.size(); ++w) {
      const int batch = std::abs(buckets_[w].batch_log2 - bucket.batch_log2), len = std::abs(buckets_[w].len_log2 - bucket.len_log2);
      if (batch > kReach || len > kReach || batch + len >= distance) continue;  // ties go to the smaller bucket: the list is sorted
      nearest = static_cast<int>(w);
      distance = batch + len;
    }
    auto& [differing, alike] = cells_[static_cast<size_t>(i)];
    answered_by_[static_cast<size_t>(i)] = nearest;
    const KernelConfig answer = nearest >= 0 ? admitted[static_cast<size_t>(nearest)] : defaults.at(bucket);
    alike.index = index_of(answer);
    alike.source = nearest < 0 ? Source::analytic_default : distance == 0 ? Source::tuned : Source::nearest;
    differing = alike;
    const bool last_resort = nearest < 0 && answer.variant() == 1;  // the default's one pass: there is nothing else
    if (target.backend == Backend::cuda && !last_resort) {
      const KernelConfig for_unlike = defaults.at({bucket, false});
      if (needs_alike_lengths(answer, for_unlike)) {
        differing.index = index_of(for_unlike);
        differing.source = Source::analytic_default;
      }
    }
    text += fmt::format(" {} {}", alike.index, differing.index);
  }
  for (const auto& config : configs_) text += ' ' + config.canonical_json();
  digest_ = sha256_hex(text);
}

std::optional<std::string> DispatchTable::refusal(const Winner& winner) const {
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
  else if (selection.source == Source::tuned) text = fmt::format("bucket {}: {}, measured for this bucket", bucket.text(), config);
  else if (selection.source == Source::nearest)
    text = fmt::format("bucket {}: {}, from the nearest winner, {} (within {} octaves)", bucket.text(), config, buckets_[static_cast<size_t>(answered_by_[index])].text(), kReach);
  else if (buckets_.empty()) text = fmt::format("bucket {}: {}, the analytic default: there is no winner for this spec on this device", bucket.text(), config);
  else text = fmt::format("bucket {}: {}, the analytic default: none of the {} winners lies within {} octaves", bucket.text(), config, buckets_.size(), kReach);
  for (const auto& reason : rejected_) text += "; " + reason;
  return text;
}

std::optional<Bucket> DispatchTable::nearest_winner(Bucket bucket) const {
  const int answer = answered_by_[static_cast<size_t>(bucket.index())];
  return answer < 0 ? std::nullopt : std::optional(buckets_[static_cast<size_t>(answer)]);
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
