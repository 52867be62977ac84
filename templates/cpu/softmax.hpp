// One tile of attention for a block of query heads: scores, online softmax with the tile's maximum, weighted sum of V.
#pragma once
#include "tile.hpp"

// What a work item keeps between tiles. Rows of q and out are fp32, padded with zeros to a multiple of 16 columns.
struct State {
  alignas(64) float q[kMaxHeads * kMaxHeadDim];
  alignas(64) float out[kMaxHeads * kMaxHeadDim];
  alignas(64) float score[kMaxHeads * kMaxTile];  // of the tile; then its weights
  alignas(64) float max[kMaxHeads];               // base-2 logits
  alignas(64) float sum[kMaxHeads];
  alignas(64) float rescale[kMaxHeads];           // of what was accumulated before this tile
  Rows rows[2];  // of this tile and of the next one

  PT_INLINE int row_stride() { return (spec_head_dim + 15) / 16 * 16; }
  __attribute__((always_inline)) float* q_row(int head) { return q + head * row_stride(); }
  __attribute__((always_inline)) float* out_row(int head) { return out + head * row_stride(); }
  __attribute__((always_inline)) const float* out_row(int head) const { return out + head * row_stride(); }
  __attribute__((always_inline)) float* score_row(int head) { return score + head * config_tile_kv; }
};

PT_INLINE float log2_sum(float max, float sum) { return sum == 0.0f ? -kInfinity : max + __builtin_log2f(sum); }
PT_INLINE float natural_lse(float max, float sum) { return log2_sum(max, sum) * 0.693147180559945f; }

PT_INLINE void load_queries(const pt_decode_params& params, State& state, int sequence, int first_head, int heads) {
  for (int h = 0; h < heads; ++h) {
    const Byte* row = static_cast<const Byte*>(params.q) +
                      (sequence * params.q_stride_seq + (first_head + h) * params.q_stride_head) * element_bytes();
    for (int d = 0; d < State::row_stride(); d += 8) {
      store_floats<8>(state.q_row(h) + d, d < spec_head_dim ? load_row<8>(row, d) : Floats<8>(0.0f));
      store_floats<8>(state.out_row(h) + d, Floats<8>(0.0f));
    }
  }
  for (int h = 0; h < kMaxHeads; ++h) {
    state.max[h] = -kInfinity;
    state.sum[h] = 0.0f;
  }
}

