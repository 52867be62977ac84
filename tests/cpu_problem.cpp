#include "cpu_problem.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "runtime/cpu_provider.hpp"

namespace pagetune::test {
namespace {

constexpr unsigned char kFront = 0xA5;
constexpr double kLog2E = 1.4426950408889634;
constexpr int kGap = 8;  // elements of poison between one row and the next

// Values with few bits, so that each dtype holds them exactly.
void put(int dtype, unsigned char* to, int eighths) {
  const float value = static_cast<float>(eighths) / 64.0f;
  if (dtype == 2) {
    std::memcpy(to, &value, 4);
    return;
  }
  uint16_t bits = 0;
  if (dtype == 0) {
    bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  } else if (eighths != 0) {
    const int magnitude = std::abs(eighths);
    const int top = std::bit_width(static_cast<unsigned>(magnitude)) - 1;
    bits = static_cast<uint16_t>((eighths < 0 ? 0x8000 : 0) | (top - 6 + 15) << 10 | ((magnitude << (10 - top)) & 1023));
  }
  std::memcpy(to, &bits, 2);
}

std::string features_text(const Shape& shape) {
  std::string text;
  const auto list = [&text](const char* name, const std::vector<int>& values) {
    if (values.empty()) return;
    text += std::string(" ") + name;
    for (int value : values) text += " " + std::to_string(value);
  };
  const auto number = [&text](const char* name, auto value) {
    if (value != 0) text += std::string(" ") + name + " " + std::to_string(value);
  };
  number("dim_v", shape.dim_v);
  if (shape.out_dtype >= 0) text += " out_dtype " + std::to_string(shape.out_dtype);
  text += " q_len " + std::to_string(shape.q_len);
  list("tokens", shape.tokens);
  if (shape.headwise) text += shape.flat ? " headwise flat" : " headwise";
  if (shape.head_lens) text += " head_lens";
  list("windows", shape.windows);
  number("chunk", shape.chunk);
  number("sink_tokens", shape.sink_tokens);
  if (shape.sinks) text += " sinks";
  number("soft_cap", shape.soft_cap);
  if (shape.alibi) text += " alibi";
  number("mask", shape.mask);
  if (shape.sparse_block != 0)
    list("sparse", {shape.sparse_block, shape.vert_stride, shape.local_blocks, shape.head_step, shape.head_offset, shape.kv_head_offset});
  if (shape.checked) text += " checked";
  return text;
}

// Well mixed: a value must not repeat where a kernel could take one token, head or column for another.
uint32_t mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}

template <class T> T* array(const std::unique_ptr<EdgeBytes>& memory) { return memory ? reinterpret_cast<T*>(memory->data()) : nullptr; }

}  // namespace

std::string Shape::text() const {
  std::string lengths;
  for (int len : lens) lengths += " " + std::to_string(len);
  return "kv_heads " + std::to_string(kv_heads) + " group " + std::to_string(group) + " dim " + std::to_string(dim) + " page " +
         std::to_string(page) + " dtype " + std::to_string(dtype) + (hnd ? " hnd" : " nhd") + " V" + std::to_string(variant) + " tile " +
         std::to_string(tile) + " bits " + std::to_string(bits) + " lens" + lengths + features_text(*this);
}

KernelSource source_of(const Shape& shape, const Target& target) {
  KernelSource source;
  source.backend = Backend::cpu;
  source.arch = target.arch;
  source.cpu_features = target.cpu_features;
  source.constants = {{"spec.q_heads", shape.q_heads()},
                      {"spec.kv_heads", shape.kv_heads},
                      {"spec.group_size", shape.group},
                      {"spec.q_len", shape.q_len},
                      {"spec.head_dim", shape.dim},
                      {"spec.head_dim_v", shape.value_dim()},
                      {"spec.page_size", shape.page},
                      {"spec.dtype", shape.dtype},
                      {"spec.out_dtype", shape.output_type()},
                      {"spec.headwise", shape.headwise},
                      {"spec.flat_map", shape.flat},
                      {"spec.window", !shape.windows.empty()},
                      {"spec.chunk", shape.chunk != 0},
                      {"spec.sink_tokens", shape.sink_tokens != 0},
                      {"spec.sinks", shape.sinks},
                      {"spec.soft_cap", shape.soft_cap != 0},
                      {"spec.alibi", shape.alibi},
                      {"spec.mask", shape.mask},
                      {"spec.block_sparse", shape.sparse_block != 0},
                      {"spec.lse", shape.lse},
                      {"spec.checked", shape.checked},
                      {"config.variant", shape.variant},
                      {"config.tile_kv", shape.tile},
                      {"config.vector_bits", shape.bits != 0 ? shape.bits : target.vector_bits}};
  source.entries = {"pt_decode"};
  if (shape.variant == 2) source.entries.push_back("pt_merge");
  source.options = {"-O3"};
  return source;
}

