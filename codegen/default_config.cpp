#include "codegen/default_config.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int kRowsOfWarps = 16;           // query rows of a KV head that one CTA of warps serves
constexpr Bucket kLargeBatch{12, 13};
constexpr int kBatchInvariantSplits = 8;   // fills a GPU at batch 2 with 8 KV heads, and costs a large batch little

// Contexts whose parts are small meet in clusters. H200, 2026-11-30, 128 dims, pages of 16, dependent launches, us: 32/8 heads, 1 x 1024: 3.5 in clusters of 8,
// 5.0 as an even share; 8 x 1024: 10.3 in clusters of 2, 11.1; 1 x 8192: 12.0 in clusters of 8, 12.2. Few heads gain most, for the even share leaves its last CTA
// up to 132 partial results of one head, a cluster leaves one: 8/1 heads, 1 x 32768: 11.5 in four clusters of 16, 24.0; 28/4, 1 x 8192: 8.6 in a cluster of
// 16, 12.2; but 1 x 32768, 1 MiB for each of 64 CTAs: 25.3 and 23.8. Eight clusters of 16 with one CTA a multiprocessor do not all run at once (32/8 heads,
// 1 x 8192: 16.0).
constexpr int kClusterSplits[] = {64, 48, 32, 16, 8, 4, 2};
constexpr int64_t kBytesOfAClusterCta = 512 * 1024;  // at most; 8/1 heads, 1 x 131072, 1 MiB each: 29.7 in four clusters of 16, 23.4 as an even share
// Clusters of 4 and more take half of the device, lest some wait for a second wave: 28/4 heads, 8 x 1024: 10.0 in clusters of 4 on 128 multiprocessors, 8.3 with
// two parts on 64.
constexpr int kSmallCluster = 2;
constexpr int kLeastPart = 64;     // tokens: the smallest tile of kShapes' rings
constexpr int kShortestCut = 512;  // tokens; at 200 an even share, which leaves two tiles whole, takes 3.1, a cluster of 2 3.5

const std::vector<int>& allowed(const Family& family, const std::string& name) { return family.tuning_params.at(name); }

KernelConfig with_splits(KernelConfig config, int splits) {
  config.set("VARIANT", splits == 1 ? 1 : 2);
  config.set("NUM_SPLITS", splits);
  return config;
}

struct Shape {
  int loader, warps, tile, stages;
};

constexpr int kBoxes = 2;  // a loader

// A ring of boxes, the largest first. A multiprocessor turns 64 KiB over in 2 us, so at the full rate it wants 128 KiB in flight: 8 x 8192 with 32/8 heads as an
// even share takes 63.0 us with 128 or 192 KiB (the read floor is 59.0) and 67 with 64 KiB; 64/8 heads of 64 dims: 34.2 and 51.7. Then what pages without
// boxes, larger head dims or less shared memory leave.
constexpr Shape kShapes[] = {{2, 4, 32, 24}, {2, 4, 32, 16}, {2, 4, 32, 12}, {2, 4, 32, 8}, {2, 4, 32, 4}, {2, 4, 16, 12}, {2, 4, 16, 8},
                             {2, 4, 16, 4}, {0, 4, 16, 3},  {0, 4, 16, 2},  {0, 2, 16, 2},  {0, 1, 16, 2}};