// Column block [dim, dim + lanes) of a K row; lanes past the head dim are zero and are not read.
template <int lanes> PT_INLINE Floats<lanes> load_keys(const Byte* row, int dim) {
  if constexpr (lanes == 16) {
    if (dim + 16 > spec_head_dim)
      return __builtin_shufflevector(load_row<8>(row, dim), Floats<8>(0.0f), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  return load_row<lanes>(row, dim);
}

// q . k for `heads` heads from `first_head` and all tokens of the tile, lanes / heads tokens at a time: as many accumulators as lanes.
// The first heads also fetch the next tile, a few rows at a time: all at once would fill the line buffers.
template <int lanes, int heads> static void score_heads(State& state, const Rows& rows, const Rows& next, int first_head) {
  constexpr int tokens = lanes / heads;
  static_assert(tokens >= 1);
  for (int t = 0; t < config_tile_kv; t += tokens) {
    if (first_head == 0)
      for (int i = 0; i < tokens; ++i) prefetch_rows(next, t + i);
    Floats<lanes> sum[lanes];
#pragma clang loop unroll(full)
    for (int i = 0; i < lanes; ++i) sum[i] = 0.0f;
    for (int d = 0; d < spec_head_dim; d += lanes) {
      Floats<lanes> k[tokens];
#pragma clang loop unroll(full)
      for (int i = 0; i < tokens; ++i) k[i] = load_keys<lanes>(rows.k[t + i], d);
#pragma clang loop unroll(full)
      for (int h = 0; h < heads; ++h) {
        Floats<lanes> q = load_floats<lanes>(state.q_row(first_head + h) + d);
#pragma clang loop unroll(full)
        for (int i = 0; i < tokens; ++i) sum[h * tokens + i] = q * k[i] + sum[h * tokens + i];
      }
    }
    Floats<lanes> scores = sums_of<lanes>(sum);
#pragma clang loop unroll(full)
    for (int h = 0; h < heads; ++h) {
#pragma clang loop unroll(full)
      for (int i = 0; i < tokens; ++i) state.score_row(first_head + h)[t + i] = scores[h * tokens + i];
    }
  }
}

// Scores to weights. A masked score becomes -inf by a select, so nothing that its row's memory holds can pass; a row that has seen no
// key keeps max = -inf and sum = 0.
template <int lanes> static void weigh_tile(State& state, const Rows& rows, int heads, float scale_log2) {
  alignas(64) float base[kMaxHeads];
  for (int h = 0; h < heads; ++h) {
    float* score = state.score_row(h);
    Floats<lanes> top = -kInfinity;
    for (int t = 0; t < config_tile_kv; t += lanes) {
      Ints<lanes> visible = load_raw<Ints<lanes>>(rows.visible + t);
      Floats<lanes> s = visible != 0 ? load_floats<lanes>(score + t) * scale_log2 : Floats<lanes>(-kInfinity);
      store_floats<lanes>(score + t, s);
      top = larger<lanes>(top, s);
    }
    float tile_max = largest_of<lanes>(top);
    base[h] = state.max[h] > tile_max ? state.max[h] : tile_max;
  }
  for (int h = heads; h < kMaxHeads; ++h) base[h] = 0.0f;
  for (int h = 0; h < kMaxHeads; h += lanes) {
    Floats<lanes> now = load_floats<lanes>(base + h);
    Floats<lanes> safe = now == -kInfinity ? Floats<lanes>(0.0f) : now;  // -inf - -inf would be NaN
    store_floats<lanes>(state.rescale + h, exp2_nonpositive<lanes>(load_floats<lanes>(state.max + h) - safe));
    store_floats<lanes>(state.max + h, now);
    store_floats<lanes>(base + h, safe);
  }
  for (int h = 0; h < heads; ++h) {
    float* score = state.score_row(h);
    Floats<lanes> total = 0.0f;
    for (int t = 0; t < config_tile_kv; t += lanes) {
      Floats<lanes> weight = exp2_nonpositive<lanes>(load_floats<lanes>(score + t) - base[h]);
      store_floats<lanes>(score + t, weight);
      total += weight;
    }
    state.sum[h] = state.sum[h] * state.rescale[h] + sum_of<lanes>(total);
  }
}

// out = out * rescale + weights . V for `heads` heads and columns [dim, dim + lanes * chunks).
template <int lanes, int heads, int chunks> static void accumulate_columns(State& state, const Rows& rows, int first_head, int dim) {
  Floats<lanes> sum[heads][chunks];
#pragma clang loop unroll(full)
  for (int h = 0; h < heads; ++h) {
#pragma clang loop unroll(full)
    for (int c = 0; c < chunks; ++c)
      sum[h][c] = load_floats<lanes>(state.out_row(first_head + h) + dim + c * lanes) * state.rescale[first_head + h];
  }
  for (int t = 0; t < config_tile_kv; ++t) {
    const Byte* row = rows.v[t];
    Floats<lanes> v[chunks];
#pragma clang loop unroll(full)
    for (int c = 0; c < chunks; ++c) v[c] = load_row<lanes>(row, dim + c * lanes);
#pragma clang loop unroll(full)
    for (int h = 0; h < heads; ++h) {
      Floats<lanes> weight = state.score_row(first_head + h)[t];
#pragma clang loop unroll(full)
      for (int c = 0; c < chunks; ++c) sum[h][c] = weight * v[c] + sum[h][c];
    }
  }
#pragma clang loop unroll(full)
  for (int h = 0; h < heads; ++h) {
#pragma clang loop unroll(full)
    for (int c = 0; c < chunks; ++c) store_floats<lanes>(state.out_row(first_head + h) + dim + c * lanes, sum[h][c]);
  }
}

// All columns, in the widest steps that keep heads * chunks accumulators in registers.
template <int lanes, int heads> PT_INLINE void accumulate_heads(State& state, const Rows& rows, int first_head) {
  constexpr int widest = heads == 4 ? lanes / 4 : (lanes < 8 ? lanes / 2 : 4);
  int d = 0;
  if constexpr (widest >= 4)
    for (; d + 4 * lanes <= spec_head_dim; d += 4 * lanes) accumulate_columns<lanes, heads, 4>(state, rows, first_head, d);
  if constexpr (widest >= 2)
    for (; d + 2 * lanes <= spec_head_dim; d += 2 * lanes) accumulate_columns<lanes, heads, 2>(state, rows, first_head, d);
  for (; d + lanes <= spec_head_dim; d += lanes) accumulate_columns<lanes, heads, 1>(state, rows, first_head, d);
  if constexpr (lanes == 16)
    if (d < spec_head_dim) accumulate_columns<8, heads, 1>(state, rows, first_head, d);
}

template <int lanes> PT_INLINE void attend_tile(State& state, const Rows& rows, const Rows& next, int heads, float scale_log2) {
  int h = 0;
  for (; h + 4 <= heads; h += 4) score_heads<lanes, 4>(state, rows, next, h);
  if (heads & 2) score_heads<lanes, 2>(state, rows, next, heads & ~3);
  if (heads & 1) score_heads<lanes, 1>(state, rows, next, heads & ~1);
  weigh_tile<lanes>(state, rows, heads, scale_log2);
  for (h = 0; h + 4 <= heads; h += 4) accumulate_heads<lanes, 4>(state, rows, h);
  if (heads & 2) accumulate_heads<lanes, 2>(state, rows, heads & ~3);
  if (heads & 1) accumulate_heads<lanes, 1>(state, rows, heads & ~1);
}