Device& device() {
  static const std::shared_ptr<Device> opened = open_cpu_device();
  return *opened;
}

std::shared_ptr<const Module> module_of(Device& device, const Shape& shape) {
  static std::map<std::string, Binary> binaries;
  const KernelSource source = source_of(shape, device.target());
  const std::string key = binary_key(source, device.compiler().identity());
  auto found = binaries.find(key);
  if (found == binaries.end()) found = binaries.emplace(key, device.compiler().compile(source)).first;
  return device.load(found->second);
}

EdgeBytes::EdgeBytes(size_t bytes) : size_(bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t body = (bytes + page - 1) / page * page + page;
  map_bytes_ = body + page;
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::runtime_error("mmap failed");
  map_ = static_cast<unsigned char*>(map);
  mprotect(map_ + body, page, PROT_NONE);
  data_ = map_ + body - bytes;
  std::memset(map_, kFront, body - bytes);
}

EdgeBytes::~EdgeBytes() { munmap(map_, map_bytes_); }

bool EdgeBytes::front_intact() const {
  return std::all_of(map_, data_, [](unsigned char byte) { return byte == kFront; });
}

// Every page that some head sees something of, plus three that nobody does.
Problem::Problem(const Shape& shape, uint32_t seed, int max_splits) : shape_(shape), max_splits_(max_splits) {
  std::mt19937 random(seed);
  const int longest = *std::max_element(shape.lens.begin(), shape.lens.end());
  width_ = longest / shape.page + 2;
  table_stride_ = width_ + 3;
  for (int b = 0; b < shape.batch(); ++b) rows_ += shape.given_tokens(b);
  int pages = 3;
  for (int len : shape.lens) pages += (len + shape.page - 1) / shape.page * (shape.flat ? shape.kv_heads : 1);
  params_.max_len = longest;
  set_strides();
  allocate(pages);
  fill_features(random);
  fill_cache(random);
}

void Problem::set_strides() {
  const Shape& shape = shape_;
  params_.struct_size = sizeof params_;
  params_.version = PT_PARAMS_VERSION;
  const auto cache = [&shape](int dim, long long& page, long long& token, long long& head) {
    const long long row = dim + kGap;
    token = shape.hnd || shape.flat ? row : row * shape.kv_heads;
    head = shape.flat ? 1ll << 40 : shape.hnd ? row * shape.page : row;  // not used by flat ids
    page = row * shape.page * (shape.flat ? 1 : shape.kv_heads);
  };
  cache(shape.dim, params_.k_stride_page, params_.k_stride_token, params_.k_stride_head);
  cache(shape.value_dim(), params_.v_stride_page, params_.v_stride_token, params_.v_stride_head);
  params_.v_stride_page += 64;  // K and V need not agree
  params_.q_stride_head = shape.dim + 8;
  params_.q_stride_token = params_.q_stride_head * shape.q_heads() + 16;
  params_.out_stride_head = shape.value_dim() + 16;
  params_.out_stride_token = params_.out_stride_head * shape.q_heads() + 8;
  // With cu_seqlens_q the sequence stride means nothing.
  params_.q_stride_seq = shape.tokens.empty() ? params_.q_stride_token * shape.q_len + 8 : 1ll << 40;
  params_.out_stride_seq = shape.tokens.empty() ? params_.out_stride_token * shape.q_len + 24 : 1ll << 40;
  params_.block_table_stride = table_stride_;
  params_.block_table_width = width_;
  params_.batch = shape.batch();
  params_.num_pages = 1 << 23;  // far beyond the memory: an entry that may not be read can look like a page, and ends the program
  params_.seq_lens_stride_seq = shape.head_lens ? shape.kv_heads : 1;
  params_.seq_lens_stride_head = shape.head_lens ? 1 : 0;
  params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
  params_.scale_log2 = static_cast<float>(params_.scale * kLog2E);
}

