#include "tuner/host_problem.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

#include "pagetune/error.hpp"
#include "tuner/guarded.hpp"
#include "tuner/numeric.hpp"
#include "tuner/visibility.hpp"

namespace pagetune {
namespace {

// Gaps of the padded placement, in elements: multiples of 8, so that 16-byte accesses stay aligned, and not multiples of one another.
constexpr int64_t kHeadGap = 8, kTokenGap = 24, kPageGap = 40;

// Entries of a table row: a few beyond its width, which belong to nobody.
constexpr int kTableGap = 5;

// A stride that nobody may use: unaligned, and far from everything.
constexpr long long kUnusedStride = 0x5555555555;

struct Extent {
  int64_t page, token, head, elements;
};

Extent strides_of(const ProblemShape& shape, int dim) {
  const AttentionSpec& spec = shape.spec;
  const bool padded = shape.placement == Placement::padded;
  const int64_t row = shape.placement == Placement::sliced ? 2 * dim : dim + (padded ? kHeadGap : 0);
  const int64_t gap = padded ? kTokenGap : 0;
  Extent e{};
  int64_t page = 0;
  if (spec.headwise && spec.address_map == AddressMap::flat) {  // an id is one head's tokens
    e.token = row;
    e.head = kUnusedStride;
    page = spec.page_size * row + gap;
  } else if (spec.layout == Layout::nhd) {
    e.head = row;
    e.token = spec.kv_heads * row + gap;
    page = spec.page_size * e.token;
  } else {
    e.token = row;
    e.head = spec.page_size * row + gap;
    page = spec.kv_heads * e.head;
  }
  e.page = page + (padded ? kPageGap : 0);
  if (shape.placement == Placement::interleaved) e.page = 2 * page;
  if (shape.page_stride != 0) e.page = shape.page_stride;
  e.elements = (shape.num_pages - 1) * e.page + (shape.placement == Placement::interleaved ? e.page : page);
  return e;
}

size_t cache_bytes(const ProblemShape& shape, int dim) { return static_cast<size_t>(strides_of(shape, dim).elements) * static_cast<size_t>(bits_of(shape.spec.kv_dtype) / 8); }

int64_t or_dense(int64_t given, int64_t dense) { return given != 0 ? given : dense; }

// From the first to the last element of rows of q or out.
size_t rows_bytes(const ProblemShape& shape, int64_t given_seq, int64_t given_token, int dim, DType type) {
  const AttentionSpec& spec = shape.spec;
  const int64_t row = int64_t{spec.q_heads} * dim, token = or_dense(given_token, row), seq = or_dense(given_seq, spec.q_len * token);
  const int64_t rows = query_rows(shape);
  if (rows == 0) return 0;
  const int64_t last = !shape.q_lens.empty() ? (rows - 1) * token : (static_cast<int64_t>(shape.lens.size()) - 1) * seq + (spec.q_len - 1) * token;
  return static_cast<size_t>((last + row) * (bits_of(type) / 8));
}

}  // namespace

HostBytes::HostBytes(size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* memory = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorCode::io, "cannot reserve " + std::to_string(bytes) + " bytes of host address space");
  data_ = static_cast<char*>(memory);
}

HostBytes::~HostBytes() { munmap(data_, std::max<size_t>(bytes_, 1)); }

