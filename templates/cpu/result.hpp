// What a work item leaves: a row of out, or a partial result that the merge takes up.
#pragma once
#include "softmax.hpp"

PT_INLINE float log2_sum(float max, float sum) { return sum == 0.0f ? -kInfinity : max + __builtin_log2f(sum); }
PT_INLINE float natural_lse(float max, float sum) { return log2_sum(max, sum) * kLn2; }

// A query row of the whole launch.
struct Target {
  Byte* out;
  float* lse;
};

PT_INLINE Target target_of(const pt_decode_params& params, const Sequence& sequence, int token, int head) {
  long long offset = token_offset(params, sequence, token, params.out_stride_seq, params.out_stride_token) + head * params.out_stride_head;
  return {static_cast<Byte*>(params.out) + offset * out_element_bytes(), spec_lse ? params.lse + (sequence.first_row + token) * spec_q_heads + head : nullptr};
}

PT_INLINE long long partial_row(const pt_decode_params& params, int sequence, int token, int head) {
  return ((static_cast<long long>(sequence) * spec_q_len + token) * spec_q_heads + head) * params.num_splits;
}

// The sink of a query head joins the sum once, at the end: how much the base-2 maximum, the sum, and what was accumulated change.
struct Total {
  float max, sum, rescale;
};
PT_INLINE Total with_sink(const pt_decode_params& params, int head, float max, float sum) {
  if (!spec_sinks) return {max, sum, 1.0f};
  float sink = params.sinks[head] * kLog2E;
  float top = sink > max ? sink : max;
  float base = top == -kInfinity ? 0.0f : top;
  float rescale = exp2_nonpositive<4>(Floats<4>(max - base))[0];
  return {top, sum * rescale + exp2_nonpositive<4>(Floats<4>(sink - base))[0], rescale};
}

PT_INLINE void write_output(const pt_decode_params& params, const State& state, const Item& item) {
  for (int r = 0; r < item.block.rows; ++r) {
    int token = item.block.token(r), head = item.kv_head * spec_group_size + item.block.head(r);
    Target target = target_of(params, item.sequence, token, head);
    float sum = state.sum[r];
    Total total = with_sink(params, head, state.max[r], sum);
    float factor = sum == 0.0f ? 0.0f : total.rescale / total.sum;
    for (int d = 0; d < spec_head_dim_v; d += 8) {
      Floats<8> o = load_floats<8>(state.out_row(r) + d);
      store_out<8>(target.out, d, sum == 0.0f ? Floats<8>(0.0f) : o * factor);
    }
    if (spec_lse) *target.lse = natural_lse(total.max, total.sum);
  }
}

// The share's result, normalised, and its base-2 LSE.
PT_INLINE void write_partial(const pt_decode_params& params, const State& state, const Item& item, int share) {
  for (int r = 0; r < item.block.rows; ++r) {
    long long row = partial_row(params, item.sequence.index, item.block.token(r), item.kv_head * spec_group_size + item.block.head(r)) + share;
    float sum = state.sum[r];
    float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int d = 0; d < spec_head_dim_v; d += 8) {
      Floats<8> o = load_floats<8>(state.out_row(r) + d);
      store_floats<8>(params.partial_out + row * spec_head_dim_v + d, sum == 0.0f ? Floats<8>(0.0f) : o * factor);
    }
    params.partial_lse[row] = log2_sum(state.max[r], sum);
  }
}

// Weights first, then the sum: the largest share has weight 2^0, an empty one 0 whatever its memory holds.
PT_INLINE void merge_row(const pt_decode_params& params, const Sequence& sequence, int token, int head, int used) {
  long long row = partial_row(params, sequence.index, token, head);
  const float* lse = params.partial_lse + row;
  float top = -kInfinity;
  for (int s = 0; s < used; ++s) top = lse[s] > top ? lse[s] : top;
  float base = top == -kInfinity ? 0.0f : top;
  float sum_of_weights = 0.0f;
  for (int s = 0; s < used; ++s) sum_of_weights += exp2_nonpositive<4>(Floats<4>(lse[s] - base))[0];
  Total total = with_sink(params, head, top, sum_of_weights);
  alignas(64) float sum[kMaxHeadDim];
  for (int d = 0; d < spec_head_dim_v; d += 8) store_floats<8>(sum + d, Floats<8>(0.0f));
  for (int s = 0; s < used; ++s) {
    if (lse[s] == -kInfinity) continue;
    float weight = exp2_nonpositive<4>(Floats<4>(lse[s] - base))[0] * total.rescale / total.sum;
    const float* partial = params.partial_out + (row + s) * spec_head_dim_v;
    for (int d = 0; d < spec_head_dim_v; d += 8)
      store_floats<8>(sum + d, load_floats<8>(sum + d) + load_floats<8>(partial + d) * weight);
  }
  Target target = target_of(params, sequence, token, head);
  for (int d = 0; d < spec_head_dim_v; d += 8) store_out<8>(target.out, d, load_floats<8>(sum + d));
  if (spec_lse) *target.lse = natural_lse(total.max, total.sum);
}