void Problem::allocate(int pages) {
  const Shape& shape = shape_;
  const size_t bytes = static_cast<size_t>(shape.bytes());
  const auto make = [](long long size) { return std::make_unique<EdgeBytes>(static_cast<size_t>(std::max(size, 0ll))); };
  // The last page's last row ends at unmapped memory, so the gap after it is not allocated.
  const long long heads = shape.flat ? 1 : shape.kv_heads;
  k_ = make(shape.bytes() * (params_.k_stride_page * pages - kGap));
  v_ = make(shape.bytes() * (params_.v_stride_page * (pages - 1) + (shape.value_dim() + kGap) * heads * shape.page - kGap));
  const auto rows_end = [&](long long stride_seq, long long stride_token, long long stride_head, int dim) {
    const long long before = shape.tokens.empty() ? stride_seq * (shape.batch() - 1) + stride_token * (shape.q_len - 1) : stride_token * (rows_ - 1);
    return rows_ == 0 ? 0 : before + stride_head * (shape.q_heads() - 1) + dim;
  };
  q_ = make(shape.bytes() * rows_end(params_.q_stride_seq, params_.q_stride_token, params_.q_stride_head, shape.dim));
  out_ = make(shape.out_bytes() * rows_end(params_.out_stride_seq, params_.out_stride_token, params_.out_stride_head, shape.value_dim()));
  lse_ = make(4ll * rows_ * shape.q_heads());
  const long long table_rows = shape.headwise ? shape.batch() * shape.kv_heads : shape.batch();
  tables_ = make(4 * (table_stride_ * table_rows - 3));
  lens_ = make(4ll * shape.batch() * (shape.head_lens ? shape.kv_heads : 1));
  const long long shares = static_cast<long long>(shape.batch()) * shape.q_len * shape.q_heads() * max_splits_;
  partial_out_ = make(4 * shares * shape.value_dim());
  partial_lse_ = make(4 * shares);
  if (!shape.tokens.empty()) cu_ = make(4ll * (shape.batch() + 1));
  if (!shape.windows.empty()) windows_ = make(4ll * shape.kv_heads);
  if (shape.sinks) sinks_ = make(4ll * shape.q_heads());
  if (shape.alibi) slopes_ = make(4ll * shape.q_heads());
  params_.tree_mask_size = shape.mask == 1 ? shape.q_len + 2 : 0;
  if (shape.mask == 1) tree_ = make(static_cast<long long>(shape.batch()) * params_.tree_mask_size * params_.tree_mask_size);
  if (shape.mask == 2) offsets_ = make(8ll * rows_);
  k_->fill(0xFF);
  v_->fill(0xFF);
  q_->fill(0xFF);
  k_live_.resize(k_->size() / bytes);
  v_live_.resize(v_->size() / bytes);
  params_.q = q_->data();
  params_.k_cache = k_->data();
  params_.v_cache = v_->data();
  params_.out = out_->data();
  params_.lse = shape.lse ? array<float>(lse_) : nullptr;
  params_.block_tables = array<int>(tables_);
  params_.seq_lens = array<int>(lens_);
  params_.partial_out = array<float>(partial_out_);
  params_.partial_lse = array<float>(partial_lse_);
  params_.cu_seqlens_q = array<int>(cu_);
  params_.window = array<int>(windows_);
  params_.sinks = array<float>(sinks_);
  params_.alibi_slopes = array<float>(slopes_);
  params_.tree_mask = array<unsigned char>(tree_);
  params_.mask_offset = array<int>(offsets_);
  params_.chunk = shape.chunk;
  params_.sink_tokens = shape.sink_tokens;
  params_.soft_cap = shape.soft_cap;
  params_.sparse_block_size = shape.sparse_block;
  params_.sparse_vert_stride = shape.vert_stride;
  params_.sparse_local_blocks = shape.local_blocks;
  params_.sparse_head_step = shape.head_step;
  params_.sparse_head_offset = shape.head_offset;
  params_.sparse_kv_head_offset = shape.kv_head_offset;
  params_.error = shape.checked ? &error_ : nullptr;
}