HostProblem::HostProblem(ProblemShape given)
    : shape_(completed(std::move(given))),
      rows_(query_rows(shape_)),
      k_(cache_bytes(shape_, shape_.spec.head_dim_k)),
      v_(one_cache() ? 0 : cache_bytes(shape_, shape_.spec.head_dim_v)),
      q_(rows_bytes(shape_, shape_.q_stride_seq, shape_.q_stride_token, shape_.spec.head_dim_k, shape_.spec.q_dtype)) {
  const AttentionSpec& spec = shape_.spec;
  params_.struct_size = sizeof(pt_decode_params);
  params_.version = PT_PARAMS_VERSION;
  set_strides();
  params_.q = q_.data();
  params_.k_cache = k_.data();
  params_.v_cache = one_cache() ? k_.data() + v_offset_bytes_ : v_.data();
  params_.batch = static_cast<int>(shape_.lens.size());
  // What a caller who believes his table would say: a row longer than its table is met by the kernel only.
  params_.max_len = static_cast<int>(std::clamp<int64_t>(*std::max_element(shape_.lens.begin(), shape_.lens.end()), 1,
                                                         std::max<int64_t>(1, int64_t{shape_.table_width} * spec.page_size)));
  params_.total_len = std::accumulate(shape_.lens.begin(), shape_.lens.end(), 0LL);
  params_.num_pages = shape_.num_pages;
  params_.scale = shape_.scale;
  params_.soft_cap = shape_.soft_cap;
  params_.sink_tokens = shape_.sink_tokens;
  params_.chunk = shape_.chunk;
  params_.tree_mask_size = shape_.tree_mask_size;
  if (spec.block_sparse) {
    params_.sparse_block_size = shape_.blocks.block_size;
    params_.sparse_vert_stride = shape_.blocks.vert_stride;
    params_.sparse_local_blocks = shape_.blocks.local_blocks;
    params_.sparse_head_step = shape_.blocks.head_step;
    params_.sparse_head_offset = shape_.blocks.head_offset;
    params_.sparse_kv_head_offset = shape_.blocks.kv_head_offset;
  }
  int64_t row = 0;
  for (size_t b = 0; b < shape_.lens.size(); ++b) {
    const int tokens = shape_.q_lens.empty() ? spec.q_len : shape_.q_lens[b];
    for (int i = 0; i < std::min(tokens, spec.q_len); ++i) owned_rows_.push_back(row + i);
    row += tokens;
  }

  if (shape_.poison && !shape_.sparse) {
    for (const HostBytes* memory : {&k_, &v_, &q_}) fill_poison(memory->data(), memory->size());
  }
  add_arrays();
  fill_tables();

  Random random(shape_.seed);
  fill_q([&](int, int, int) { return random.uniform(-2, 2); });
  fill_k([&](int64_t, int, int, int) { return random.uniform(-2, 2); });
  fill_v([&](int64_t, int, int, int) { return random.uniform(-2, 2); });
}

void HostProblem::set_strides() {
  const AttentionSpec& spec = shape_.spec;
  const Extent k = strides_of(shape_, spec.head_dim_k);
  const Extent v = strides_of(shape_, spec.head_dim_v);
  const int64_t element = bits_of(spec.kv_dtype) / 8;
  if (shape_.placement == Placement::interleaved) v_offset_bytes_ = k.page / 2 * element;
  if (shape_.placement == Placement::sliced) v_offset_bytes_ = spec.head_dim_k * element;
  params_.k_stride_page = k.page;
  params_.k_stride_token = k.token;
  params_.k_stride_head = k.head;
  params_.v_stride_page = v.page;
  params_.v_stride_token = v.token;
  params_.v_stride_head = v.head;
  const bool packed = !shape_.q_lens.empty();
  params_.q_stride_head = spec.head_dim_k;
  params_.q_stride_token = or_dense(shape_.q_stride_token, int64_t{spec.q_heads} * spec.head_dim_k);
  params_.q_stride_seq = packed ? kUnusedStride : or_dense(shape_.q_stride_seq, spec.q_len * params_.q_stride_token);
  params_.out_stride_head = spec.head_dim_v;
  params_.out_stride_token = or_dense(shape_.out_stride_token, int64_t{spec.q_heads} * spec.head_dim_v);
  params_.out_stride_seq = packed ? kUnusedStride : or_dense(shape_.out_stride_seq, spec.q_len * params_.out_stride_token);
  params_.block_table_stride = shape_.table_width + kTableGap;
  params_.block_table_width = shape_.table_width;
  params_.seq_lens_stride_seq = shape_.head_lens.empty() ? 1 : spec.kv_heads;
  params_.seq_lens_stride_head = shape_.head_lens.empty() ? 0 : 1;
}

template <class T>
void HostProblem::add_array(const char* name, const std::vector<T>& values, void (*bind)(pt_decode_params&, const char*)) {
  arrays_.push_back({name, std::make_unique<HostBytes>(values.size() * sizeof(T)), bind});
  if (!values.empty()) std::memcpy(arrays_.back().memory->data(), values.data(), values.size() * sizeof(T));
  bind(params_, arrays_.back().memory->data());
}

