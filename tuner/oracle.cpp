#include "tuner/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "pagetune/error.hpp"
#include "tuner/numeric.hpp"
#include "runtime/parallel.hpp"

namespace pagetune {
namespace {

void require_known_features(const AttentionSpec& spec) {
  const auto refuse = [](const char* what) { throw Error(ErrorCode::unsupported, std::string("the fp64 oracle does not know ") + what + " yet; it covers decode attention without KV scales"); };
  if (spec.kind != Kind::decode) refuse(name_of(spec.kind));
  if (spec.kv_scale != ScaleGranularity::none) refuse(name_of(spec.kv_scale));
}

// One of K and V: where the pages of one KV head lie.
struct CacheView {
  DType dtype;
  int dim;
  const void* base;
  long long stride_page, stride_token, head_offset;
};

// The rows of consecutive tokens of one page, as doubles [tokens][dim].
class PageReader {
 public:
  PageReader(const CacheView& view, const ReadMemory& read) : view_(view), read_(read), element_bytes_(bits_of(view.dtype) / 8) {}

  const std::vector<double>& rows(int page, int tokens) {
    values_.resize(static_cast<size_t>(tokens) * view_.dim);
    const int64_t first = page * view_.stride_page + view_.head_offset;
    // One read for the page where the tokens lie close together: a device's memory is far away.
    constexpr int64_t kSpanLimit = int64_t{1} << 22;
    const int64_t span = (tokens - 1) * view_.stride_token + view_.dim;
    if (view_.stride_token >= 0 && span <= kSpanLimit) {
      read_elements(first, span);
      for (int t = 0; t < tokens; ++t) convert(t, t * view_.stride_token);
    } else {
      for (int t = 0; t < tokens; ++t) {
        read_elements(first + t * view_.stride_token, view_.dim);
        convert(t, 0);
      }
    }
    return values_;
  }

 private:
  void read_elements(int64_t first, int64_t count) {
    raw_.resize(static_cast<size_t>(count * element_bytes_));
    read_(raw_.data(), static_cast<const char*>(view_.base) + first * element_bytes_, raw_.size());
  }
  void convert(int token, int64_t at) {
    load_elements(view_.dtype, raw_.data() + at * element_bytes_, view_.dim, values_.data() + static_cast<size_t>(token) * view_.dim);
  }

  CacheView view_;
  const ReadMemory& read_;
  int64_t element_bytes_;
  std::vector<char> raw_;
  std::vector<double> values_;
};

// What a table row shows of one page: tokens [0, tokens) at positions first + t.
struct PageSlice {
  int page;
  int64_t first;
  int tokens;
};

// The pages of which some row sees some token. Nothing is read of the table beyond them.
std::vector<PageSlice> seen_pages(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, const Visibility& visibility, int64_t table_row) {
  std::vector<PageSlice> slices;
  for (int64_t first = 0; first < visibility.tokens(); first += spec.page_size) {
    const int tokens = static_cast<int>(std::min<int64_t>(spec.page_size, visibility.tokens() - first));
    if (visibility.needs(first, first + tokens)) slices.push_back({0, first, tokens});
  }
  if (slices.empty()) return slices;
  const int64_t first_slot = slices.front().first / spec.page_size, last_slot = slices.back().first / spec.page_size;
  std::vector<int> ids(static_cast<size_t>(last_slot - first_slot + 1));
  read(ids.data(), params.block_tables + table_row * params.block_table_stride + first_slot, ids.size() * sizeof(int));
  for (PageSlice& slice : slices) slice.page = ids[static_cast<size_t>(slice.first / spec.page_size - first_slot)];
  std::erase_if(slices, [&](const PageSlice& slice) { return slice.page < 0 || slice.page >= params.num_pages; });
  return slices;
}

// Where a row begins, in elements.
int64_t row_offset(const AttentionSpec& spec, const pt_decode_params& params, int64_t row, int64_t stride_seq, int64_t stride_token) {
  if (params.cu_seqlens_q != nullptr) return row * stride_token;
  return row / spec.q_len * stride_seq + row % spec.q_len * stride_token;
}

double dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

int64_t rows_of(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read) {
  if (params.cu_seqlens_q == nullptr) return int64_t{params.batch} * spec.q_len;
  int rows = 0;
  read(&rows, params.cu_seqlens_q + params.batch, sizeof rows);
  return rows;
}

int reference_group(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, int sequence, int kv_head, double* out, double* lse) {
  require_known_features(spec);
  const int group = spec.group_size();
  const int dim_k = spec.head_dim_k;
  const int dim_v = spec.head_dim_v;
  const Visibility visibility(spec, params, read, sequence, kv_head);
  const int rows = visibility.rows();
  const std::vector<PageSlice> slices = seen_pages(spec, params, read, visibility, spec.headwise ? int64_t{sequence} * spec.kv_heads + kv_head : sequence);
  const bool flat = spec.headwise && spec.address_map == AddressMap::flat;

  // Everything below is per (row, head of the group).
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(group);
  const auto at = [group](int row, int head) { return static_cast<size_t>(row) * static_cast<size_t>(group) + static_cast<size_t>(head); };
  const int64_t q_bytes = bits_of(spec.q_dtype) / 8;
  std::vector<char> raw(static_cast<size_t>(dim_k * q_bytes));
  std::vector<double> q(count * static_cast<size_t>(dim_k));
  for (int i = 0; i < rows; ++i) {
    const int64_t row = row_offset(spec, params, visibility.first_row() + i, params.q_stride_seq, params.q_stride_token);
    for (int h = 0; h < group; ++h) {
      read(raw.data(), static_cast<const char*>(params.q) + (row + (int64_t{kv_head} * group + h) * params.q_stride_head) * q_bytes, raw.size());
      load_elements(spec.q_dtype, raw.data(), dim_k, q.data() + at(i, h) * static_cast<size_t>(dim_k));
    }
  }
  const auto per_head = [&](const float* array) {
    std::vector<float> values(static_cast<size_t>(group));
    read(values.data(), array + int64_t{kv_head} * group, values.size() * sizeof(float));
    return values;
  };
  const std::vector<float> slopes = spec.alibi ? per_head(params.alibi_slopes) : std::vector<float>();
  const std::vector<float> sinks = spec.sinks ? per_head(params.sinks) : std::vector<float>();

  // Contract 7: a runtime float, applied to the product.
  const double scale = params.scale != 0 ? static_cast<double>(params.scale) : 1.0 / std::sqrt(static_cast<double>(dim_k));
  std::vector<std::vector<double>> weights(count);  // logits, then probabilities, over the visible keys in order
  PageReader keys({spec.kv_dtype, dim_k, params.k_cache, params.k_stride_page, params.k_stride_token, flat ? 0 : kv_head * params.k_stride_head}, read);
  for (const PageSlice& slice : slices) {
    const std::vector<double>& page = keys.rows(slice.page, slice.tokens);
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < group; ++h) {
        for (int t = 0; t < slice.tokens; ++t) {
          if (!visibility.sees(i, h, slice.first + t)) continue;
          double logit = scale * dot(q.data() + at(i, h) * static_cast<size_t>(dim_k), page.data() + static_cast<size_t>(t) * dim_k, dim_k);
          if (spec.soft_cap) logit = params.soft_cap * std::tanh(logit / params.soft_cap);
          if (spec.alibi) logit += slopes[static_cast<size_t>(h)] * static_cast<double>(slice.first + t - visibility.position(i));
          weights[at(i, h)].push_back(logit);
        }
      }
    }
  }