void Problem::fill_features(std::mt19937& random) {
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int b = 0; b < shape_.batch(); ++b) {
    const int len = shape_.lens[static_cast<size_t>(b)];
    if (!shape_.head_lens) length(b) = len;
    for (int h = 0; shape_.head_lens && h < shape_.kv_heads; ++h) length(b * shape_.kv_heads + h) = std::max(0, len - h * pick(0, 9));
    if (cu_) array<int>(cu_)[b + 1] = array<int>(cu_)[b] + shape_.given_tokens(b);
  }
  for (size_t h = 0; h < shape_.windows.size(); ++h) array<int>(windows_)[h] = shape_.windows[h];
  for (int h = 0; h < shape_.q_heads(); ++h) {
    if (sinks_) array<float>(sinks_)[h] = static_cast<float>(pick(-64, 64)) / 8.0f;  // above and below all logits
    if (slopes_) array<float>(slopes_)[h] = std::ldexp(1.0f, -1 - h % 6);
  }
  if (tree_)
    for (size_t i = 0; i < tree_->size(); ++i) tree_->data()[i] = static_cast<unsigned char>(pick(0, 2) == 0 ? pick(1, 255) : 0);
  for (int b = 0; offsets_ && b < shape_.batch(); ++b)
    for (int i = 0; i < shape_.given_tokens(b); ++i) {
      int* pair = array<int>(offsets_) + 2 * (first_row(b) + i);
      const int len = shape_.lens[static_cast<size_t>(b)];
      pair[0] = pick(-3, len);
      pair[1] = pick(pair[0] - 1, len + 9);
    }
}

void Problem::fill_row(EdgeBytes& memory, std::vector<bool>* live, const unsigned char* at, int dim, uint32_t seed) {
  for (int d = 0; d < dim; ++d) {
    const size_t offset = static_cast<size_t>(at - memory.data()) + static_cast<size_t>(d * shape_.bytes());
    put(shape_.dtype, memory.data() + offset, static_cast<int>(mixed(seed + static_cast<uint32_t>(d)) % 256) - 128);
    if (live != nullptr) (*live)[offset / static_cast<size_t>(shape_.bytes())] = true;
  }
}

// Values follow from (sequence, head, token, column) alone, so that problems that differ only in their tables hold the same numbers.
// Head-wise rows take their pages each in an order of their own.
void Problem::fill_cache(std::mt19937& random) {
  const Shape& shape = shape_;
  const int pages = static_cast<int>(static_cast<long long>(k_->size()) / shape.bytes() / params_.k_stride_page) + 1;
  const auto seed_of = [](int kind, int sequence, int head, int token) {
    return mixed(mixed(mixed(static_cast<uint32_t>(kind * 1024 + sequence)) + static_cast<uint32_t>(head)) + static_cast<uint32_t>(token));
  };
  const size_t pools = shape.headwise && !shape.flat ? static_cast<size_t>(shape.kv_heads) : 1;
  std::vector<std::vector<int>> ids(pools, std::vector<int>(static_cast<size_t>(pages)));
  std::vector<size_t> next(pools);
  for (auto& pool : ids) {
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), random);
    // The page that ends at unmapped memory is always in use, where there is one.
    std::iter_swap(pool.begin(), std::find(pool.begin(), pool.end(), pages - 1));
  }
  const int heads_per_row = shape.headwise ? 1 : shape.kv_heads;
  for (int row = 0; row < (shape.headwise ? shape.batch() * shape.kv_heads : shape.batch()); ++row) {
    const int sequence = shape.headwise ? row / shape.kv_heads : row;
    const int first_head = shape.headwise ? row % shape.kv_heads : 0;
    const size_t pool = pools == 1 ? 0 : static_cast<size_t>(first_head);
    for (int slot = 0; slot < width_; ++slot) {
      constexpr int kForbidden[] = {std::numeric_limits<int>::max(), 1 << 22, std::numeric_limits<int>::min()};
      int& id = table(row, slot) = kForbidden[slot % 3];
      for (int t = 0; t < shape.page; ++t)
        for (int h = first_head; h < first_head + heads_per_row; ++h) {
          const int key = slot * shape.page + t;
          if (!anyone_sees(sequence, h, key)) continue;
          if (id == kForbidden[slot % 3]) id = ids[pool][next[pool]++];
          fill_row(*k_, &k_live_, k_row(id, t, h), shape.dim, seed_of(0, sequence, h, key));
          fill_row(*v_, &v_live_, v_row(id, t, h), shape.value_dim(), seed_of(1, sequence, h, key));
        }
    }
  }
  for (int b = 0; b < shape.batch(); ++b)
    for (int i = 0; i < shape.given_tokens(b); ++i)
      for (int h = 0; h < shape.q_heads(); ++h)
        fill_row(*q_, nullptr, q_row(b, h, i), shape.dim, seed_of(2, b, h, i));
}

