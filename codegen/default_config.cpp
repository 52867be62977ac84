#include "codegen/default_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int kMaxRowsPerCta = 16;          // query rows of a KV head that one CTA serves
constexpr Bucket kLargeBatch{12, 13};
constexpr int kBatchInvariantSplits = 8;   // fills a GPU at batch 2 with 8 KV heads, and costs a large batch little

// H200, 2026-11-30, 128 dims, pages of 16, dependent launches. 32/8 heads: a sequence of 1024 tokens takes 4.4 us in clusters of 8 and 4.5 as an even share;
// of 8192 tokens 14.4 in clusters of 16 and as an even share. With one or four KV heads the even share leaves its last CTA 33 to 132 partial results of one
// head to merge (8/1 heads, 1 x 8192: 16.9 us; 28/4: 13.5), a cluster 16 parts and as many as there are clusters: 6.6 us in four clusters of 16 and 8.3 in
// two, 28/4: 10.8 in two. More than 64 parts lose again (8/1 heads, 1 x 32768: 14.3 us with 64, 15.5 with 128).
constexpr int kShortContext = 2048;
constexpr int kShortClusters[] = {8, 16, 4, 2};      // 16 takes longer to meet: it is for what 8 leave too long
constexpr int kLongClusters[] = {64, 48, 32, 16};    // splits: clusters of 16, as many as fit
constexpr int64_t kBytesOfAClusterCta = 256 * 1024;  // of a longer context: that of 8192 tokens in 16 parts

const std::vector<int>& allowed(const Family& family, const std::string& name) { return family.tuning_params.at(name); }

KernelConfig with_splits(KernelConfig config, int splits) {
  config.set("VARIANT", splits == 1 ? 1 : 2);
  config.set("NUM_SPLITS", splits);
  return config;
}

struct Shape {
  int loader, warps, tile, stages;
};

// A producer warp with boxes of 32 tokens keeps 64 KiB in flight with 4 warps, and two such CTAs fit a multiprocessor: 64 x 8192 of pages of 64 in 484 us
// (16 tokens and cp.async: 508; the read floor is 472). Shapes that fit less memory or larger head dims follow.
constexpr Shape kStreaming[] = {{2, 4, 32, 4}, {2, 4, 32, 8}, {2, 4, 32, 16}, {2, 4, 16, 8}, {2, 4, 16, 4}, {2, 4, 16, 12}, {0, 4, 16, 3}, {0, 4, 16, 2}, {0, 2, 16, 2}, {0, 1, 16, 2}};
// 8 x 1024 in clusters of 2 takes 12.0 us with 8 warps of their own and 12.2 with a producer and 4, of which two or three fit a multiprocessor: a ragged
// batch has more sequences than its bucket says, and with one CTA to a multiprocessor takes two rounds (8 x 1024 ragged, clusters of 4 with 8 warps: 13.6).
constexpr Shape kShort[] = {{2, 4, 32, 4}, {2, 4, 32, 8}, {2, 4, 16, 4}, {0, 8, 16, 3}, {0, 8, 16, 2}, {0, 4, 16, 3}, {0, 4, 16, 2}, {0, 2, 16, 2}, {0, 1, 16, 2}};
// One sequence of 1024 tokens in a cluster of 8: 4.6 us with 4 warps, 6.1 with 8, which then have one unit each.
constexpr Shape kShortest[] = {{0, 4, 16, 3}, {0, 4, 16, 2}, {0, 2, 16, 2}, {0, 1, 16, 2}};

// The first shape that the space admits with a schedule in a bucket; none if there is no such.
std::optional<KernelConfig> cuda_shape(const AttentionSpec& spec, const Target& target, std::optional<Bucket> bucket, std::span<const Shape> shapes, KernelConfig schedule) {
  for (const Shape& shape : shapes) {
    schedule.set("LOADER", shape.loader);
    schedule.set("NUM_WARPS", shape.warps);
    schedule.set("TILE_KV", shape.tile);
    schedule.set("NUM_STAGES", shape.stages);
    if (ConfigSpace::builtin().refusal(spec, schedule, target, bucket).empty()) return schedule;
  }
  return std::nullopt;
}

