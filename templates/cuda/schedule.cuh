// Which tiles a CTA walks. A piece of work is a segment: consecutive tiles of one (pair, row tile). V1 and the fixed partition have one segment
// per CTA. The even share puts all tiles in one line, sequence by sequence, and gives every CTA a contiguous range of it, none more than one
// tile over the average; it is computed from the real lengths and windows, by every warp for itself, without the host. Where tiles are few, so are the
// CTAs that get any. Beginning a pair costs as much as some tiles do: where pairs differ, each has as many empty places in the line before its tiles.
// And so does a merge: a range that would end shortly after a pair's beginning, or before its end, ends there.
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
  int line;          // even share: the line's place of the segment's pair's, or sequence's, tile 0
};

// config::merge
constexpr int kMergeKernel = 0, kMergeLast = 1, kMergeCluster = 2;
// Tiles of a part, at least: one for each warp, and where parts are merged through global memory, which takes longer than a second, two.
constexpr int kLeastTiles = (config::merge == kMergeCluster ? 1 : 2) * config::num_warps;
// What a segment's end and the next one's beginning cost, 0.8 us, in tiles at a multiprocessor's share of the H200's 4.5 TB/s; small heads are slower by the byte.
constexpr int kOpening = min_of(ceil_div(28 * 1024, kTileTokens * (spec::head_dim + spec::head_dim_v) * 2), 4);

// Splits of the fixed partition that have tiles, and the tiles of one. They differ by one at most, and depend on the pair alone.
__device__ __forceinline__ int used_splits(const Span& span, int num_splits) {
  return min(ceil_div(span.tiles, kLeastTiles), num_splits);
}
__device__ __forceinline__ void take_split(Segment& s, int split, int num_splits) {
  const int used = used_splits(s.span, num_splits), each = quotient(s.span.tiles, used), rest = s.span.tiles - each * used;
  s.first = min(split * each + min(split, rest), s.span.tiles);
  s.count = split < used ? each + (split < rest ? 1 : 0) : 0;
}

constexpr int kLanes = spec::kv_heads * kRowTiles;  // CTAs that walk the same tiles of a sequence

// The even share among ranges. All in 32 bits; the host bounds the line.
//
// The line is one group of places whose ranges differ by one at most. But a range that ends in one pair and goes on in the next costs a merge. That is spared where nobody gets more
// than a tile for each warp over the average by it, or only as few tiles as are not worth a merge: then ranges take whole pairs, by number; or, where all pairs have as many tiles,
// a group is one pair that some ranges take.
struct Shares {
  int each;          // tiles of every pair, or 0 where that differs
  int whole;         // pairs of a range where all stay whole, else 0, and what follows counts
  int opening;       // empty places before a pair's tiles: kOpening, or 0 where all pairs have as many tiles
  int near;          // tiles of a part, but for one that has no neighbour to take them, are more than this
  int total;         // places
  int group, parts;  // places of a group, and its ranges
  int chunk, rest;   // places of a group's range; as many ranges, the first ones, have one more
  int lanes;         // CTAs to a range: kLanes, or 1
  int range, lane;   // of this CTA

  // How pairs and ranges fit each other, whatever the lengths.
  struct Fit {
    int pairs, ranges;
    int whole, users;  // pairs of a range, if they stay whole, and the ranges that then have any
    int cut;           // ranges of a pair, at most, if it does not
  };