// A ring need not hold more than its CTA walks (1 x 1024 in clusters of 8: 3.5 us with 64 KiB, 4.0 with 128; but 8/1 heads, 8 x 200 in one pass: 4.4 and 3.1), and where CTAs come in many waves two of them fit a
// multiprocessor (64 x 1024 in one pass: 62.7 us with 64 KiB, 65.3 with 128).
constexpr int64_t kSmallRing = 64 * 1024;
// But an even share's CTA has its multiprocessor to itself: with 64 KiB the next launch's CTAs stand beside it and load (1 x 1024: 6.6 us with 64 KiB, 5.0 with 128;
// 64/8 heads of 64 dims, 8 x 8192: 51.7 and 35.0). Windows beside full heads end many pairs: 20/4 heads, two of the four windowed at 4096, 8 x 32768: 71.0 with 192 KiB, 70.1 with 128.
constexpr int64_t kEvenShareRing = 128 * 1024;
// Where CTAs have many pairs to do, one's end is hidden best by another CTA of the same multiprocessor. H200, 2026-12-01, pages of 16, one CTA with up to 192 KiB against two with up to
// 96 KiB each: 28/4 heads, 256 x 1024: 123.5 and 121.1, ragged 60.5 and 47.7; 32/8 heads, 64 x 1024 ragged: 26.7 and 24.0; 64/8 heads of 64 dims, 64 x 1024: 31.8 and 30.9, ragged 17.3
// and 14.7. But few pairs are then cut in more parts (8/1 heads, 64 x 1024 ragged: 6.8 and 9.1), and long ones of one length are steadier alone (28/4 heads, 8 x 16384: 62.0 and 62.3;
// rows of 128 bytes sooner: 256 x 2048: 240.6 and 246.7). Windows end pairs sooner than the lengths say: gpt-oss's layers of 128 tokens, pages of 64, 8 x 8192: 3.1 and 2.7,
// 64 x 8192: 9.3 and 7.4, 256 x 2048: 27.9 and 23.8, 1 x 32768: 2.4 and 2.5. Full heads beside them do not: half of 20/4 heads windowed at 4096, 8 x 32768: 71.8 and 72.1, at 512 65.2 and 65.4.
constexpr int64_t kHalfRing = 96 * 1024;
constexpr int kNarrow = 128, kMiddling = 256;  // elements of a token's K and V, at most
int width_of(const AttentionSpec& spec) { return spec.head_dim_k + spec.head_dim_v; }
int64_t short_pair(const AttentionSpec& spec) { return width_of(spec) > kNarrow ? 2 * 1024 * 1024 : 256 * 1024; }  // bytes
// Warpgroups on 64 rows read the keys of many rows once; warps on 16 begin and end faster. H200, 2026-12-01, 128 dims, pages of 16, even share of one CTA a multiprocessor, four warps
// against two warpgroups, us: 64/1 heads, 8 x 8192 (134 MB, counted once for each 16 rows): 24.4 and 33.2, 64 x 1024 (134 MB): 22.2 and 21.0, 8 x 32768 (537 MB): 75.0 and 54.6,
// 64 x 4096: 76.8 and 42.6; 128/1 heads, 8 x 8192 (268 MB): 41.1 and 31.8, 64 x 4096: 138.9 and 59.4; 192/4 heads, 64 x 4096: 207.8 and 127.0 (read floor 118.0). One sequence leaves
// its last CTAs many parts of many rows: 192/4 heads, 1 x 32768 (201 MB): 33.2 and 44.1.
constexpr Shape kWideShapes[] = {{2, 8, 32, 8}, {2, 8, 32, 4}, {2, 8, 16, 8}, {2, 8, 16, 4}};
constexpr int64_t kWideBytes = 1536 * 1024;  // of a multiprocessor, at least
constexpr int kProcessorsOfAWidePair = 20;   // at most
// Pairs for each multiprocessor. Where lengths differ, a bucket counts sequences as long as the longest, of which there are fewer, but as they are where lengths are unknown: then
// the longest is what a graph was prepared for (16/16 heads, a graph for 8 x 131072 at a length of 200: 7.1 with two CTAs, 6.1 with one). Long ones gain nothing: 28/4 heads, 64 x 8192 ragged: 87.1 and 87.2.
// Many unlike sequences gain sooner than a few with as many pairs, for the longest of a few is much of the work: 28/4 heads, 64 x 1024 ragged: 18.0 and 16.6; 8/4 heads of 256 dims: 27.5 and
// 24.5; 8/1 heads, 256 x 1024 ragged: 19.5 and 16.9, 256 x 2048: 30.9 and 26.8; but 16/16 heads, 8 x 1024 ragged: 9.6 and 10.0.
constexpr double kManyPairs = 1.5, kManyUnlikePairs = 0.75, kPairsOfManyUnlike = 0.45;
constexpr int kManyUnlike = 16;  // sequences as long as the longest
constexpr int64_t kLongPair = 4 * 1024 * 1024;  // bytes

