#include "tuner/bench_problem.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "pagetune/error.hpp"
#include "runtime/launch.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {

class BenchProblem::Buffer {
 public:
  Buffer(Device& device, size_t bytes) : device_(device), data_(device.allocate(std::max<size_t>(bytes, 1))) {}
  ~Buffer() { device_.release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

namespace {

struct Sizes {
  int64_t pages_per_set = 0;
  int width = 1;
  size_t k_bytes_per_set, v_bytes_per_set, table_bytes_per_set;
  size_t q_bytes, lens_bytes, lse_bytes, workspace;
  size_t fixed() const { return 2 * q_bytes + lens_bytes + lse_bytes + workspace; }
  size_t per_set() const { return k_bytes_per_set + v_bytes_per_set + table_bytes_per_set; }
};

Sizes sizes_of(const AttentionSpec& spec, const std::vector<int>& lens, const std::vector<LaunchPlan>& plans) {
  if (spec.head_dim_k != spec.head_dim_v || spec.q_dtype != spec.out_dtype) {
    throw Error(ErrorCode::unsupported, "a dependent chain of launches needs an output that can serve as the next q: equal head dims and dtypes");
  }
  if (lens.empty()) throw Error(ErrorCode::invalid_argument, "a bench problem needs at least one sequence");
  Sizes sizes{};
  for (int len : lens) {
    const int pages = (len + spec.page_size - 1) / spec.page_size;
    sizes.pages_per_set += pages;
    sizes.width = std::max(sizes.width, pages);
  }
  const size_t page_rows = static_cast<size_t>(spec.page_size) * spec.kv_heads;
  const size_t element = bits_of(spec.kv_dtype) / 8;
  sizes.k_bytes_per_set = static_cast<size_t>(sizes.pages_per_set) * page_rows * spec.head_dim_k * element;
  sizes.v_bytes_per_set = static_cast<size_t>(sizes.pages_per_set) * page_rows * spec.head_dim_v * element;
  sizes.table_bytes_per_set = lens.size() * static_cast<size_t>(sizes.width) * sizeof(int);
  sizes.q_bytes = lens.size() * static_cast<size_t>(spec.q_heads) * spec.head_dim_k * (bits_of(spec.q_dtype) / 8);
  sizes.lens_bytes = lens.size() * sizeof(int);
  sizes.lse_bytes = spec.lse ? lens.size() * static_cast<size_t>(spec.q_heads) * sizeof(float) : 0;
  for (const LaunchPlan& plan : plans) sizes.workspace = std::max(sizes.workspace, workspace_bytes(spec, static_cast<int64_t>(lens.size()), plan));
  return sizes;
}

}  // namespace

size_t BenchProblem::bytes_needed(const AttentionSpec& spec, const std::vector<int>& lens, const std::vector<LaunchPlan>& plans) {
  const Sizes sizes = sizes_of(spec, lens, plans);
  return sizes.fixed() + sizes.per_set();
}

BenchProblem::BenchProblem(Device& device, const AttentionSpec& spec, const std::vector<int>& lens, const BenchOptions& options)
    : device_(device), spec_(spec), options_(options), lens_(lens) {
  const Sizes sizes = sizes_of(spec_, lens_, options_.plans);
  const size_t limit = options_.memory_limit > 0 ? options_.memory_limit : device_.free_bytes() / 10 * 9;
  if (sizes.fixed() + sizes.per_set() > limit) {
    throw Error(ErrorCode::invalid_argument, "a problem of " + std::to_string(lens_.size()) + " sequences needs " +
                                                 std::to_string(sizes.fixed() + sizes.per_set()) + " bytes on " + device_.id() + "; " +
                                                 std::to_string(limit) + " are allowed: take a smaller batch or length");
  }
  const int64_t total = std::accumulate(lens_.begin(), lens_.end(), int64_t{0});
  kv_bytes_ = pagetune::kv_bytes(spec_, total);
  constexpr int64_t kLeastRotation = int64_t{64} << 20;
  const int64_t rotation = options_.rotation_bytes > 0 ? options_.rotation_bytes : std::max<int64_t>(4LL * device_.environment().l2_bytes, kLeastRotation);
  const int64_t wanted = kv_bytes_ > 0 ? (rotation + kv_bytes_ - 1) / kv_bytes_ : 1;
  sets_ = static_cast<int>(std::clamp<int64_t>(wanted, 1, static_cast<int64_t>((limit - sizes.fixed()) / std::max<size_t>(1, sizes.per_set()))));
  const auto sets = static_cast<size_t>(sets_);
  memory_bytes_ = sizes.fixed() + sets * sizes.per_set();

  const auto make = [&](size_t bytes) { return std::make_unique<Buffer>(device_, bytes); };
  k_ = make(sets * sizes.k_bytes_per_set);
  v_ = make(sets * sizes.v_bytes_per_set);
  device_.fill_random(k_->data(), sets * sizes.k_bytes_per_set, spec_.kv_dtype, options_.seed);
  device_.fill_random(v_->data(), sets * sizes.v_bytes_per_set, spec_.kv_dtype, options_.seed + 1);
  for (auto& q : q_) {
    q = make(sizes.q_bytes);
    device_.fill_random(q->data(), sizes.q_bytes, spec_.q_dtype, options_.seed + 2);
  }

  const int64_t num_pages = sizes.pages_per_set * sets_;
  std::vector<int> ids(static_cast<size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  Random random(options_.seed);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[static_cast<size_t>(random.below(static_cast<int>(i)))]);
  std::vector<int> table(sets * lens_.size() * static_cast<size_t>(sizes.width), -1);
  size_t next = 0;
  for (size_t set = 0; set < sets; ++set) {
    for (size_t b = 0; b < lens_.size(); ++b) {
      const int pages = (lens_[b] + spec_.page_size - 1) / spec_.page_size;
      for (int slot = 0; slot < pages; ++slot) table[(set * lens_.size() + b) * static_cast<size_t>(sizes.width) + static_cast<size_t>(slot)] = ids[next++];
    }
  }
  tables_ = make(table.size() * sizeof(int));
  device_.upload(tables_->data(), table.data(), table.size() * sizeof(int));
  lens_on_device_ = make(sizes.lens_bytes);
  device_.upload(lens_on_device_->data(), lens_.data(), sizes.lens_bytes);
  if (spec_.lse) lse_ = make(sizes.lse_bytes);
  workspace_ = make(sizes.workspace);

  params_ = pt_decode_params{};
  params_.struct_size = sizeof(pt_decode_params);
  params_.version = PT_PARAMS_VERSION;
  params_.k_cache = k_->data();
  params_.v_cache = v_->data();
  params_.lse = lse_ ? static_cast<float*>(lse_->data()) : nullptr;
  params_.seq_lens = static_cast<const int*>(lens_on_device_->data());
  params_.workspace = sizes.workspace > 0 ? workspace_->data() : nullptr;
  params_.workspace_bytes = static_cast<long long>(sizes.workspace);
  params_.block_table_stride = params_.block_table_width = sizes.width;
  params_.batch = static_cast<int>(lens_.size());
  params_.max_len = std::max(1, *std::max_element(lens_.begin(), lens_.end()));
  params_.total_len = total;
  params_.num_pages = static_cast<int>(num_pages);
  params_.flags = options_.flags;
  set_contiguous_strides(spec_, sizes.width, params_);
}

BenchProblem::~BenchProblem() = default;

pt_decode_params BenchProblem::params(int launch) const {
  pt_decode_params params = params_;
  const int64_t set = launch % sets_;
  params.block_tables = static_cast<const int*>(tables_->data()) + set * params.batch * params.block_table_stride;
  params.q = q_[launch % 2]->data();
  params.out = q_[(launch + 1) % 2]->data();
  return params;
}

void BenchProblem::enqueue(const Module& module, LaunchPlan plan, int launches, void* stream, int first) const {
  for (int i = first; i < first + launches; ++i) module.launch(complete(spec_, plan, params(i)), stream);
}

Check BenchProblem::check(const Module& module, LaunchPlan plan, int groups) const {
  const size_t rows = lens_.size() * static_cast<size_t>(spec_.q_heads);
  const size_t q_bytes = rows * spec_.head_dim_k * (bits_of(spec_.q_dtype) / 8);
  constexpr int kLast = 2;
  device_.fill_random(q_[0]->data(), q_bytes, spec_.q_dtype, options_.seed + 3);
  enqueue(module, plan, kLast, device_.stream());
  device_.synchronize();
  const pt_decode_params last = params(kLast);
  std::vector<char> poison(q_bytes);
  fill_poison(poison.data(), q_bytes);
  device_.upload(last.out, poison.data(), q_bytes);
  if (spec_.lse) {
    poison.resize(rows * sizeof(float));
    fill_poison(poison.data(), poison.size());
    device_.upload(last.lse, poison.data(), poison.size());
  }
  enqueue(module, plan, 1, device_.stream(), kLast);
  device_.synchronize();

  Outputs all;
  all.out.resize(q_bytes);
  device_.download(all.out.data(), last.out, q_bytes);
  if (spec_.lse) {
    all.lse.resize(rows);
    device_.download(all.lse.data(), last.lse, rows * sizeof(float));
  }
  Check result;
  std::vector<double> values(rows * spec_.head_dim_v);
  load_elements(spec_.out_dtype, all.out.data(), static_cast<int64_t>(values.size()), values.data());
  if (const auto bad = std::find_if(values.begin(), values.end(), [](double x) { return std::isnan(x); }); bad != values.end()) {
    result.ok = false;
    result.error = INFINITY;
    result.what = "out is NaN or was not written at element " + std::to_string(bad - values.begin());
    return result;
  }

  // The sampled groups as an output of their own: one "sequence" of group_size heads each.
  Random random(options_.seed + 4);
  AttentionSpec sampled_spec = spec_;
  sampled_spec.kv_heads = 1;
  sampled_spec.q_heads = spec_.group_size();
  const size_t group = spec_.group_size();
  const size_t out_bytes = group * spec_.head_dim_v * (bits_of(spec_.out_dtype) / 8);
  Outputs sampled;
  Reference expected;
  const ReadMemory read = [this](void* to, const void* from, size_t bytes) { device_.download(to, from, bytes); };
  for (int i = 0; i < groups; ++i) {
    const int sequence = i == 0 ? static_cast<int>(std::max_element(lens_.begin(), lens_.end()) - lens_.begin()) : random.below(params_.batch);
    const int kv_head = random.below(spec_.kv_heads);
    const size_t row = static_cast<size_t>(sequence) * spec_.q_heads + kv_head * group;
    expected.out.resize((i + 1) * group * spec_.head_dim_v);
    expected.lse.resize((i + 1) * group);
    reference_group(spec_, last, read, sequence, kv_head, expected.out.data() + i * group * spec_.head_dim_v, expected.lse.data() + i * group);
    const size_t row_bytes = out_bytes / group;
    sampled.out.insert(sampled.out.end(), all.out.begin() + static_cast<std::ptrdiff_t>(row * row_bytes),
                       all.out.begin() + static_cast<std::ptrdiff_t>(row * row_bytes + out_bytes));
    if (spec_.lse) sampled.lse.insert(sampled.lse.end(), all.lse.begin() + static_cast<std::ptrdiff_t>(row), all.lse.begin() + static_cast<std::ptrdiff_t>(row + group));
  }
  return compare(sampled_spec, groups, sampled, expected);
}

}  // namespace pagetune