  // Of all pairs' tiles, one each at least and `most` at most. Returns how many ranges, the first ones, have any: more places each than an opening, and so a tile. (Each division
  // holds up the first load by 45 ns.)
  __device__ __forceinline__ int divide(int tiles, int most, const Fit& fit) {
    each = static_cast<i64>(most) * fit.pairs == tiles ? most : 0;
    opening = each > 0 ? 0 : kOpening;
    near = config::num_warps;
    total = group = tiles + opening * fit.pairs;
    const int used = min(fit.ranges, max(min(ceil_div(total, kLeastTiles), each > 0 ? total : quotient(total, kOpening + 1)), fit.pairs));
    const int cut = max(min(fit.cut, quotient(each, kLeastTiles)), 1);
    const i64 longest = cut == 1 ? static_cast<i64>(fit.whole) * most : ceil_div(each, cut);
    const bool spares_merges = longest < 2 * kLeastTiles || (longest - config::num_warps) * used <= tiles;
    whole = spares_merges && cut == 1 ? fit.whole : 0;
    if (whole > 0) return fit.users;
    parts = used;
    if (spares_merges) {
      group = each;
      parts = cut;
      near = 0;
    }
    chunk = quotient(group, parts);
    rest = group - chunk * parts;
    return spares_merges ? fit.pairs * cut : used;
  }
  // The first place of a range that has any, and how many it has, before its ends move to those of pairs.
  __device__ __forceinline__ int begin(int range, int& count) const {
    int before = 0;
    if (group < total) before = quotient(range, parts);
    const int part = range - before * parts, first = before * group + part * chunk + min(part, rest);
    count = min(chunk + (part < rest), total - first);
    return first;
  }
  // The range that holds a place.
  __device__ __forceinline__ int owner(int place) const {
    int before = 0;
    if (group < total) before = quotient(place, group);
    const int at = place - before * group, longer = rest * (chunk + 1);  // places of the ranges with one more
    const bool among = at < longer;
    return before * parts + (among ? 0 : rest) + quotient(at - (among ? 0 : longer), chunk + among);
  }
  // The ranges that hold the first and the last tile of a segment's pair.
  __device__ __forceinline__ int first_of(const Segment& s) const { return owner(min(s.line + near, total - 1)); }
  __device__ __forceinline__ int last_of(const Segment& s, int first) const { return max(first, owner(max(s.line + s.span.tiles - 1 - near, 0))); }
};

// Tiles of a sequence in the line, and of one of its pairs, at most. `claimed`: its length, of the first KV head.
struct Tiles {
  int all, most;
};
__device__ __forceinline__ Tiles sequence_tiles(const pt_decode_params& p, int sequence, int lanes, int claimed) {
  int all = span_of(p, sequence, 0, claimed).tiles, most = all;
  if (kHeadsMayDiffer && !heads_are_alike(p)) {
    for (int h = 1; h < spec::kv_heads; ++h) {
      const int tiles = span_of(p, sequence, h).tiles;
      all += tiles;
      most = max(most, tiles);
    }
    return {all * kRowTiles, most};
  }
  return {all * (lanes > 1 ? 1 : kLanes), most};
}

// A CTA's walk through its range of the line. The loader and the consumer have one each.
struct Walk {
  Segment now;
  int left;   // places of the range after this segment, 0 if it takes no tile there; of whole pairs their number
  bool whole;
  int lanes, opening, near;
  int gives;  // so few places after a pair are the next range's, which takes that pair from its beginning

  // Narrows the segment, whose pair has `tile` before the range's next place (negative: in the opening), to what the range takes.
  __device__ __forceinline__ void enter(int tile) {
    if (whole) {
      now.first = 0;
      now.count = now.span.tiles;
      --left;
      return;
    }
    const int end = tile + left;
    now.first = max(tile, 0);
    left = end - now.span.tiles;
    now.count = (left < -near ? end : now.span.tiles) - now.first;
    if (left <= gives) left = 0;
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
    now.line += now.span.tiles + opening;
    if (step(now)) now.span = span_of(p, now.sequence, now.head);
    enter(-opening);
  }
};

// Lengths that a lane asks for at once, so that a batch of 128 costs one way to the memory; where heads differ, theirs are asked for one by one anyway.
constexpr int kLengths = kHeadsMayDiffer ? 1 : 4;