// Sequences of one length, by what a multiprocessor reads of them. H200, 2026-12-01, pages of 16, one CTA with 192 KiB, one with 128 KiB, two: 32/8 heads, 4 x 8192 (1 MiB): 32.6, 33.1, 32.6;
// 8 x 8192 (2 MiB): 62.5, 62.2, 62.1; 16 x 8192 (4 MiB): 121.9, 120.8, 122.9; 1 x 131072: 122.3, 121.2, 121.4; 32 x 8192 (8 MiB): 244.5, 242.3, 241.1; 8 x 32768: 240.7, 239.3, 235.2; 64 x 8192:
// 475, 474, 467; 16/16 heads, 1 x 131072 (8 MiB): 240.0, 238.6, 238.0; 64 x 8192: 947, 945, 943; 28/4 heads, 64 x 8192: 240.4, 239.3, 239.6; 1 x 131072 (2 MiB): 64.8, 63.8, 68.6, for its last
// CTAs have many parts. Rows of 128 bytes, 64/8 heads, 64 x 4096 (4 MiB): 120.8, 120.2, 123.0; 256 x 1024: 124.2, 122.5, 124.5; 64 x 8192: 242.5, 240.3, 241.0. Rows of 512 bytes want all of the ring:
// 8/4 heads of 256 dims, 64 x 8192: 466.1, 467.2, 469.2; 256 x 1024 (8 MiB): 236.9, 237.8, 238.1.
constexpr int64_t kMuch = 7 * 256 * 1024, kVeryMuch = 15 * 512 * 1024;  // bytes
constexpr int64_t kFewestPairs = 8;  // for two CTAs a multiprocessor, where pairs are long

void set_shape(KernelConfig& config, const Shape& shape) {
  config.set("LOADER", shape.loader);
  config.set("NUM_WARPS", shape.warps);
  config.set("TILE_KV", shape.tile);
  config.set("NUM_STAGES", shape.stages);
}

int64_t head_bytes(const AttentionSpec& spec, int64_t tokens) { return kv_bytes(spec, tokens) / spec.kv_heads; }

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

AttentionSpec supported(const AttentionSpec& spec, const Target& target) {
  require_support(spec, target);
  return spec;
}

}  // namespace

KernelConfig DefaultConfigs::Schedule::config() const {
  return KernelConfig({{"VARIANT", variant}, {"NUM_SPLITS", num_splits}, {"CTA_QUARTERS", cta_quarters}, {"MERGE", merge}});
}

DefaultConfigs::DefaultConfigs(const AttentionSpec& spec, const Target& target)
    : spec_(supported(spec, target)), target_(target), admission_(ConfigSpace::builtin(), spec, target) {
  if (target.backend == Backend::cuda) return;
  for (const int count : sorted_splits(spec, target)) {
    if (count < 2) continue;
    KernelConfig config = with_splits(cpu_shape(spec, target), count);
    if (auto values = admission_.without_bucket(config)) splits_.push_back({std::move(config), std::move(*values)});
  }
}

DefaultConfigs::Shapes& DefaultConfigs::shapes(const Schedule& schedule) {
  const auto [entry, is_new] = shapes_.try_emplace(schedule);
  Shapes& shapes = entry->second;
  if (!is_new) return shapes;
  KernelConfig config = schedule.config();
  for (const Shape& shape : kShapes) {
    const int64_t ring_bytes = head_bytes(spec_, int64_t{shape.stages} * shape.tile);
    const bool ring = shape.loader == 2;
    if (ring && ring_bytes > target_.shared_per_block) continue;
    set_shape(config, shape);
    if (auto values = admission_.without_bucket(config)) (ring ? shapes.rings : shapes.others).push_back({config, std::move(*values), ring_bytes});
  }
  return shapes;
}

