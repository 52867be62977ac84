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

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  return bits >> 15 != 0 ? -value : value;
}

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

}  // namespace

double element(int dtype, const unsigned char* from) {
  if (dtype == 2) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return dtype == 1 ? half(bits) : static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

std::string Shape::text() const {
  std::string lengths;
  for (int len : lens) lengths += " " + std::to_string(len);
  return "kv_heads " + std::to_string(kv_heads) + " group " + std::to_string(group) + " dim " + std::to_string(dim) + " page " +
         std::to_string(page) + " dtype " + std::to_string(dtype) + (hnd ? " hnd" : " nhd") + " V" + std::to_string(variant) + " tile " +
         std::to_string(tile) + " bits " + std::to_string(bits) + " lens" + lengths;
}

KernelSource source_of(const Shape& shape, const Target& target) {
  KernelSource source;
  source.backend = Backend::cpu;
  source.arch = target.arch;
  source.cpu_features = target.cpu_features;
  source.constants = {{"spec.q_heads", shape.q_heads()},
                      {"spec.kv_heads", shape.kv_heads},
                      {"spec.group_size", shape.group},
                      {"spec.head_dim", shape.dim},
                      {"spec.page_size", shape.page},
                      {"spec.dtype", shape.dtype},
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

Problem::Problem(const Shape& shape, uint32_t seed, int max_splits) : shape_(shape), max_splits_(max_splits) {
  std::mt19937 random(seed);
  const int batch = static_cast<int>(shape.lens.size());
  const int longest = *std::max_element(shape.lens.begin(), shape.lens.end());
  width_ = longest / shape.page + 2;
  table_stride_ = width_ + 3;
  int used = 0;
  for (int len : shape.lens) used += (len + shape.page - 1) / shape.page;
  const int pages = used + 3;

  const long long row = shape.dim + kGap;
  params_.struct_size = sizeof params_;
  params_.version = PT_PARAMS_VERSION;
  params_.k_stride_token = params_.v_stride_token = shape.hnd ? row : row * shape.kv_heads;
  params_.k_stride_head = params_.v_stride_head = shape.hnd ? row * shape.page : row;
  params_.k_stride_page = row * shape.kv_heads * shape.page;
  params_.v_stride_page = params_.k_stride_page + 64;  // K and V need not agree
  params_.q_stride_head = shape.dim + 8;
  params_.q_stride_seq = params_.q_stride_head * shape.q_heads() + 16;
  params_.out_stride_head = shape.dim + 16;
  params_.out_stride_seq = params_.out_stride_head * shape.q_heads() + 8;
  params_.block_table_stride = table_stride_;
  params_.block_table_width = width_;
  params_.batch = batch;
  params_.max_len = longest;
  params_.num_pages = pages;
  params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
  params_.scale_log2 = static_cast<float>(params_.scale * kLog2E);

  // The last page's last row ends at unmapped memory, so the gap after it is not allocated.
  const size_t bytes = static_cast<size_t>(shape.bytes());
  k_ = std::make_unique<EdgeBytes>(bytes * static_cast<size_t>(params_.k_stride_page * pages - kGap));
  v_ = std::make_unique<EdgeBytes>(bytes * static_cast<size_t>(params_.v_stride_page * (pages - 1) + params_.k_stride_page - kGap));
  q_ = std::make_unique<EdgeBytes>(bytes * static_cast<size_t>(params_.q_stride_seq * batch - 16 - 8));
  out_ = std::make_unique<EdgeBytes>(bytes * static_cast<size_t>(params_.out_stride_seq * batch - 8 - 16));
  lse_ = std::make_unique<EdgeBytes>(4 * static_cast<size_t>(batch * shape.q_heads()));
  tables_ = std::make_unique<EdgeBytes>(4 * static_cast<size_t>(table_stride_ * batch - 3));
  lens_ = std::make_unique<EdgeBytes>(4 * static_cast<size_t>(batch));
  const size_t shares = static_cast<size_t>(batch) * static_cast<size_t>(shape.q_heads()) * static_cast<size_t>(max_splits);
  partial_out_ = std::make_unique<EdgeBytes>(4 * shares * static_cast<size_t>(shape.dim));
  partial_lse_ = std::make_unique<EdgeBytes>(4 * shares);
  k_->fill(0xFF);
  v_->fill(0xFF);
  q_->fill(0xFF);
  k_live_.resize(k_->size() / bytes);
  v_live_.resize(v_->size() / bytes);

  std::vector<int> ids(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  // The page that ends at unmapped memory is always in use, where there is one.
  std::iter_swap(ids.begin(), std::find(ids.begin(), ids.end(), pages - 1));
  std::uniform_int_distribution<int> value(-128, 127);
  const auto fill_row = [&](EdgeBytes& memory, std::vector<bool>* live, const unsigned char* at) {
    for (int d = 0; d < shape.dim; ++d) {
      const size_t offset = static_cast<size_t>(at - memory.data()) + static_cast<size_t>(d) * bytes;
      put(shape.dtype, memory.data() + offset, value(random));
      if (live != nullptr) (*live)[offset / bytes] = true;
    }
  };
  size_t next = 0;
  for (int b = 0; b < batch; ++b) {
    length(b) = shape.lens[static_cast<size_t>(b)];
    for (int slot = 0; slot < width_; ++slot) {
      const int tokens = std::clamp(length(b) - slot * shape.page, 0, shape.page);
      if (tokens == 0) {
        table(b, slot) = slot % 2 == 0 ? std::numeric_limits<int>::max() : std::numeric_limits<int>::min();  // must not be used
        continue;
      }
      const int id = table(b, slot) = ids[next++];
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < shape.kv_heads; ++h) {
          fill_row(*k_, &k_live_, k_row(id, t, h));
          fill_row(*v_, &v_live_, v_row(id, t, h));
        }
      }
    }
    for (int h = 0; h < shape.q_heads(); ++h)
      fill_row(*q_, nullptr, q_->data() + bytes * static_cast<size_t>(b * params_.q_stride_seq + h * params_.q_stride_head));
  }
  params_.q = q_->data();
  params_.k_cache = k_->data();
  params_.v_cache = v_->data();
  params_.out = out_->data();
  params_.lse = shape.lse ? reinterpret_cast<float*>(lse_->data()) : nullptr;
  params_.block_tables = reinterpret_cast<int*>(tables_->data());
  params_.seq_lens = reinterpret_cast<int*>(lens_->data());
  params_.partial_out = reinterpret_cast<float*>(partial_out_->data());
  params_.partial_lse = reinterpret_cast<float*>(partial_lse_->data());
  params_.error = shape.checked ? &error_ : nullptr;
}

const unsigned char* Problem::k_row(int page, int token, int head) const {
  return k_->data() + shape_.bytes() * (page * params_.k_stride_page + token * params_.k_stride_token + head * params_.k_stride_head);
}
const unsigned char* Problem::v_row(int page, int token, int head) const {
  return v_->data() + shape_.bytes() * (page * params_.v_stride_page + token * params_.v_stride_token + head * params_.v_stride_head);
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

Problem::Row Problem::reference(int sequence, int head) const {
  const unsigned char* q = q_->data() + shape_.bytes() * (sequence * params_.q_stride_seq + head * params_.q_stride_head);
  const int kv_head = head / shape_.group;
  const int len = std::min(params_.seq_lens[sequence], width_ * shape_.page);
  std::vector<double> logits;
  std::vector<const unsigned char*> values;
  for (int t = 0; t < len; ++t) {
    const int id = params_.block_tables[sequence * table_stride_ + t / shape_.page];
    if (id < 0 || id >= params_.num_pages) continue;
    double dot = 0;
    for (int d = 0; d < shape_.dim; ++d)
      dot += element(shape_.dtype, q + d * shape_.bytes()) *
             element(shape_.dtype, k_row(id, t % shape_.page, kv_head) + d * shape_.bytes());
    logits.push_back(dot * params_.scale_log2 / kLog2E);
    values.push_back(v_row(id, t % shape_.page, kv_head));
  }
  Row row{std::vector<double>(static_cast<size_t>(shape_.dim)), -std::numeric_limits<double>::infinity()};
  if (logits.empty()) return row;
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp(logits[i] - top);
    sum += weight;
    for (int d = 0; d < shape_.dim; ++d) row.out[static_cast<size_t>(d)] += weight * element(shape_.dtype, values[i] + d * shape_.bytes());
  }
  for (double& value : row.out) value /= sum;
  row.lse = top + std::log(sum);
  return row;
}

std::string Problem::check() const {
  // Half a unit in the last place of the output, plus fp32 accumulation (a few 1e-7 per rounding, relative to the inputs' size of 2).
  const double relative = shape_.dtype == 0 ? 0x1p-8 : shape_.dtype == 1 ? 0x1p-11 : 0x1p-24;
  for (int b = 0; b < params_.batch; ++b) {
    for (int h = 0; h < shape_.q_heads(); ++h) {
      const Row expected = reference(b, h);
      const std::string where = " at sequence " + std::to_string(b) + " head " + std::to_string(h);
      for (int d = 0; d < shape_.dim; ++d) {
        const double got = out(b, h, d);
        const double want = expected.out[static_cast<size_t>(d)];
        if (!(std::abs(got - want) <= relative * std::abs(want) * 1.01 + 4e-6))
          return "out is " + std::to_string(got) + " for " + std::to_string(want) + where + " dim " + std::to_string(d);
      }
      if (!shape_.lse) continue;
      const double got = lse(b, h);
      const bool empty = std::isinf(expected.lse);
      if (empty ? !(std::isinf(got) && got < 0) : !(std::abs(got - expected.lse) <= 4e-6 + 4e-7 * std::abs(expected.lse)))
        return "LSE is " + std::to_string(got) + " for " + std::to_string(expected.lse) + where;
    }
  }
  for (size_t i = 0; i < out_->size() / static_cast<size_t>(shape_.bytes()); ++i) {
    const auto at = static_cast<long long>(i) % params_.out_stride_seq;
    const bool row = at < params_.out_stride_head * shape_.q_heads() && at % params_.out_stride_head < shape_.dim;
    if (row) continue;
    for (int byte = 0; byte < shape_.bytes(); ++byte)
      if (out_->data()[i * static_cast<size_t>(shape_.bytes()) + static_cast<size_t>(byte)] != 0xFF) return "written between the rows of out";
  }
  if (!shape_.lse && lse_bytes() != std::string(lse_->size(), '\xFF')) return "LSE was written though the kernel has none";
  for (const auto* memory : {out_.get(), lse_.get(), partial_out_.get(), partial_lse_.get(), k_.get(), v_.get(), q_.get()})
    if (!memory->front_intact()) return "written before the start of an array";
  return {};
}

double Problem::out(int sequence, int head, int dim) const {
  return element(shape_.dtype, out_->data() + shape_.bytes() * (sequence * params_.out_stride_seq + head * params_.out_stride_head + dim));
}
float Problem::lse(int sequence, int head) const {
  float value = 0;
  std::memcpy(&value, lse_->data() + 4 * (sequence * shape_.q_heads() + head), 4);
  return value;
}
float Problem::partial_lse(int sequence, int head, int split) const {
  float value = 0;
  std::memcpy(&value, partial_lse_->data() + 4 * ((sequence * shape_.q_heads() + head) * params_.num_splits + split), 4);
  return value;
}

}  // namespace pagetune::test