// Every warp computes the same; returns false where the CTA's range is empty. `meanwhile` is done while the lengths are on the way.
template <class Meanwhile>
__device__ __forceinline__ bool start_walk(const pt_decode_params& p, int lane, int cta, Shares& shares, Walk& walk, Meanwhile meanwhile) {
  const bool side_by_side = heads_are_alike(p) && p.num_ctas >= kLanes;
  const auto each_of = [&](int x) { return side_by_side ? quotient(x, kLanes) : x; };
  shares.lanes = walk.lanes = side_by_side ? kLanes : 1;
  shares.range = each_of(cta);
  shares.lane = side_by_side ? cta - shares.range * kLanes : 0;
  const int pairs = side_by_side ? 1 : kLanes;  // of a sequence in the line
  int claimed[kLengths];
  const auto load = [&](int base) {
#pragma unroll
    for (int k = 0; k < kLengths; ++k) claimed[k] = base + k * 32 + lane < p.batch ? ptx::load_now(length_at(p, base + k * 32 + lane, 0)) : 0;
  };
  load(0);
  meanwhile();
  const Shares::Fit fit{p.batch * pairs, each_of(p.num_ctas), p.whole_pairs, p.whole_ranges, p.cut_ranges};
  if (shares.range >= fit.ranges) return false;
  int mine = 0, first_chunk = 0, most = 0;
#pragma unroll 1
  for (int base = 0; base < p.batch; base += 32 * kLengths) {
    if (base > 0) load(base);
#pragma unroll
    for (int k = 0; k < kLengths; ++k) {
      if (base + k * 32 >= p.batch) break;
      const int b = base + k * 32 + lane;
      const Tiles tiles = b < p.batch ? sequence_tiles(p, b, shares.lanes, claimed[k]) : Tiles{0, 0};
      if (base == 0 && k == 0) first_chunk = tiles.all;
      mine += tiles.all;
      most = max(most, tiles.most);
    }
  }
  const int total = __reduce_add_sync(0xffffffffu, mine);
  if (shares.range >= shares.divide(total, __reduce_max_sync(0xffffffffu, most), fit)) return false;
  walk.whole = shares.whole > 0;
  walk.opening = shares.opening, walk.near = shares.near, walk.gives = 0;
  if (walk.whole) {
    const int pair = shares.range * shares.whole, of_sequence = side_by_side ? shares.lane : pair % kLanes;
    walk.left = min(shares.whole, fit.pairs - pair);
    walk.now.sequence = side_by_side ? pair : quotient(pair, kLanes);
    walk.now.head = of_sequence / kRowTiles;
    walk.now.row_tile = of_sequence % kRowTiles;
    walk.now.line = 0;
    walk.now.span = span_of(p, walk.now.sequence, walk.now.head);
    walk.enter(0);
    return true;
  }
  const int begin = shares.begin(shares.range, walk.left), end = begin + walk.left;
  const int opening = shares.opening, near = shares.near;
  if (end < shares.total) walk.gives = opening + near;
  const int from = max(begin - opening - near, 0);  // the first pair that begins there or later, if it does before `begin`, is this range's
  if (shares.each > 0) {
    const int tiles = shares.each * pairs;
    walk.now.sequence = quotient(from, tiles);
    walk.now.line = walk.now.sequence * tiles;
  } else {
    int before = 0;
#pragma unroll 1
    for (int base = 0;; base += 32) {
      const int b = base + lane;
      const int x = b < p.batch ? (base == 0 ? first_chunk : sequence_tiles(p, b, shares.lanes, __ldg(length_at(p, b, 0))).all) + opening * pairs : 0;
      int sum = x;  // inclusive
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
      }
      const u32 beyond = __ballot_sync(0xffffffffu, before + sum > from);
      if (beyond != 0) {
        const int at = __ffs(beyond) - 1;
        walk.now.sequence = base + at;
        walk.now.line = before + __shfl_sync(0xffffffffu, sum - x, at);
        break;
      }
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
  }
  walk.now.line += opening;
  walk.now.head = walk.now.row_tile = 0;
  walk.now.span = span_of(p, walk.now.sequence, 0);
  if (side_by_side) {
    walk.now.head = shares.lane / kRowTiles;
    walk.now.row_tile = shares.lane % kRowTiles;
  } else if constexpr (!kHeadsMayDiffer) {  // all pairs of the sequence are of one length
    const int each = walk.now.span.tiles + opening, pair = quotient(from + opening - walk.now.line, each);
    walk.now.head = quotient(pair, kRowTiles);
    walk.now.row_tile = pair - walk.now.head * kRowTiles;
    walk.now.line += pair * each;
  } else {
    while (walk.now.line + walk.now.span.tiles <= from) {
      walk.now.line += walk.now.span.tiles + opening;
      if (++walk.now.row_tile == kRowTiles) {
        walk.now.row_tile = 0;
        walk.now.span = span_of(p, walk.now.sequence, ++walk.now.head);
      }
    }
  }
  const int tile = begin - walk.now.line, next = walk.now.line + walk.now.span.tiles;
  if (tile > near && next > begin + near) {
    walk.left = end - begin;
    walk.enter(tile);
    return true;
  }
  walk.left = end - (tile > near ? next : walk.now.line - opening);
  if (walk.left <= walk.gives) return false;
  if (tile > near) walk.next(p);
  else walk.enter(-opening);
  return true;
}

