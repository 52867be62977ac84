#include "tuner/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "pagetune/error.hpp"
#include "tuner/numeric.hpp"
#include "runtime/parallel.hpp"

namespace pagetune {
namespace {

void require_known_features(const AttentionSpec& spec) {
  const auto refuse = [](const char* what) {
    throw Error(ErrorCode::unsupported, std::string("the fp64 oracle does not know ") + what + " yet; it covers plain decode attention");
  };
  if (spec.kind != Kind::decode) refuse(name_of(spec.kind));
  if (spec.window) refuse("window");
  if (spec.chunk) refuse("chunk");
  if (spec.sink_tokens) refuse("sink_tokens");
  if (spec.sinks) refuse("sinks");
  if (spec.soft_cap) refuse("soft_cap");
  if (spec.alibi) refuse("alibi");
  if (spec.mask != MaskKind::none) refuse(name_of(spec.mask));
  if (spec.headwise) refuse("headwise");
  if (spec.kv_scale != ScaleGranularity::none) refuse(name_of(spec.kv_scale));
}

// One of K and V: where its pages lie.
struct CacheView {
  DType dtype;
  int dim;
  const void* base;
  long long stride_page, stride_token, stride_head;
};

// The rows of consecutive tokens of one page and KV head, as doubles [tokens][dim].
class PageReader {
 public:
  PageReader(const CacheView& view, const ReadMemory& read) : view_(view), read_(read), element_bytes_(bits_of(view.dtype) / 8) {}

  const std::vector<double>& rows(int page, int kv_head, int tokens) {
    values_.resize(static_cast<size_t>(tokens) * view_.dim);
    const int64_t first = page * view_.stride_page + kv_head * view_.stride_head;
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

std::vector<PageSlice> present_pages(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, int sequence) {
  int length = 0;
  read(&length, params.seq_lens + sequence, sizeof(int));
  const int64_t capacity = static_cast<int64_t>(params.block_table_width) * spec.page_size;
  const int64_t tokens = std::clamp<int64_t>(length, 0, capacity);
  std::vector<int> ids(static_cast<size_t>((tokens + spec.page_size - 1) / spec.page_size));
  if (!ids.empty()) read(ids.data(), params.block_tables + sequence * params.block_table_stride, ids.size() * sizeof(int));
  std::vector<PageSlice> slices;
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    if (ids[slot] < 0 || ids[slot] >= params.num_pages) continue;
    const int64_t first = static_cast<int64_t>(slot) * spec.page_size;
    slices.push_back({ids[slot], first, static_cast<int>(std::min<int64_t>(spec.page_size, tokens - first))});
  }
  return slices;
}

double dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void read_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

void reference_group(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read, int sequence, int kv_head, double* out,
                     double* lse) {
  require_known_features(spec);
  const int group = spec.group_size();
  const int dim_k = spec.head_dim_k;
  const int dim_v = spec.head_dim_v;
  const std::vector<PageSlice> slices = present_pages(spec, params, read, sequence);

  const int64_t q_bytes = bits_of(spec.q_dtype) / 8;
  std::vector<char> raw(static_cast<size_t>(dim_k * q_bytes));
  std::vector<double> q(static_cast<size_t>(group) * dim_k);
  for (int h = 0; h < group; ++h) {
    const int64_t at = sequence * params.q_stride_seq + (kv_head * group + h) * params.q_stride_head;
    read(raw.data(), static_cast<const char*>(params.q) + at * q_bytes, raw.size());
    load_elements(spec.q_dtype, raw.data(), dim_k, q.data() + static_cast<size_t>(h) * dim_k);
  }

  // Contract 7: a runtime float, applied to the product.
  const double scale = params.scale != 0 ? static_cast<double>(params.scale) : 1.0 / std::sqrt(static_cast<double>(dim_k));
  std::vector<std::vector<double>> weights(group);  // logits, then probabilities, over the visible keys in order
  PageReader keys({spec.kv_dtype, dim_k, params.k_cache, params.k_stride_page, params.k_stride_token, params.k_stride_head}, read);
  for (const PageSlice& slice : slices) {
    const std::vector<double>& rows = keys.rows(slice.page, kv_head, slice.tokens);
    for (int h = 0; h < group; ++h) {
      for (int t = 0; t < slice.tokens; ++t) {
        weights[h].push_back(scale * dot(q.data() + static_cast<size_t>(h) * dim_k, rows.data() + static_cast<size_t>(t) * dim_k, dim_k));
      }
    }
  }

  for (int h = 0; h < group; ++h) {
    lse[h] = -std::numeric_limits<double>::infinity();
    if (weights[h].empty()) continue;
    const double largest = *std::max_element(weights[h].begin(), weights[h].end());
    double sum = 0;
    for (double& w : weights[h]) sum += (w = std::exp(w - largest));
    for (double& w : weights[h]) w /= sum;
    lse[h] = largest + std::log(sum);
  }

  std::fill(out, out + static_cast<size_t>(group) * dim_v, 0.0);
  PageReader values({spec.kv_dtype, dim_v, params.v_cache, params.v_stride_page, params.v_stride_token, params.v_stride_head}, read);
  size_t key = 0;
  for (const PageSlice& slice : slices) {
    const std::vector<double>& rows = values.rows(slice.page, kv_head, slice.tokens);
    for (int t = 0; t < slice.tokens; ++t, ++key) {
      const double* v = rows.data() + static_cast<size_t>(t) * dim_v;
      for (int h = 0; h < group; ++h) {
        double* o = out + static_cast<size_t>(h) * dim_v;
        const double w = weights[h][key];
        for (int d = 0; d < dim_v; ++d) o[d] += w * v[d];
      }
    }
  }
}

Reference reference(const AttentionSpec& spec, const pt_decode_params& params, const ReadMemory& read) {
  require_known_features(spec);
  const size_t rows = static_cast<size_t>(params.batch) * spec.q_heads;
  Reference result{std::vector<double>(rows * spec.head_dim_v), std::vector<double>(rows)};
  parallel_for(static_cast<int64_t>(params.batch) * spec.kv_heads, [&](int64_t item) {
    const int sequence = static_cast<int>(item / spec.kv_heads);
    const int kv_head = static_cast<int>(item % spec.kv_heads);
    const size_t row = static_cast<size_t>(item) * spec.group_size();
    reference_group(spec, params, read, sequence, kv_head, result.out.data() + row * spec.head_dim_v, result.lse.data() + row);
  });
  return result;
}

}  // namespace pagetune