// The first shape that the space admits with a schedule in a bucket, its ring within `bytes`, small, or the smallest; null if there is no such.
const KernelConfig* DefaultConfigs::cuda_shape(std::optional<Bucket> bucket, int64_t bytes, const Schedule& schedule) {
  const auto admitted = [&](Candidate& candidate) { return !bucket || admission_.in_bucket(candidate.values, *bucket); };
  const int64_t limit = std::max(bytes, kSmallRing);
  auto& [rings, others] = shapes(schedule);
  for (Candidate& candidate : rings)
    if (candidate.ring_bytes <= limit && admitted(candidate)) return &candidate.config;
  for (auto candidate = rings.rbegin(); candidate != rings.rend(); ++candidate)
    if (candidate->ring_bytes > limit && admitted(*candidate)) return &candidate->config;
  for (Candidate& candidate : others)
    if (admitted(candidate)) return &candidate.config;
  return nullptr;
}

// The same with a schedule that every spec has: in the bucket, or, where it has no candidates, whatever runs at all.
const KernelConfig& DefaultConfigs::required_shape(std::optional<Bucket> bucket, int64_t bytes, const Schedule& schedule) {
  for (const std::optional<Bucket>& where : {bucket, std::optional<Bucket>()}) {
    if (const KernelConfig* config = cuda_shape(where, bytes, schedule)) return *config;
  }
  KernelConfig smallest = schedule.config();
  set_shape(smallest, std::end(kShapes)[-1]);
  throw Error(ErrorCode::unsupported, ConfigSpace::builtin().refusal(spec_, smallest, target_));
}

const KernelConfig* DefaultConfigs::wide_config(const CallShape& call) {
  if (spec_.rows() <= kRowsOfWarps) return nullptr;
  const int64_t pairs = int64_t{call.bucket.batch()} * spec_.kv_heads, readings = (spec_.rows() + kRowsOfWarps - 1) / kRowsOfWarps;
  if (pairs * kProcessorsOfAWidePair < target_.processors || head_bytes(spec_, pairs * call.bucket.len()) * readings < kWideBytes * target_.processors) return nullptr;
  if (!wide_) {
    wide_.emplace();
    for (const Shape& shape : kWideShapes) {
      KernelConfig config = even_share(4).config();
      set_shape(config, shape);
      if (ConfigSpace::builtin().derived("WARPGROUPS", spec_, config, target_) == 0) continue;
      if (auto values = admission_.without_bucket(config)) wide_->push_back({std::move(config), std::move(*values)});
    }
  }
  for (Candidate& candidate : *wide_)
    if (admission_.in_bucket(candidate.values, call.bucket)) return &candidate.config;
  return nullptr;
}

// Does an even share go to two CTAs a multiprocessor, each with half of the ring? `pairs` are of (sequence, KV head, row tile).
bool DefaultConfigs::takes_two_ctas(const CallShape& call, int64_t pairs, int64_t pair_bytes, int64_t walk) const {
  if (spec_.window && !spec_.headwise) return true;  // they end soon
  const double enough = call.alike || pair_bytes > kLongPair ? kManyPairs : call.bucket.batch() < kManyUnlike ? kManyUnlikePairs : kPairsOfManyUnlike;
  const bool many = static_cast<double>(pairs) >= enough * target_.processors;
  if (!call.alike) return many;
  const bool middling = width_of(spec_) > kNarrow && width_of(spec_) <= kMiddling;
  if (middling && walk >= kVeryMuch && !spec_.window) return pairs >= kFewestPairs;
  return many && pair_bytes <= short_pair(spec_) && (middling || walk < 2 * kMuch);
}

