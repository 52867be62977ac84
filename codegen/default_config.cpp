#include "codegen/default_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int kHeadsPerCta = 16;           // rows of one MMA tile: BLOCK_SHAPE_Q of decode
constexpr int kReservedShared = 1024;      // bytes that the driver keeps of each CTA's shared memory
constexpr int kMaxCtasPerProcessor = 2;    // two CTAs hide each other's prologue and merge; a third adds only partials
constexpr int kBatchInvariantSplits = 8;   // fills a GPU at batch 2 with 8 KV heads, and costs a large batch little

const std::vector<int>& allowed(const Family& family, const std::string& name) { return family.tuning_params.at(name); }

KernelConfig with_splits(KernelConfig config, int splits) {
  config.set("VARIANT", splits == 1 ? 1 : 2);
  config.set("NUM_SPLITS", splits);
  return config;
}

KernelConfig cuda_shape(const AttentionSpec& spec, const Target& target) {
  const ConfigSpace& space = ConfigSpace::builtin();
  // Three stages keep two tiles in flight under the one in use; above 128 dims a tile is twice as large and two stages hold as much.
  const int most_stages = spec.head_dim_k <= 128 ? 3 : 2;
  std::string reason;
  for (int warps : {4, 2, 1}) {
    for (int stages = most_stages; stages >= 2; --stages) {
      KernelConfig config({{"VARIANT", 1}, {"NUM_SPLITS", 1}, {"NUM_WARPS", warps}, {"TILE_KV", 16}, {"NUM_STAGES", stages}});
      reason = space.refusal(spec, config, target);
      if (reason.empty()) return config;
    }
  }
  throw Error(ErrorCode::unsupported, reason);
}

KernelConfig cpu_shape(const AttentionSpec& spec, const Target& target) {
  const Family& family = ConfigSpace::builtin().family(spec.kind, target.backend);
  int vector_bits = 0;
  for (int bits : allowed(family, "VECTOR_BITS")) {
    if (bits <= target.vector_bits) vector_bits = std::max(vector_bits, bits);
  }
  // K and V of a block take half of a 32 KiB L1, which leaves room for q, the sums and the prefetched next block.
  constexpr int kBlockBytes = 16 * 1024;
  const std::vector<int>& tiles = allowed(family, "TILE_KV");
  int tile = *std::min_element(tiles.begin(), tiles.end());
  for (int tokens : tiles) {
    if (tokens * (spec.head_dim_k + spec.head_dim_v) * bits_of(spec.kv_dtype) / 8 <= kBlockBytes) tile = std::max(tile, tokens);
  }
  return KernelConfig({{"VARIANT", 1}, {"NUM_SPLITS", 1}, {"VECTOR_BITS", vector_bits}, {"TILE_KV", tile}});
}

// Independent pieces of work without a split, and how many the device runs at a time.
struct Load {
  int64_t pieces = 0;
  int64_t slots = 0;
};

Load cuda_load(const AttentionSpec& spec, const Target& target, const KernelConfig& shape, Bucket bucket) {
  const int64_t head_tiles = (spec.group_size() + kHeadsPerCta - 1) / kHeadsPerCta;
  const int64_t shared = ConfigSpace::builtin().derived("SHARED_BYTES", spec, shape, target) + kReservedShared;
  const int64_t ctas_per_processor = std::clamp<int64_t>(target.shared_per_processor / shared, 1, kMaxCtasPerProcessor);
  return {int64_t{bucket.batch()} * spec.kv_heads * head_tiles, target.processors * ctas_per_processor};
}

Load cpu_load(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  // Two pieces for each thread, so that one slow thread does not hold up the whole call.
  return {int64_t{bucket.batch()} * spec.kv_heads, int64_t{2} * target.processors};
}

}  // namespace

KernelConfig default_shape(const AttentionSpec& spec, const Target& target) {
  require_support(spec, target);
  return target.backend == Backend::cuda ? cuda_shape(spec, target) : cpu_shape(spec, target);
}

KernelConfig default_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  const KernelConfig shape = default_shape(spec, target);
  if (spec.batch_invariant) return with_splits(shape, kBatchInvariantSplits);

  const bool cuda = target.backend == Backend::cuda;
  const Load load = cuda ? cuda_load(spec, target, shape, bucket) : cpu_load(spec, target, bucket);
  // On a GPU a split into two pays only if both halves run at once: more than half full is full. CPU threads take pieces as they come.
  const bool full = cuda ? load.pieces * 2 > load.slots : load.pieces >= load.slots;
  if (full) return shape;

  const ConfigSpace& space = ConfigSpace::builtin();
  std::vector<int> splits = allowed(space.family(spec.kind, target.backend), "NUM_SPLITS");
  std::sort(splits.begin(), splits.end());
  KernelConfig best = shape;
  for (int count : splits) {
    if (count < 2) continue;
    KernelConfig config = with_splits(shape, count);
    if (!space.refusal(spec, config, target, bucket).empty()) continue;
    best = config;
    if (load.pieces * count >= load.slots) break;
  }
  return best;
}

}  // namespace pagetune