int Problem::first_row(int sequence) const { return cu_ ? params_.cu_seqlens_q[sequence] : sequence * shape_.q_len; }
int Problem::tokens(int sequence) const { return std::min(shape_.given_tokens(sequence), shape_.q_len); }
int Problem::len(int sequence, int kv_head) const {
  const int given = params_.seq_lens[shape_.head_lens ? sequence * shape_.kv_heads + kv_head : sequence];
  return std::clamp(given, 0, width_ * shape_.page);
}

const unsigned char* Problem::q_row(int sequence, int head, int token) const {
  const long long start = cu_ ? first_row(sequence) * params_.q_stride_token : sequence * params_.q_stride_seq;
  return q_->data() + shape_.bytes() * (start + token * params_.q_stride_token + head * params_.q_stride_head);
}
long long Problem::out_element(int sequence, int head, int token) const {
  const long long start = cu_ ? first_row(sequence) * params_.out_stride_token : sequence * params_.out_stride_seq;
  return start + token * params_.out_stride_token + head * params_.out_stride_head;
}
const unsigned char* Problem::k_row(int page, int token, int head) const {
  return k_->data() + shape_.bytes() * (page * params_.k_stride_page + token * params_.k_stride_token + (shape_.flat ? 0 : head * params_.k_stride_head));
}
const unsigned char* Problem::v_row(int page, int token, int head) const {
  return v_->data() + shape_.bytes() * (page * params_.v_stride_page + token * params_.v_stride_token + (shape_.flat ? 0 : head * params_.v_stride_head));
}

void Problem::set_poison(int byte) {
  const size_t bytes = static_cast<size_t>(shape_.bytes());
  for (auto [memory, live] : {std::pair{k_.get(), &k_live_}, std::pair{v_.get(), &v_live_}})
    for (size_t i = 0; i < live->size(); ++i)
      if (!(*live)[i]) std::memset(memory->data() + i * bytes, byte, bytes);
}

void Problem::scale_queries(float factor) {
  for (size_t i = 0; i < q_->size() / 4; ++i) {
    float value = 0;
    std::memcpy(&value, q_->data() + i * 4, 4);
    value *= factor;
    std::memcpy(q_->data() + i * 4, &value, 4);
  }
}

void Problem::run(const Module& module, int num_splits) {
  out_->fill(0xFF);
  lse_->fill(0xFF);
  partial_out_->fill(0xFF);
  partial_lse_->fill(0xFF);
  params_.num_splits = num_splits;
  module.launch(params_, nullptr);
}

double Problem::out(int sequence, int head, int dim, int token) const {
  return element(shape_.output_type(), out_->data() + shape_.out_bytes() * (out_element(sequence, head, token) + dim));
}
float Problem::lse(int sequence, int head, int token) const {
  float value = 0;
  std::memcpy(&value, lse_->data() + 4 * ((first_row(sequence) + token) * shape_.q_heads() + head), 4);
  return value;
}
float Problem::partial_lse(int sequence, int head, int split, int token) const {
  float value = 0;
  std::memcpy(&value, partial_lse_->data() + 4 * (((sequence * shape_.q_len + token) * shape_.q_heads() + head) * params_.num_splits + split), 4);
  return value;
}

}  // namespace pagetune::test