// Small parts meet in clusters; else all tiles are shared evenly by one CTA a multiprocessor, which holds for ragged batches and windows too. Where lengths
// differ, the batch has about four times the sequences that its bucket says (at most 8 times), clusters must not come in waves, and the longest sequence must not make the others
// wait: 8 sequences of 64 to 1024 tokens, 32/8 heads: 12.4 in 256 CTAs, 8.7 as an even share; 28/4 heads: 8.0 in 128 CTAs, 9.8; 8/1 heads: 4.1 in 64, 10.9 in one pass.
const KernelConfig& DefaultConfigs::cuda_config(const CallShape& call) {
  constexpr int kUnlikeLog2 = 2;
  const Bucket bucket = call.bucket;
  if (const KernelConfig* config = wide_config(call)) return *config;
  const int64_t row_tiles = (spec_.rows() + kRowsOfWarps - 1) / kRowsOfWarps;
  const int64_t pairs = int64_t{bucket.batch()} * spec_.kv_heads;
  const Bucket sequences = call.alike ? bucket : Bucket{std::min(bucket.batch_log2 + kUnlikeLog2, Bucket::kBatchCells - 1), bucket.len_log2};
  const int64_t ctas = int64_t{sequences.batch()} * spec_.kv_heads * row_tiles;
  const int64_t most_bytes = call.alike ? kBytesOfAClusterCta : kBytesOfAClusterCta / 2;
  for (const int splits : kClusterSplits) {
    if (bucket.len() < std::max(kShortestCut, splits * kLeastPart)) continue;
    const int64_t bytes = head_bytes(spec_, bucket.len()) / splits;
    if (ctas * splits > target_.processors / (call.alike && splits > kSmallCluster ? 2 : 1) || bytes > most_bytes) continue;
    if (const KernelConfig* config = cuda_shape(sequences, bytes, fixed_partition(splits, 2))) return *config;
  }
  const int64_t pair_bytes = head_bytes(spec_, bucket.len());
  const int64_t walk = head_bytes(spec_, pairs * bucket.len()) * row_tiles / target_.processors;  // bytes that a multiprocessor reads
  if (takes_two_ctas(call, pairs * row_tiles, pair_bytes, walk) && target_.shared_per_block > 2 * kHalfRing) {
    const KernelConfig* config = cuda_shape(bucket, kHalfRing, even_share(8));
    if (config != nullptr && config->at("LOADER") == kBoxes) return *config;
  }
  const bool all_of_the_ring = !(call.alike && walk >= kMuch && width_of(spec_) <= kMiddling);
  for (const int quarters : {4, 2, 1}) {  // fewer CTAs where there are fewer tiles
    const int64_t bytes = spec_.window || !all_of_the_ring ? 0 : walk * 4 / quarters;
    if (const KernelConfig* config = cuda_shape(bucket, std::max(bytes, kEvenShareRing), even_share(quarters))) return *config;
  }
  return required_shape(bucket, ctas <= target_.processors ? head_bytes(spec_, bucket.len()) : kSmallRing, one_pass());
}

// Two pieces for each thread, so that one slow thread does not hold up the whole call.
KernelConfig DefaultConfigs::cpu_config(Bucket bucket) {
  const int64_t pieces = int64_t{bucket.batch()} * spec_.kv_heads, slots = int64_t{2} * target_.processors;
  KernelConfig best = cpu_shape(spec_, target_);
  for (Candidate& candidate : splits_) {
    if (best.num_splits() * pieces >= slots) break;
    if (admission_.in_bucket(candidate.values, bucket)) best = candidate.config;
  }
  return best;
}

KernelConfig DefaultConfigs::shape() { return target_.backend == Backend::cuda ? required_shape(kLargeBatch, kSmallRing, one_pass()) : cpu_shape(spec_, target_); }

KernelConfig DefaultConfigs::at(const CallShape& call) {
  const bool cuda = target_.backend == Backend::cuda;
  if (spec_.batch_invariant)
    return cuda ? required_shape(std::nullopt, kSmallRing, fixed_partition(kBatchInvariantSplits, 1)) : with_splits(cpu_shape(spec_, target_), kBatchInvariantSplits);
  return cuda ? cuda_config(call) : cpu_config(call.bucket);
}

KernelConfig default_shape(const AttentionSpec& spec, const Target& target) { return DefaultConfigs(spec, target).shape(); }

KernelConfig default_config(const AttentionSpec& spec, const Target& target, const CallShape& call) { return DefaultConfigs(spec, target).at(call); }

}  // namespace pagetune