// The same with a schedule that every spec has.
KernelConfig required_shape(const AttentionSpec& spec, const Target& target, std::optional<Bucket> bucket, const KernelConfig& schedule) {
  if (const auto config = cuda_shape(spec, target, bucket, kStreaming, schedule)) return *config;
  if (const auto config = cuda_shape(spec, target, std::nullopt, kStreaming, schedule)) return *config;  // a bucket without candidates: what runs at all
  KernelConfig smallest = schedule;
  const Shape& last = std::end(kStreaming)[-1];
  for (const auto& [name, value] : {std::pair("LOADER", last.loader), {"NUM_WARPS", last.warps}, {"TILE_KV", last.tile}, {"NUM_STAGES", last.stages}}) smallest.set(name, value);
  throw Error(ErrorCode::unsupported, ConfigSpace::builtin().refusal(spec, smallest, target));
}

KernelConfig one_pass() { return KernelConfig({{"VARIANT", 1}, {"NUM_SPLITS", 1}, {"CTA_QUARTERS", 0}, {"MERGE", 0}}); }
KernelConfig fixed_partition(int splits, int merge) { return KernelConfig({{"VARIANT", 2}, {"NUM_SPLITS", splits}, {"CTA_QUARTERS", 0}, {"MERGE", merge}}); }
KernelConfig even_share(int quarters) { return KernelConfig({{"VARIANT", 2}, {"NUM_SPLITS", 1}, {"CTA_QUARTERS", quarters}, {"MERGE", 1}}); }

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

// Short contexts and few heads meet in clusters; else all tiles are shared evenly, which holds for ragged batches and windows too.
KernelConfig cuda_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  const int64_t row_tiles = (spec.rows() + kMaxRowsPerCta - 1) / kMaxRowsPerCta;
  const int64_t ctas = int64_t{bucket.batch()} * spec.kv_heads * row_tiles;
  if (bucket.len() <= kShortContext) {
    for (const int splits : kShortClusters) {
      if (ctas * splits > target.processors) continue;
      if (const auto config = cuda_shape(spec, target, bucket, splits > 4 ? std::span<const Shape>(kShortest) : std::span<const Shape>(kShort), fixed_partition(splits, 2))) return *config;
    }
  } else {
    for (const Shape& shape : kStreaming) {  // the best shape before the most splits: tiles of 64 tokens in 128 parts took 10.4 us in place of 6.6
      for (const int splits : kLongClusters) {
        if (ctas * splits > target.processors || kv_bytes(spec, bucket.len()) / spec.kv_heads / splits > kBytesOfAClusterCta) continue;
        if (const auto config = cuda_shape(spec, target, bucket, std::span(&shape, 1), fixed_partition(splits, 2))) return *config;
      }
    }
  }
  // Two CTAs a multiprocessor where each then still has a stretch of tiles (64/8 heads of 64 dims, 1 x 32768: 22.8 us with two, 32.2 with one); a single
  // sequence of fewer bytes wants few partial results (32/8 heads, 1 x 8192: 14.4 with one, 14.8 with two).
  constexpr int64_t kBytesOfAStretch = 240 * 1024;
  const int64_t bytes = kv_bytes(spec, int64_t{bucket.batch()} * bucket.len()) * row_tiles;
  for (const int quarters : {8, 4, 2, 1}) {
    if (quarters == 8 && bytes < kBytesOfAStretch * 2 * target.processors) continue;
    if (const auto config = cuda_shape(spec, target, bucket, kStreaming, even_share(quarters))) return *config;
  }
  return required_shape(spec, target, bucket, one_pass());
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
  return target.backend == Backend::cuda ? required_shape(spec, target, kLargeBatch, one_pass()) : cpu_shape(spec, target);
}

KernelConfig default_config(const AttentionSpec& spec, const Target& target, Bucket bucket) {
  require_support(spec, target);
  const bool cuda = target.backend == Backend::cuda;
  if (spec.batch_invariant)
    return cuda ? required_shape(spec, target, bucket, fixed_partition(kBatchInvariantSplits, 1)) : with_splits(cpu_shape(spec, target), kBatchInvariantSplits);
  return cuda ? cuda_config(spec, target, bucket) : cpu_config(spec, target, bucket);
}

}  // namespace pagetune
