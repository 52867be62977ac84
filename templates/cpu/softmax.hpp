// One tile of attention for a block of query rows: scores, online softmax with the tile's maximum, weighted sum of V.
#pragma once
#include "tile.hpp"

// What a work item keeps between tiles. Rows of q and out are fp32, padded with zeros to a multiple of 16 columns.
struct State {
  alignas(64) float q[kMaxRows * kMaxHeadDim];
  alignas(64) float out[kMaxRows * kMaxHeadDim];
  alignas(64) float score[kMaxRows * kMaxTile];  // of the tile; then its weights
  alignas(64) float max[kMaxRows];               // base-2 logits
  alignas(64) float sum[kMaxRows];
  alignas(64) float rescale[kMaxRows];           // of what was accumulated before this tile
  float slope[kMaxRows];                         // ALiBi, base 2
  int position[kMaxRows];
  Rows rows[2];  // of this tile and of the next one

  PT_INLINE int row_stride(int dim) { return (dim + 15) / 16 * 16; }
  __attribute__((always_inline)) float* q_row(int row) { return q + row * row_stride(spec_head_dim); }
  __attribute__((always_inline)) float* out_row(int row) { return out + row * row_stride(spec_head_dim_v); }
  __attribute__((always_inline)) const float* out_row(int row) const { return out + row * row_stride(spec_head_dim_v); }
  __attribute__((always_inline)) float* score_row(int row) { return score + row * config_tile_kv; }
};

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

PT_INLINE void load_queries(const pt_decode_params& params, State& state, const Item& item) {
  for (int r = 0; r < item.block.rows; ++r) {
    int token = item.block.token(r), head = item.kv_head * spec_group_size + item.block.head(r);
    const Byte* row = static_cast<const Byte*>(params.q) +
                      (token_offset(params, item.sequence, token, params.q_stride_seq, params.q_stride_token) + head * params.q_stride_head) * element_bytes();
    for (int d = 0; d < State::row_stride(spec_head_dim); d += 8)
      store_floats<8>(state.q_row(r) + d, d < spec_head_dim ? load_row<8>(row, d) : Floats<8>(0.0f));
    for (int d = 0; d < State::row_stride(spec_head_dim_v); d += 8) store_floats<8>(state.out_row(r) + d, Floats<8>(0.0f));
    if (spec_alibi) {
      state.slope[r] = params.alibi_slopes[head] * kLog2E;
      state.position[r] = item.len - item.sequence.tokens + token;
    }
  }
  for (int r = 0; r < kMaxRows; ++r) {
    state.max[r] = -kInfinity;
    state.sum[r] = 0.0f;
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

// From q . k to base-2 logits.
struct Scale {
  float log2;       // of the softmax, with log2(e)
  float into_cap;   // logit / soft cap
  float out_of_cap; // base 2
};

PT_INLINE Scale scale_of(const pt_decode_params& params) {
  if (!spec_soft_cap) return {params.scale_log2, 0.0f, 0.0f};
  return {0.0f, params.scale_log2 * kLn2 / params.soft_cap, params.soft_cap * kLog2E};
}

// Scores to weights. A masked score becomes -inf by a select, so nothing that its row's memory holds can pass; a row that has seen no
// key keeps max = -inf and sum = 0.
template <int lanes> static void weigh_tile(State& state, const Rows& rows, int heads, const Scale& scale) {
  alignas(64) float base[kMaxRows];
  for (int h = 0; h < heads; ++h) {
    float* score = state.score_row(h);
    Floats<lanes> top = -kInfinity;
    for (int t = 0; t < config_tile_kv; t += lanes) {
      Ints<lanes> visible = load_raw<Ints<lanes>>(rows.visible + t);
      if (masks_rows() && rows.masked) visible &= load_raw<Ints<lanes>>(rows.seen + h * config_tile_kv + t);
      Floats<lanes> logit = load_floats<lanes>(score + t);
      logit = spec_soft_cap ? tanh_of<lanes>(logit * scale.into_cap) * scale.out_of_cap : logit * scale.log2;
      if (spec_alibi) logit += __builtin_convertvector(lane_numbers<lanes>() + (rows.first + t - state.position[h]), Floats<lanes>) * state.slope[h];
      Floats<lanes> s = visible != 0 ? logit : Floats<lanes>(-kInfinity);
      store_floats<lanes>(score + t, s);
      top = larger<lanes>(top, s);
    }
    float tile_max = largest_of<lanes>(top);
    base[h] = state.max[h] > tile_max ? state.max[h] : tile_max;
  }
  for (int h = heads; h < kMaxRows; ++h) base[h] = 0.0f;
  for (int h = 0; h < kMaxRows; h += lanes) {
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
      // A token that one row sees may be hidden from another: its weight there is 0, but 0 * Inf is not.
      if (masks_rows() && rows.masked && state.score_row(first_head + h)[t] == 0.0f) continue;
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
    for (; d + 4 * lanes <= spec_head_dim_v; d += 4 * lanes) accumulate_columns<lanes, heads, 4>(state, rows, first_head, d);
  if constexpr (widest >= 2)
    for (; d + 2 * lanes <= spec_head_dim_v; d += 2 * lanes) accumulate_columns<lanes, heads, 2>(state, rows, first_head, d);
  for (; d + lanes <= spec_head_dim_v; d += lanes) accumulate_columns<lanes, heads, 1>(state, rows, first_head, d);
  if constexpr (lanes == 16)
    if (d < spec_head_dim_v) accumulate_columns<8, heads, 1>(state, rows, first_head, d);
}

template <int lanes> PT_INLINE void attend_tile(State& state, const Rows& rows, const Rows& next, int heads, const Scale& scale) {
  int h = 0;
  for (; h + 4 <= heads; h += 4) score_heads<lanes, 4>(state, rows, next, h);
  if (heads & 2) score_heads<lanes, 2>(state, rows, next, heads & ~3);
  if (heads & 1) score_heads<lanes, 1>(state, rows, next, heads & ~1);
  weigh_tile<lanes>(state, rows, heads, scale);
  for (h = 0; h + 4 <= heads; h += 4) accumulate_heads<lanes, 4>(state, rows, h);
  if (heads & 2) accumulate_heads<lanes, 2>(state, rows, heads & ~3);
  if (heads & 1) accumulate_heads<lanes, 1>(state, rows, heads & ~1);
}
