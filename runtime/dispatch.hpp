// The dispatch table of one spec on one device: an immutable map from bucket to config, built once from the winners.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/blocklist.hpp"
#include "cache_db/store.hpp"
#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/launch_plan.hpp"
#include "codegen/target.hpp"
#include "pagetune/pagetune.hpp"

namespace pagetune {

class DispatchTable {
 public:
  // A bucket without a winner takes the nearest one that is at most kReach octaves away on each axis, one that another kernel generator measured counting as an octave farther; else one of another device of
  // the class by the same rule; else the analytic default. Winners that are not supported or that are blocked since do not count. A winner whose runner-up is within kEven of it gives way to the runner-up where
  // more of the four buckets around have that for their winner: fewer binaries, fewer graph variants. With spec.batch_invariant every bucket has the one default config, so that a sequence's split never depends
  // on its neighbours. A GPU's winner was measured on sequences of one length; where lengths differ, or may, and it gives every sequence as many CTAs, or shares tiles among more CTAs or fewer than the bucket's
  // analytic default, that default answers.
  static constexpr int kReach = 2;
  static constexpr double kEven = 1.01;
  DispatchTable(const AttentionSpec&, const Target&, std::vector<LayeredWinner>, const Blocklist& = {});
  // What snapshot() of a table gave, checked as data from outside: Error invalid_argument for text that is none, mismatch for another spec's, unsupported for a config that this target has not.
  static DispatchTable from_snapshot(const AttentionSpec&, const Target&, const std::string& text);

  Selection select(int batch, int max_len, int64_t total_len) const noexcept {
    return at(call_shape(batch, max_len, total_len));
  }
  Selection at(const CallShape& call) const noexcept { return cells_[static_cast<size_t>(call.bucket.index())][call.alike ? 1 : 0]; }
  const std::vector<KernelConfig>& configs() const { return configs_; }
  // May winners answer, and does none for any bucket?
  bool lacks_winners() const { return !spec_.batch_invariant && !from_snapshot_ && admitted_.empty(); }

  // Why a bucket has its config: which winner answered, or why none did. One sentence.
  std::string explain(const CallShape&) const;
  // Why a winner may not answer for any bucket, or nothing.
  std::optional<std::string> refusal(const Choice&) const;
  // The winner that answers for a bucket, unless it needs_alike_lengths(); null if none is in reach. Its config is the one that answers, if the bucket was smoothed its runner-up.
  const LayeredWinner* answer(Bucket) const;
  // Would a winner of this bucket change what answers there?
  bool wants_winner(Bucket bucket) const noexcept { return !spec_.batch_invariant && cells_[static_cast<size_t>(bucket.index())][1].source != Source::tuned; }
  // Does a winner with this config answer only for sequences of one length? `for_unlike`: the default where lengths differ.
  static bool needs_alike_lengths(const KernelConfig& config, const KernelConfig& for_unlike) {
    return !config.even_share() || (for_unlike.even_share() && spread_of(config) != spread_of(for_unlike));
  }

  // Everything that a launch with batch <= max_batch and len <= max_len can be.
  static std::vector<CallShape> reachable(int max_batch, int max_len);

  // sha256 over the spec, the configs and the cells.
  const std::string& digest() const { return digest_; }
  // Everything that select() answers from, as text: the same bytes from equal tables.
  std::string snapshot() const;

 private:
  DispatchTable(const AttentionSpec& spec, const Target& target) : spec_(spec), target_(target) {}
  uint16_t index_of(const KernelConfig&);
  void admit(std::vector<LayeredWinner>);
  void smooth();
  int nearest_to(Bucket) const;
  std::string provenance(const LayeredWinner&, Bucket) const;
  void finish();

  AttentionSpec spec_;
  Target target_;
  Blocklist blocked_;
  std::array<std::array<Selection, 2>, Bucket::kCells> cells_{};  // lengths that may differ, lengths that are alike
  std::array<int, Bucket::kCells> answered_by_{};  // index into admitted_, -1: the default
  std::vector<LayeredWinner> admitted_;
  std::vector<bool> smoothed_;         // of admitted_: its config is the runner-up's
  std::vector<std::string> rejected_;  // winners that were not admitted, and why
  bool from_snapshot_ = false;
  std::vector<KernelConfig> configs_;
  std::string digest_;
};

}  // namespace pagetune