// Where the partial results of one (pair, row tile) lie. Even share: two slots for each CTA, of a pair that goes on in it and of one that begins in it.
// The host bounds the number of rows to 31 bits.
struct Partials {
  int count;
  int first, stride;  // rows; of part i: first + i * stride, but part 0 of an even share is its CTA's second slot
  int row_stride;     // between the rows of a part
  int zero;           // row of part 0

  __device__ __forceinline__ i64 row(int part, int r) const { return (part == 0 ? zero : first + part * stride) + r * row_stride; }

  // Many parts, which only few heads to share a device have, are merged in two steps, for all of them are more than one multiprocessor reads in a hurry: kStep neighbours at a
  // time, then their results, which take the place of the first of each. (8/1 heads, 132 parts, 1 x 131072: 29.0 us in one step, 23.4 in two; 33 parts of 28/4 heads, 1 x 32768:
  // 20.2 and 22.2.)
  static constexpr int kStep = 12, kInOneStep = 48;
  __device__ __forceinline__ bool in_two_steps() const { return config::even_share && (kLanes <= 2 || kHeadsMayDiffer) && count > kInOneStep; }
  __device__ __forceinline__ Partials neighbours(int part) const {
    const int from = part - part % kStep, at = static_cast<int>(row(from, 0));
    return {min(kStep, count - from), from == 0 ? first : at, stride, row_stride, at};
  }
  __device__ __forceinline__ Partials last_step(bool of_two) const { return of_two ? Partials{ceil_div(count, kStep), first, stride * kStep, row_stride, zero} : *this; }
};

// A CTA's row 0 among the rows of all pairs.
__device__ __forceinline__ int pair_row(const Segment& s) { return (s.sequence * spec::kv_heads + s.head) * kRows + s.row_tile * kRowsPerCta; }

// Parts of 2^ctas_log2 splits each: [sequence][KV head][row of the pair][part].
__device__ __forceinline__ Partials fixed_partials(const pt_decode_params& p, const Segment& s, int ctas_log2 = 0) {
  const int all = ceil_shift(p.num_splits, ctas_log2);
  const int first = pair_row(s) * all;
  return {ceil_shift(used_splits(s.span, p.num_splits), ctas_log2), first, 1, all, first};
}
__device__ __forceinline__ Partials even_partials(const Shares& shares, const Segment& s, int& part) {
  const int first = shares.first_of(s), last = shares.last_of(s, first);
  constexpr int kSlots = 2 * kRowsPerCta;
  const int stride = shares.lanes * kSlots;
  part = shares.range - first;
  const int at = first * stride + shares.lane * kSlots;
  return {last - first + 1, at, stride, 1, at + kRowsPerCta};
}