void HostProblem::add_arrays() {
  const AttentionSpec& spec = shape_.spec;
  add_array("block table", std::vector<int>(static_cast<size_t>(table_rows(shape_) * params_.block_table_stride)),
            [](pt_decode_params& p, const char* data) { p.block_tables = reinterpret_cast<const int*>(data); });
  table_ = reinterpret_cast<int*>(arrays_.back().memory->data());
  add_array("lengths", shape_.head_lens.empty() ? shape_.lens : shape_.head_lens, [](pt_decode_params& p, const char* data) { p.seq_lens = reinterpret_cast<const int*>(data); });
  lens_ = reinterpret_cast<int*>(arrays_.back().memory->data());
  if (!shape_.q_lens.empty()) {
    std::vector<int> starts = {0};
    for (const int tokens : shape_.q_lens) starts.push_back(starts.back() + tokens);
    add_array("cu_seqlens_q", starts, [](pt_decode_params& p, const char* data) { p.cu_seqlens_q = reinterpret_cast<const int*>(data); });
  }
  if (spec.window) add_array("windows", shape_.windows, [](pt_decode_params& p, const char* data) { p.window = reinterpret_cast<const int*>(data); });
  if (spec.sinks) add_array("sinks", shape_.sinks, [](pt_decode_params& p, const char* data) { p.sinks = reinterpret_cast<const float*>(data); });
  if (spec.alibi) add_array("slopes", shape_.alibi_slopes, [](pt_decode_params& p, const char* data) { p.alibi_slopes = reinterpret_cast<const float*>(data); });
  if (spec.mask == MaskKind::tree) add_array("tree mask", shape_.tree_mask, [](pt_decode_params& p, const char* data) { p.tree_mask = reinterpret_cast<const unsigned char*>(data); });
  if (spec.mask == MaskKind::offset) add_array("mask offsets", shape_.mask_offset, [](pt_decode_params& p, const char* data) { p.mask_offset = reinterpret_cast<const int*>(data); });
}

