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

namespace pagetune {
namespace {

int slots_of(const ProblemShape& shape, size_t sequence) {
  const int pages = (shape.lens[sequence] + shape.spec.page_size - 1) / shape.spec.page_size;
  return shape.table_width > 0 ? std::min(pages, shape.table_width) : pages;
}

int needed_slots(const ProblemShape& shape) {
  int sum = 0;
  for (size_t b = 0; b < shape.lens.size(); ++b) sum += slots_of(shape, b);
  return sum;
}

ProblemShape completed(ProblemShape shape) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::invalid_argument, "problem shape: " + why); };
  if (shape.lens.empty()) refuse("no sequence");
  for (int len : shape.lens) {
    if (len < 0) refuse("length " + std::to_string(len) + " is negative");
  }
  if (shape.placement != Placement::contiguous && shape.page_stride != 0) refuse("page_stride is for the contiguous placement only");
  if (shape.placement == Placement::sliced && shape.spec.head_dim_k != shape.spec.head_dim_v) refuse("a sliced cache needs head_dim_k == head_dim_v");
  if (shape.placement == Placement::interleaved && shape.spec.head_dim_k != shape.spec.head_dim_v) refuse("an interleaved cache needs head_dim_k == head_dim_v");
  const int needed = needed_slots(shape);
  if (!shape.page_ids.empty() && static_cast<int>(shape.page_ids.size()) != needed) {
    refuse(std::to_string(shape.page_ids.size()) + " page ids for " + std::to_string(needed) + " table entries");
  }
  if (shape.num_pages == 0) {
    shape.num_pages = shape.page_ids.empty() ? needed + 3 : 1 + *std::max_element(shape.page_ids.begin(), shape.page_ids.end());
  }
  if (shape.page_ids.empty() && shape.num_pages < needed) refuse(std::to_string(shape.num_pages) + " pages for " + std::to_string(needed) + " table entries");
  if (shape.table_width == 0) {
    const int longest = *std::max_element(shape.lens.begin(), shape.lens.end());
    shape.table_width = (longest + shape.spec.page_size - 1) / shape.spec.page_size + 2;
  }
  return shape;
}

// Gaps of the padded placement, in elements: multiples of 8, so that 16-byte accesses stay aligned, and not multiples of one another.
constexpr int64_t kHeadGap = 8, kTokenGap = 24, kPageGap = 40;

// Entries of a table row: a few beyond its width, which belong to nobody.
constexpr int kTableGap = 5;

}  // namespace

HostBytes::HostBytes(size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* memory = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorCode::io, "cannot reserve " + std::to_string(bytes) + " bytes of host address space");
  data_ = static_cast<char*>(memory);
}

HostBytes::~HostBytes() { munmap(data_, std::max<size_t>(bytes_, 1)); }

const char* name_of(Placement placement) {
  switch (placement) {
    case Placement::contiguous: return "contiguous";
    case Placement::padded: return "padded";
    case Placement::interleaved: return "interleaved";
    case Placement::sliced: return "sliced";
  }
  return "?";
}