  for (int i = 0; i < rows; ++i) {
    for (int h = 0; h < group; ++h) {
      std::vector<double>& row = weights[at(i, h)];
      const double sink = spec.sinks ? static_cast<double>(sinks[static_cast<size_t>(h)]) : -std::numeric_limits<double>::infinity();
      lse[at(i, h)] = sink;
      if (row.empty()) continue;
      const double largest = std::max(sink, *std::max_element(row.begin(), row.end()));
      double sum = std::exp(sink - largest);
      for (double& w : row) sum += (w = std::exp(w - largest));
      for (double& w : row) w /= sum;
      lse[at(i, h)] = largest + std::log(sum);
    }
  }

  std::fill(out, out + count * static_cast<size_t>(dim_v), 0.0);
  PageReader values({spec.kv_dtype, dim_v, params.v_cache, params.v_stride_page, params.v_stride_token, flat ? 0 : kv_head * params.v_stride_head}, read);
  std::vector<size_t> key(count, 0);
  for (const PageSlice& slice : slices) {
    const std::vector<double>& page = values.rows(slice.page, slice.tokens);
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < group; ++h) {
        double* o = out + at(i, h) * static_cast<size_t>(dim_v);
        for (int t = 0; t < slice.tokens; ++t) {
          if (!visibility.sees(i, h, slice.first + t)) continue;
          const double w = weights[at(i, h)][key[at(i, h)]++];
          const double* v = page.data() + static_cast<size_t>(t) * dim_v;
          for (int d = 0; d < dim_v; ++d) o[d] += w * v[d];
        }
      }
    }
  }
  return rows;
}

namespace {

Reference reference_by(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, bool side_by_side) {
  require_known_features(spec);
  const auto heads = static_cast<size_t>(rows_of(spec, params, read)) * static_cast<size_t>(spec.q_heads);
  Reference result{std::vector<double>(heads * static_cast<size_t>(spec.head_dim_v)), std::vector<double>(heads, std::numeric_limits<double>::quiet_NaN())};
  const auto group = static_cast<size_t>(spec.group_size()), dim = static_cast<size_t>(spec.head_dim_v);
  const auto one = [&](int64_t item) {
    const int sequence = static_cast<int>(item / spec.kv_heads);
    const int kv_head = static_cast<int>(item % spec.kv_heads);
    std::vector<double> out(static_cast<size_t>(spec.rows()) * dim), lse(static_cast<size_t>(spec.rows()));
    const int rows = reference_group(spec, params, read, sequence, kv_head, out.data(), lse.data());
    int64_t first = int64_t{sequence} * spec.q_len;
    if (params.cu_seqlens_q != nullptr) {
      int start = 0;
      read(&start, params.cu_seqlens_q + sequence, sizeof start);
      first = start;
    }
    for (int i = 0; i < rows; ++i) {
      const size_t from = static_cast<size_t>(i) * group, to = static_cast<size_t>(first + i) * static_cast<size_t>(spec.q_heads) + static_cast<size_t>(kv_head) * group;
      std::copy_n(lse.begin() + static_cast<std::ptrdiff_t>(from), group, result.lse.begin() + static_cast<std::ptrdiff_t>(to));
      std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(from * dim), group * dim, result.out.begin() + static_cast<std::ptrdiff_t>(to * dim));
    }
  };
  const int64_t items = int64_t{params.batch} * spec.kv_heads;
  if (side_by_side) {
    parallel_for(items, one);
  } else {
    for (int64_t item = 0; item < items; ++item) one(item);
  }
  return result;
}

}  // namespace

Reference reference(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read) { return reference_by(spec, params, read, true); }
Reference reference_here(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read) { return reference_by(spec, params, read, false); }

}  // namespace pagetune
