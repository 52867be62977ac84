// Which tiles a CTA walks. A piece of work is a segment: consecutive tiles of one (pair, row tile). V1 and the fixed partition have one segment
// per CTA. The even share puts all tiles in one line, sequence by sequence, and gives every CTA a contiguous range of it, none more than one
// tile over the average; it is computed from the real lengths and windows, by every warp for itself, without the host. Where tiles are few, so are the
// CTAs that get any: a merge takes longer than a second tile.
//
// Where all heads of a sequence have the same tiles, neighbouring CTAs take the same range of the line for different heads ("lanes"): they
// read the same pages at the same time, which the memory rewards. Where heads differ, the line has the pairs one after the other.
#pragma once
#include "params.h"
#include "cuda/visibility.cuh"

struct Segment {
  int sequence, head, row_tile;
  Span span;
  int first, count;  // tiles
  int line;          // even share: the line's index of the segment's pair's, or sequence's, tile 0
};

// Tiles of one split of the fixed partition: they differ by one at most, and depend on the pair alone.
__device__ __forceinline__ void take_split(Segment& s, int split, int num_splits) {
  const int each = s.span.tiles / num_splits, rest = s.span.tiles - each * num_splits;
  s.first = split * each + min(split, rest);
  s.count = each + (split < rest ? 1 : 0);
}
__device__ __forceinline__ int used_splits(const Span& span, int num_splits) { return min(span.tiles, num_splits); }

constexpr int kLanes = spec::kv_heads * kRowTiles;  // CTAs that walk the same tiles of a sequence

// The even share among `count` ranges: range i begins at i * chunk + min(i, rest). All in 32 bits; the host bounds the line.
struct Shares {
  int chunk, rest;
  int lanes;  // CTAs to a range: kLanes, or 1
  // Of `pairs` pairs' tiles, one each at least. Returns how many ranges, the first ones, have any.
  __device__ __forceinline__ int divide(int tiles, int pairs, int count) {
    constexpr int kLeastTiles = 2;  // of a range that splits a pair
    const int used = min(count, max(ceil_div(tiles, kLeastTiles), pairs));
    chunk = tiles / used;
    rest = tiles - chunk * used;
    return used;
  }
  __device__ __forceinline__ int begin(int range) const { return range * chunk + min(range, rest); }
  // The range that holds a tile.
  __device__ __forceinline__ int owner(int tile) const {
    const int longer = rest * (chunk + 1);
    return tile < longer ? tile / (chunk + 1) : rest + (tile - longer) / chunk;
  }
};

// Tiles of a sequence in the line.
__device__ __forceinline__ int sequence_tiles(const pt_decode_params& p, int sequence, int lanes) {
  if (kHeadsMayDiffer && !heads_are_alike(p)) {
    int tiles = 0;
    for (int h = 0; h < spec::kv_heads; ++h) tiles += span_of(p, sequence, h).tiles;
    return tiles * kRowTiles;
  }
  return span_of(p, sequence, 0).tiles * (lanes > 1 ? 1 : kLanes);
}

// A CTA's walk through its range of the line. The loader and the consumer have one each.
struct Walk {
  Segment now;
  int left;   // tiles of the range after this segment
  int lanes;

  // Narrows the segment, which begins at the pair's tile `first`, to what is left of the range.
  __device__ __forceinline__ void enter(int first) {
    now.first = first;
    now.count = min(now.span.tiles - first, left);
    left -= now.count;
  }
  // Moves `s` to the pair and row tile that follow in the line; whether their tiles may be others.
  __device__ __forceinline__ bool step(Segment& s) const {
    if (lanes > 1) {
      ++s.sequence;
      return true;
    }
    if (kRowTiles > 1 && ++s.row_tile < kRowTiles) return false;
    s.row_tile = 0;
    if (++s.head < spec::kv_heads) return kHeadsMayDiffer;
    s.head = 0;
    ++s.sequence;
    return true;
  }
  __device__ __forceinline__ void next(const pt_decode_params& p) {
    now.line += now.span.tiles;
    if (step(now)) now.span = span_of(p, now.sequence, now.head);
    enter(0);
  }
};

// Every warp computes the same; returns false where the CTA's range is empty.
__device__ __forceinline__ bool start_walk(const pt_decode_params& p, int lane, int cta, Shares& shares, Walk& walk) {
  shares.lanes = walk.lanes = heads_are_alike(p) && p.num_ctas >= kLanes ? kLanes : 1;
  const int ranges = p.num_ctas / shares.lanes, range = cta / shares.lanes;
  if (range >= ranges) return false;
  int mine = 0, first_chunk = 0;
  for (int base = 0; base < p.batch; base += 32) {
    const int x = base + lane < p.batch ? sequence_tiles(p, base + lane, shares.lanes) : 0;
    if (base == 0) first_chunk = x;
    mine += x;
  }
  const int total = __reduce_add_sync(0xffffffffu, mine);
  if (range >= shares.divide(total, p.batch * (kLanes / shares.lanes), ranges)) return false;
  const int begin = shares.begin(range);
  walk.left = shares.begin(range + 1) - begin;
  int before = 0;
  for (int base = 0;; base += 32) {
    const int x = base == 0 ? first_chunk : base + lane < p.batch ? sequence_tiles(p, base + lane, shares.lanes) : 0;
    int sum = x;  // inclusive
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += other;
    }
    const u32 beyond = __ballot_sync(0xffffffffu, before + sum > begin);
    if (beyond != 0) {
      const int at = __ffs(beyond) - 1;
      walk.now.sequence = base + at;
      walk.now.line = before + __shfl_sync(0xffffffffu, sum - x, at);
      break;
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  walk.now.head = walk.now.row_tile = 0;
  walk.now.span = span_of(p, walk.now.sequence, 0);
  if (shares.lanes > 1) {
    walk.now.head = cta % shares.lanes / kRowTiles;
    walk.now.row_tile = cta % kRowTiles;
  } else if constexpr (!kHeadsMayDiffer) {  // all pairs of the sequence are of one length
    const int pair = (begin - walk.now.line) / walk.now.span.tiles;
    walk.now.head = pair / kRowTiles;
    walk.now.row_tile = pair % kRowTiles;
    walk.now.line += pair * walk.now.span.tiles;
  } else {
    while (walk.now.line + walk.now.span.tiles <= begin) {
      walk.now.line += walk.now.span.tiles;
      if (++walk.now.row_tile == kRowTiles) {
        walk.now.row_tile = 0;
        walk.now.span = span_of(p, walk.now.sequence, ++walk.now.head);
      }
    }
  }
  walk.enter(begin - walk.now.line);
  return true;
}
