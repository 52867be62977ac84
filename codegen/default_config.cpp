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
constexpr int kBatchInvariantSplits = 8;   // fills a GPU at batch 2 with 8 KV heads, and costs a large batch little

// H200, 2026-11-29, 32/8 heads, 128 dims: what a split must take off the longest CTA to pay for the merge launch. Batch 8 x 1024 (two
// splits take off 256 KiB) is faster in one pass, 15.4 against 19.9 us; batch 1 x 1024 (eight take off 448 KiB) is faster split.
constexpr int64_t kBytesThatPayForAMerge = 320 * 1024;

const std::vector<int>& allowed(const Family& family, const std::string& name) { return family.tuning_params.at(name); }

KernelConfig with_splits(KernelConfig config, int splits) {
  config.set("VARIANT", splits == 1 ? 1 : 2);
  config.set("NUM_SPLITS", splits);
  return config;
}

// Where CTAs share a multiprocessor, 4 warps: two CTAs then fit. A CTA that has one to itself (splits are made so, and a small batch in one
// pass is) takes 8, since only its own warps keep bytes in flight. H200, batch 1 x 8192: 16.6 us with 8 warps and 16 splits, 21.4 with 4
// and 48; batch 8 x 1024 in one pass: 15.4 us with 8 warps, 19.6 with 4.
KernelConfig cuda_shape(const AttentionSpec& spec, const Target& target, int variant, bool alone) {
  const ConfigSpace& space = ConfigSpace::builtin();
  // Bytes in flight matter, not stages: a stage more where rows are short or, in one pass, nothing else waits for the memory.
  const int wide = variant == 2 ? 64 : 128;
  const int most_stages = spec.head_dim_k <= wide ? 3 : 2;
  const int splits = variant == 2 ? 2 : 1;
  std::string reason;
  for (int warps : {8, 4, 2, 1}) {
    if (warps == 8 && !alone) continue;
    for (int stages = most_stages; stages >= 2; --stages) {
      KernelConfig config({{"VARIANT", variant}, {"NUM_SPLITS", splits}, {"CTA_QUARTERS", 0}, {"MERGE", variant == 2}, {"LOADER", target.compute_capability >= 90}, {"NUM_WARPS", warps},
                           {"TILE_KV", 16}, {"NUM_STAGES", stages}});
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

std::vector<int> sorted_splits(const AttentionSpec& spec, const Target& target) {
  std::vector<int> splits = allowed(ConfigSpace::builtin().family(spec.kind, target.backend), "NUM_SPLITS");
  std::sort(splits.begin(), splits.end());
  return splits;
}

// The most splits that still run all at once, one CTA a multiprocessor.
KernelConfig cuda_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  const int64_t head_tiles = (spec.group_size() + kHeadsPerCta - 1) / kHeadsPerCta;
  const int64_t ctas = int64_t{bucket.batch()} * spec.kv_heads * head_tiles;
  const int64_t cta_bytes = kv_bytes(spec, bucket.len()) / spec.kv_heads;
  const KernelConfig one_pass = cuda_shape(spec, target, 1, ctas <= target.processors), split = cuda_shape(spec, target, 2, true);
  KernelConfig best = one_pass;
  for (int count : sorted_splits(spec, target)) {
    if (count < 2) continue;
    if (ctas * count > target.processors) break;
    const KernelConfig config = with_splits(split, count);
    if (ConfigSpace::builtin().refusal(spec, config, target, bucket).empty() && cta_bytes - cta_bytes / count >= kBytesThatPayForAMerge) best = config;
  }
  return best;
}

// Two pieces for each thread, so that one slow thread does not hold up the whole call.
KernelConfig cpu_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  const int64_t pieces = int64_t{bucket.batch()} * spec.kv_heads, slots = int64_t{2} * target.processors;
  KernelConfig best = cpu_shape(spec, target);
  for (int count : sorted_splits(spec, target)) {
    if (count < 2) continue;
    if (best.num_splits() * pieces >= slots) break;
    const KernelConfig config = with_splits(best, count);
    if (ConfigSpace::builtin().refusal(spec, config, target, bucket).empty()) best = config;
  }
  return best;
}

}  // namespace

KernelConfig default_shape(const AttentionSpec& spec, const Target& target) {
  require_support(spec, target);
  return target.backend == Backend::cuda ? cuda_shape(spec, target, 1, false) : cpu_shape(spec, target);
}

KernelConfig default_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  require_support(spec, target);
  const bool cuda = target.backend == Backend::cuda;
  if (spec.batch_invariant) return with_splits(cuda ? cuda_shape(spec, target, 2, true) : cpu_shape(spec, target), kBatchInvariantSplits);
  return cuda ? cuda_config(spec, target, bucket) : cpu_config(spec, target, bucket);
}

}  // namespace pagetune