void HostProblem::fill_tables() {
  const AttentionSpec& spec = shape_.spec;
  Random random(shape_.seed ^ 0x7AB1E5ULL);
  const auto shuffled = [&] {
    std::vector<int> ids(static_cast<size_t>(shape_.num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    return ids;
  };
  // Heads share a heap, unless each has one of its own: there equal ids are different memory.
  const int heads = spec.headwise ? spec.kv_heads : 1;
  const bool own_heaps = spec.headwise && !flat() && shape_.page_ids.empty();
  std::vector<std::vector<int>> ids;
  for (int heap = 0; heap < (own_heaps ? heads : 1); ++heap) ids.push_back(shape_.page_ids.empty() ? shuffled() : shape_.page_ids);
  std::vector<size_t> next(ids.size(), 0);

  // What stands where no kernel may look: absurd ids, and ids that would only just be wrong.
  const int garbage[] = {INT_MIN, INT_MAX, shape_.num_pages, 0x40000000, shape_.num_pages + 7};
  const auto entries = static_cast<size_t>(table_rows(shape_) * params_.block_table_stride);
  for (size_t i = 0; i < entries; ++i) table_[i] = shape_.poison ? garbage[i % std::size(garbage)] : 0;

  std::map<std::pair<int, int>, size_t> index_of;
  const auto use = [&](int id, int head, int64_t first, int tokens) {
    const auto [at, is_new] = index_of.emplace(std::pair{id, head}, used_.size());
    if (is_new) {
      used_.push_back({id, head, first, tokens});
    } else {
      used_[at->second].tokens = std::max(used_[at->second].tokens, tokens);
    }
  };
  std::vector<int> shared;
  for (int b = 0; b < params_.batch; ++b) {
    for (int row_head = 0; row_head < heads; ++row_head) {
      // The KV heads that share this row.
      const int head_begin = spec.headwise ? row_head : 0, head_end = spec.headwise ? row_head + 1 : spec.kv_heads;
      std::vector<Visibility> seen;
      for (int h = head_begin; h < head_end; ++h) seen.emplace_back(spec, params_, read_host, b, h);
      int* row = table_ + (int64_t{b} * heads + row_head) * params_.block_table_stride;
      for (int slot = 0; slot < slots_of(shape_, b, row_head); ++slot) {
        int id = 0;
        if (slot < shape_.shared_pages && slot < static_cast<int>(shared.size())) {
          id = shared[static_cast<size_t>(slot)];
        } else {
          const size_t heap = own_heaps ? static_cast<size_t>(row_head) : 0;
          id = ids[heap][next[heap]++];
          if (slot < shape_.shared_pages) shared.push_back(id);
        }
        const int64_t first = int64_t{slot} * spec.page_size;
        const auto needed_by = [&](int h) { return seen[static_cast<size_t>(h - head_begin)].needs(first, first + spec.page_size); };
        bool needed = false;
        for (int h = head_begin; h < head_end && !needed; ++h) needed = needed_by(h);
        if (!needed) {
          const int kind = shape_.unseen == Unseen::mixed ? random.below(3) : shape_.unseen == Unseen::recycled ? 0 : 1;
          if (kind == 0) row[slot] = -1;
          if (kind == 1) row[slot] = id;
          continue;
        }
        if (shape_.absent > 0 && random.uniform(0, 1) < shape_.absent) {
          row[slot] = -1;
          continue;
        }
        row[slot] = id;
        for (int h = head_begin; h < head_end; ++h)
          if (needed_by(h)) use(id, h, first, static_cast<int>(std::min<int64_t>(spec.page_size, length_of(shape_, b, h) - first)));
      }
    }
  }
}

void HostProblem::fill_cache(void* base, DType type, int dim, long long stride_page, long long stride_token, long long stride_head,
                             const KvValue& value) {
  for (const UsedPage& page : used_) {
    for (int t = 0; t < page.tokens; ++t) {
      const int64_t at = page.id * stride_page + t * stride_token + (flat() ? 0 : page.head * stride_head);
      for (int d = 0; d < dim; ++d) store_element(type, base, at + d, value(page.first_position + t, page.id, page.head, d));
    }
  }
}

void HostProblem::fill_k(const KvValue& value) {
  fill_cache(k_.data(), shape_.spec.kv_dtype, shape_.spec.head_dim_k, params_.k_stride_page, params_.k_stride_token, params_.k_stride_head, value);
}

void HostProblem::fill_v(const KvValue& value) {
  char* base = one_cache() ? k_.data() + v_offset_bytes_ : v_.data();
  fill_cache(base, shape_.spec.kv_dtype, shape_.spec.head_dim_v, params_.v_stride_page, params_.v_stride_token, params_.v_stride_head, value);
}

void HostProblem::fill_q(const std::function<double(int, int, int)>& value) {
  for (const int64_t row : owned_rows_) {
    for (int h = 0; h < shape_.spec.q_heads; ++h) {
      for (int d = 0; d < shape_.spec.head_dim_k; ++d) {
        store_element(shape_.spec.q_dtype, q_.data(), q_offset(row) + h * params_.q_stride_head + d, value(static_cast<int>(row), h, d));
      }
    }
  }
}

int64_t HostProblem::row_offset(int64_t row, int64_t stride_seq, int64_t stride_token) const {
  if (!shape_.q_lens.empty()) return row * stride_token;
  return row / shape_.spec.q_len * stride_seq + row % shape_.spec.q_len * stride_token;
}

int& HostProblem::table_entry(int sequence, int slot) { return table_[sequence * params_.block_table_stride + slot]; }
int& HostProblem::table_entry(int sequence, int kv_head, int slot) { return table_[(int64_t{sequence} * shape_.spec.kv_heads + kv_head) * params_.block_table_stride + slot]; }
int& HostProblem::length(int sequence) { return lens_[sequence]; }
int& HostProblem::length(int sequence, int kv_head) { return lens_[int64_t{sequence} * params_.seq_lens_stride_seq + int64_t{kv_head} * params_.seq_lens_stride_head]; }

size_t HostProblem::out_bytes() const { return rows_bytes(shape_, shape_.out_stride_seq, shape_.out_stride_token, shape_.spec.head_dim_v, shape_.spec.out_dtype); }

}  // namespace pagetune