namespace {

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
  if (spec.layout == Layout::nhd) {
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

int64_t dense_or(int64_t given, int64_t dense) { return given != 0 ? given : dense; }

size_t strided_bytes(size_t batch, int64_t stride, int64_t row, DType type) {
  return static_cast<size_t>((static_cast<int64_t>(batch - 1) * stride + row) * (bits_of(type) / 8));
}

}  // namespace

HostProblem::HostProblem(ProblemShape given)
    : shape_(completed(std::move(given))),
      k_(static_cast<size_t>(strides_of(shape_, shape_.spec.head_dim_k).elements) * (bits_of(shape_.spec.kv_dtype) / 8)),
      v_(one_cache() ? 0 : static_cast<size_t>(strides_of(shape_, shape_.spec.head_dim_v).elements) * (bits_of(shape_.spec.kv_dtype) / 8)),
      q_(strided_bytes(shape_.lens.size(), dense_or(shape_.q_stride_seq, int64_t{shape_.spec.q_heads} * shape_.spec.head_dim_k),
                       int64_t{shape_.spec.q_heads} * shape_.spec.head_dim_k, shape_.spec.q_dtype)),
      tables_(shape_.lens.size() * (static_cast<size_t>(shape_.table_width) + kTableGap) * sizeof(int)),
      lens_(shape_.lens.size() * sizeof(int)) {
  const AttentionSpec& spec = shape_.spec;
  const Extent k = strides_of(shape_, spec.head_dim_k);
  const Extent v = strides_of(shape_, spec.head_dim_v);
  const int64_t element = bits_of(spec.kv_dtype) / 8;
  if (shape_.placement == Placement::interleaved) v_offset_bytes_ = k.page / 2 * element;
  if (shape_.placement == Placement::sliced) v_offset_bytes_ = spec.head_dim_k * element;

  params_.struct_size = sizeof(pt_decode_params);
  params_.version = PT_PARAMS_VERSION;
  params_.q = q_.data();
  params_.k_cache = k_.data();
  params_.v_cache = one_cache() ? k_.data() + v_offset_bytes_ : v_.data();
  params_.block_tables = reinterpret_cast<const int*>(tables_.data());
  params_.seq_lens = reinterpret_cast<const int*>(lens_.data());
  params_.q_stride_head = spec.head_dim_k;
  params_.q_stride_seq = dense_or(shape_.q_stride_seq, int64_t{spec.q_heads} * spec.head_dim_k);
  params_.out_stride_head = spec.head_dim_v;
  params_.out_stride_seq = dense_or(shape_.out_stride_seq, int64_t{spec.q_heads} * spec.head_dim_v);
  params_.k_stride_page = k.page;
  params_.k_stride_token = k.token;
  params_.k_stride_head = k.head;
  params_.v_stride_page = v.page;
  params_.v_stride_token = v.token;
  params_.v_stride_head = v.head;
  params_.block_table_stride = shape_.table_width + kTableGap;
  params_.block_table_width = shape_.table_width;
  params_.batch = static_cast<int>(shape_.lens.size());
  // What a caller who believes his table would say: a row longer than its table is met by the kernel only.
  params_.max_len = static_cast<int>(std::clamp<int64_t>(*std::max_element(shape_.lens.begin(), shape_.lens.end()), 1,
                                                         std::max<int64_t>(1, int64_t{shape_.table_width} * spec.page_size)));
  params_.total_len = std::accumulate(shape_.lens.begin(), shape_.lens.end(), 0LL);
  params_.num_pages = shape_.num_pages;
  params_.scale = shape_.scale;
  std::memcpy(lens_.data(), shape_.lens.data(), shape_.lens.size() * sizeof(int));

  if (shape_.poison && !shape_.sparse) {
    for (const HostBytes* memory : {&k_, &v_, &q_}) fill_poison(memory->data(), memory->size());
  }
  fill_tables();

  Random random(shape_.seed);
  fill_q([&](int, int, int) { return random.uniform(-2, 2); });
  fill_k([&](int64_t, int, int, int) { return random.uniform(-2, 2); });
  fill_v([&](int64_t, int, int, int) { return random.uniform(-2, 2); });
}

void HostProblem::fill_tables() {
  Random random(shape_.seed ^ 0x7AB1E5ULL);
  std::vector<int> ids = shape_.page_ids;
  if (ids.empty()) {
    ids.resize(static_cast<size_t>(shape_.num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[static_cast<size_t>(random.below(static_cast<int>(i)))]);
  }

  // What stands where no kernel may look: absurd ids, and ids that would only just be wrong.
  const int garbage[] = {INT_MIN, INT_MAX, shape_.num_pages, 0x40000000, shape_.num_pages + 7};
  int* table = reinterpret_cast<int*>(tables_.data());
  for (size_t i = 0; i < tables_.size() / sizeof(int); ++i) table[i] = shape_.poison ? garbage[i % std::size(garbage)] : 0;

  std::map<int, size_t> index_of;
  const int batch = static_cast<int>(shape_.lens.size());
  std::vector<int> shared;
  size_t next = 0;
  for (int b = 0; b < batch; ++b) {
    for (int slot = 0; slot < slots_of(shape_, b); ++slot) {
      int id = 0;
      if (slot < shape_.shared_pages && slot < static_cast<int>(shared.size())) {
        id = shared[slot];
      } else {
        id = ids[next++];
        if (slot < shape_.shared_pages) shared.push_back(id);
      }
      if (shape_.absent > 0 && random.uniform(0, 1) < shape_.absent) {
        table_entry(b, slot) = -1;
        continue;
      }
      table_entry(b, slot) = id;
      const int64_t first = int64_t{slot} * shape_.spec.page_size;
      const int tokens = static_cast<int>(std::min<int64_t>(shape_.spec.page_size, shape_.lens[b] - first));
      const auto [at, is_new] = index_of.emplace(id, used_.size());
      if (is_new) {
        used_.push_back({id, first, tokens});
      } else {
        used_[at->second].tokens = std::max(used_[at->second].tokens, tokens);
      }
    }
  }
}

void HostProblem::fill_cache(void* base, DType type, int dim, long long stride_page, long long stride_token, long long stride_head,
                             const KvValue& value) {
  for (const UsedPage& page : used_) {
    for (int t = 0; t < page.tokens; ++t) {
      for (int h = 0; h < shape_.spec.kv_heads; ++h) {
        const int64_t at = page.id * stride_page + t * stride_token + h * stride_head;
        for (int d = 0; d < dim; ++d) store_element(type, base, at + d, value(page.first_position + t, page.id, h, d));
      }
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
  for (int b = 0; b < params_.batch; ++b) {
    for (int h = 0; h < shape_.spec.q_heads; ++h) {
      for (int d = 0; d < shape_.spec.head_dim_k; ++d) {
        store_element(shape_.spec.q_dtype, q_.data(), b * params_.q_stride_seq + h * params_.q_stride_head + d, value(b, h, d));
      }
    }
  }
}

int& HostProblem::table_entry(int sequence, int slot) {
  return reinterpret_cast<int*>(tables_.data())[sequence * params_.block_table_stride + slot];
}

int& HostProblem::length(int sequence) { return reinterpret_cast<int*>(lens_.data())[sequence]; }

size_t HostProblem::out_bytes() const {
  return strided_bytes(shape_.lens.size(), params_.out_stride_seq, int64_t{shape_.spec.q_heads} * shape_.spec.head_dim_v, shape_.spec.out_dtype);
}

}  // namespace pagetune
