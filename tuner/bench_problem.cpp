#include "tuner/bench_problem.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <type_traits>

#include "pagetune/error.hpp"
#include "runtime/launch.hpp"
#include "runtime/parallel.hpp"
#include "tuner/numeric.hpp"
#include "tuner/visibility.hpp"

namespace pagetune {

class DeviceBuffer {
 public:
  DeviceBuffer(Device& device, size_t bytes) : device_(device), data_(device.allocate(std::max<size_t>(bytes, 1))) {}
  ~DeviceBuffer() { device_.release(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

namespace {

// The arrays of a problem other than tables, in host memory, and what they say of the pages.
struct Inputs {
  std::vector<int> lens, windows, mask_offset;
  std::vector<float> sinks, slopes;
  std::vector<unsigned char> tree;
  pt_decode_params params{};  // the arrays above; no memory of pages, q or out

  struct Row {                // of the table
    std::vector<int> slots;   // that it lists
    int pages = 0;            // slots up to the last
  };
  std::vector<Row> rows;
  int64_t seen_tokens = 0;    // over KV heads
};

int pages_of(int len, int page_size) { return static_cast<int>((int64_t{len} + page_size - 1) / page_size); }

void fill_features(const AttentionSpec& spec, const BenchFeatures& features, Inputs& in) {
  const auto batch = in.lens.size();
  pt_decode_params& p = in.params;
  Random random(0xFEA7);
  if (spec.window) {
    in.windows = features.windows;
    if (in.windows.empty())
      for (int h = spec.kv_heads; h > 0; --h) in.windows.push_back(h % 2 == 1 ? 1024 : 0);
    if (in.windows.size() != static_cast<size_t>(spec.kv_heads))
      throw Error(ErrorCode::invalid_argument, std::to_string(in.windows.size()) + " windows for " + std::to_string(spec.kv_heads) + " KV heads: a bench with windows needs one for each");
    p.window = in.windows.data();
  }
  if (spec.chunk) p.chunk = features.chunk;
  if (spec.sink_tokens) p.sink_tokens = features.sink_tokens;
  if (spec.soft_cap) p.soft_cap = 30;
  if (spec.sinks) {
    for (int h = 0; h < spec.q_heads; ++h) in.sinks.push_back(static_cast<float>(random.uniform(-1, 3)));
    p.sinks = in.sinks.data();
  }
  if (spec.alibi) {
    for (int h = 1; h <= spec.q_heads; ++h) in.slopes.push_back(static_cast<float>(std::exp2(-8.0 * h / spec.q_heads)));
    p.alibi_slopes = in.slopes.data();
  }
  if (spec.mask == MaskKind::tree) {
    p.tree_mask_size = spec.q_len;
    for (size_t i = 0; i < batch * static_cast<size_t>(spec.q_len * spec.q_len); ++i) in.tree.push_back(random.below(3) == 0 ? 1 : 0);
    p.tree_mask = in.tree.data();
  }
  if (spec.mask == MaskKind::offset) {
    for (const int len : in.lens)
      for (int i = 0; i < spec.q_len; ++i) in.mask_offset.insert(in.mask_offset.end(), {0, len});
    p.mask_offset = in.mask_offset.data();
  }
  if (spec.block_sparse) {
    SparseBlocks blocks = features.blocks;
    if (blocks.block_size == 0) blocks = {.block_size = spec.page_size * std::max(1, 64 / spec.page_size), .vert_stride = 8, .local_blocks = 16, .head_step = 1};
    p.sparse_block_size = blocks.block_size;
    p.sparse_vert_stride = blocks.vert_stride;
    p.sparse_local_blocks = blocks.local_blocks;
    p.sparse_head_step = blocks.head_step;
    p.sparse_head_offset = blocks.head_offset;
    p.sparse_kv_head_offset = blocks.kv_head_offset;
  }
}

// By reference: the parameters point into it.
void fill_inputs(const AttentionSpec& spec, const std::vector<int>& lens, const BenchOptions& options, Inputs& in) {
  if (lens.empty()) throw Error(ErrorCode::invalid_argument, "a bench problem needs at least one sequence");
  in.lens = lens;
  in.params.struct_size = sizeof(pt_decode_params);
  in.params.version = PT_PARAMS_VERSION;
  in.params.seq_lens = in.lens.data();
  in.params.batch = static_cast<int>(lens.size());
  in.params.max_len = std::max({1, options.prepared_len, *std::max_element(lens.begin(), lens.end())});
  fill_features(spec, options.features, in);
  set_contiguous_strides(spec, std::max(1, pages_of(in.params.max_len, spec.page_size)), in.params);

  // Sequences of one length see the same but for the tree, which is too small to matter.
  struct Seen {
    std::vector<int> slots;
    int64_t tokens = 0;
  };
  std::map<std::pair<int, int>, Seen> seen_by;
  for (int b = 0; b < in.params.batch; ++b) {
    const int len = lens[static_cast<size_t>(b)];
    for (int h = 0; h < spec.kv_heads; ++h) {
      const auto [at, is_new] = seen_by.try_emplace({len, has_masks(spec) ? h : 0});
      Seen& seen = at->second;
      if (is_new) {
        const Visibility visibility(spec, in.params, read_host, b, h);
        for (int slot = 0; slot < pages_of(len, spec.page_size); ++slot) {
          int64_t tokens = 0;
          const int64_t first = int64_t{slot} * spec.page_size, end = std::min<int64_t>(first + spec.page_size, len);
          if (has_masks(spec)) {
            for (int64_t key = first; key < end; ++key) tokens += visibility.needs(key, key + 1) ? 1 : 0;
          } else {
            tokens = end - first;
          }
          if (tokens > 0 || options.all_pages) seen.slots.push_back(slot);
          seen.tokens += tokens;
        }
      }
      in.seen_tokens += seen.tokens;
      if (spec.headwise) in.rows.push_back({seen.slots, pages_of(len, spec.page_size)});
    }
    if (spec.headwise) continue;
    Inputs::Row row{{}, pages_of(len, spec.page_size)};
    row.slots.resize(static_cast<size_t>(row.pages));
    std::iota(row.slots.begin(), row.slots.end(), 0);
    in.rows.push_back(std::move(row));
  }
}

struct Sizes {
  int64_t pages_per_set = 0;  // ids
  size_t k_bytes_per_set, v_bytes_per_set, table_bytes_per_set;
  size_t chain_bytes, lens_bytes, lse_bytes, workspace;
  size_t fixed() const { return 2 * chain_bytes + lens_bytes + lse_bytes + workspace; }
  size_t per_set() const { return k_bytes_per_set + v_bytes_per_set + table_bytes_per_set; }
};

Sizes sizes_of(const AttentionSpec& spec, const Inputs& in, const std::vector<LaunchPlan>& plans) {
  if (bits_of(spec.out_dtype) > bits_of(spec.q_dtype))
    throw Error(ErrorCode::unsupported, std::string("a dependent chain of launches needs an output that can serve as the next q: ") + name_of(spec.out_dtype) + " cannot be read as " + name_of(spec.q_dtype));
  Sizes sizes{};
  const bool flat = spec.headwise && spec.address_map == AddressMap::flat;
  std::vector<int64_t> of_head(static_cast<size_t>(spec.headwise && !flat ? spec.kv_heads : 1), 0);
  for (size_t row = 0; row < in.rows.size(); ++row) of_head[row % of_head.size()] += static_cast<int64_t>(in.rows[row].slots.size());
  sizes.pages_per_set = *std::max_element(of_head.begin(), of_head.end());
  const size_t page_rows = static_cast<size_t>(spec.page_size) * static_cast<size_t>(flat ? 1 : spec.kv_heads);
  const size_t element = static_cast<size_t>(bits_of(spec.kv_dtype) / 8);
  sizes.k_bytes_per_set = static_cast<size_t>(sizes.pages_per_set) * page_rows * static_cast<size_t>(spec.head_dim_k) * element;
  sizes.v_bytes_per_set = static_cast<size_t>(sizes.pages_per_set) * page_rows * static_cast<size_t>(spec.head_dim_v) * element;
  sizes.table_bytes_per_set = in.rows.size() * static_cast<size_t>(in.params.block_table_width) * sizeof(int);
  const size_t heads = in.lens.size() * static_cast<size_t>(spec.q_len) * static_cast<size_t>(spec.q_heads);
  sizes.chain_bytes = heads * static_cast<size_t>(std::max(spec.head_dim_k * (bits_of(spec.q_dtype) / 8), spec.head_dim_v * (bits_of(spec.out_dtype) / 8)));
  sizes.lens_bytes = in.lens.size() * sizeof(int);
  sizes.lse_bytes = spec.lse ? heads * sizeof(float) : 0;
  for (const LaunchPlan& plan : plans) sizes.workspace = std::max(sizes.workspace, workspace_bytes(spec, static_cast<int64_t>(in.lens.size()), plan));
  return sizes;
}

}  // namespace

KvPool::KvPool(Device& device) : device_(device) {}
KvPool::~KvPool() = default;

void KvPool::reserve(DType dtype, size_t k_bytes, size_t v_bytes) {
  const auto grow = [&](std::shared_ptr<DeviceBuffer>& buffer, size_t& has, size_t wanted, uint64_t seed) {
    if (buffer && has >= wanted && dtype == dtype_) return;
    buffer.reset();  // before the larger one is taken: both may not fit
    has = 0;
    buffer = std::make_shared<DeviceBuffer>(device_, wanted);
    has = wanted;
    device_.fill_random(buffer->data(), wanted, dtype, seed);
  };
  grow(k_, k_bytes_, k_bytes, 1);
  grow(v_, v_bytes_, v_bytes, 2);
  dtype_ = dtype;
}

size_t BenchProblem::bytes_needed(const AttentionSpec& spec, const std::vector<int>& lens, const std::vector<LaunchPlan>& plans, const BenchFeatures& features) {
  Inputs in;
  fill_inputs(spec, lens, {.features = features}, in);
  const Sizes sizes = sizes_of(spec, in, plans);
  return sizes.fixed() + sizes.per_set();
}

BenchProblem::BenchProblem(Device& device, const AttentionSpec& spec, const std::vector<int>& lens, const BenchOptions& options)
    : device_(device), spec_(spec), options_(options), lens_(lens) {
  Inputs in;
  fill_inputs(spec_, lens_, options_, in);
  const Sizes sizes = sizes_of(spec_, in, options_.plans);
  const size_t held = options_.pool != nullptr ? options_.pool->bytes() : 0;
  const size_t limit = options_.memory_limit > 0 ? options_.memory_limit : device_.free_bytes() / 10 * 9 + held;
  if (sizes.fixed() + sizes.per_set() > limit) {
    throw Error(ErrorCode::invalid_argument, "a problem of " + std::to_string(lens_.size()) + " sequences needs " +
                                                 std::to_string(sizes.fixed() + sizes.per_set()) + " bytes on " + device_.id() + "; " +
                                                 std::to_string(limit) + " are allowed: take a smaller batch or length");
  }
  kv_bytes_ = pagetune::kv_bytes(spec_, in.seen_tokens) / spec_.kv_heads;
  constexpr int64_t kLeastRotation = int64_t{64} << 20;
  const int64_t rotation = options_.rotation_bytes > 0 ? options_.rotation_bytes : std::max<int64_t>(4LL * device_.environment().l2_bytes, kLeastRotation);
  const int64_t wanted = kv_bytes_ > 0 ? (rotation + kv_bytes_ - 1) / kv_bytes_ : 1;
  sets_ = static_cast<int>(std::clamp<int64_t>(wanted, 1, static_cast<int64_t>((limit - sizes.fixed()) / std::max<size_t>(1, sizes.per_set()))));
  const auto sets = static_cast<size_t>(sets_);
  memory_bytes_ = sizes.fixed() + sets * sizes.per_set();

  const auto make = [&](size_t bytes) { return std::make_unique<DeviceBuffer>(device_, bytes); };
  if (options_.pool != nullptr) {
    options_.pool->reserve(spec_.kv_dtype, sets * sizes.k_bytes_per_set, sets * sizes.v_bytes_per_set);
    k_ = options_.pool->k_;
    v_ = options_.pool->v_;
  } else {
    k_ = make(sets * sizes.k_bytes_per_set);
    v_ = make(sets * sizes.v_bytes_per_set);
    device_.fill_random(k_->data(), sets * sizes.k_bytes_per_set, spec_.kv_dtype, options_.seed);
    device_.fill_random(v_->data(), sets * sizes.v_bytes_per_set, spec_.kv_dtype, options_.seed + 1);
  }
  chain_bytes_ = sizes.chain_bytes;
  for (auto& q : q_) {
    q = make(chain_bytes_);
    device_.fill_random(q->data(), chain_bytes_, spec_.q_dtype, options_.seed + 2);
  }

  // Each head of a slot table has a heap of its own.
  const int64_t num_pages = std::max<int64_t>(1, sizes.pages_per_set * sets_);
  const size_t heaps = spec_.headwise && spec_.address_map == AddressMap::slot ? static_cast<size_t>(spec_.kv_heads) : 1;
  Random random(options_.seed);
  std::vector<std::vector<int>> ids(heaps, std::vector<int>(static_cast<size_t>(num_pages)));
  for (std::vector<int>& heap : ids) {
    std::iota(heap.begin(), heap.end(), 0);
    for (size_t i = heap.size(); i > 1; --i) std::swap(heap[i - 1], heap[static_cast<size_t>(random.below(static_cast<int>(i)))]);
  }
  const auto width = static_cast<size_t>(in.params.block_table_width);
  std::vector<int> table(sets * in.rows.size() * width, -1);
  std::vector<size_t> next(heaps, 0);
  for (size_t set = 0; set < sets; ++set)
    for (size_t row = 0; row < in.rows.size(); ++row)
      for (const int slot : in.rows[row].slots) table[(set * in.rows.size() + row) * width + static_cast<size_t>(slot)] = ids[row % heaps][next[row % heaps]++];
  tables_ = make(table.size() * sizeof(int));
  device_.upload(tables_->data(), table.data(), table.size() * sizeof(int));
  table_rows_ = static_cast<int64_t>(in.rows.size());
  if (spec_.lse) lse_ = make(sizes.lse_bytes);
  workspace_ = make(sizes.workspace);

  params_ = in.params;
  const auto give = [&](auto& pointer, const auto& values) {
    if (values.empty()) return;
    const size_t bytes = values.size() * sizeof(values[0]);
    arrays_.push_back(make(bytes));
    device_.upload(arrays_.back()->data(), values.data(), bytes);
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(arrays_.back()->data());
  };
  give(params_.seq_lens, in.lens);
  give(params_.window, in.windows);
  give(params_.sinks, in.sinks);
  give(params_.alibi_slopes, in.slopes);
  give(params_.tree_mask, in.tree);
  give(params_.mask_offset, in.mask_offset);
  params_.flags = options_.flags;
  params_.k_cache = k_->data();
  params_.v_cache = v_->data();
  params_.lse = lse_ ? static_cast<float*>(lse_->data()) : nullptr;
  params_.workspace = sizes.workspace > 0 ? workspace_->data() : nullptr;
  params_.workspace_bytes = static_cast<long long>(sizes.workspace);
  params_.total_len = std::accumulate(lens_.begin(), lens_.end(), int64_t{0});
  params_.num_pages = static_cast<int>(num_pages);
}

BenchProblem::~BenchProblem() = default;

pt_decode_params BenchProblem::params(int launch) const {
  pt_decode_params params = params_;
  const int64_t set = launch % sets_;
  params.block_tables = static_cast<const int*>(tables_->data()) + set * table_rows_ * params.block_table_stride;
  params.q = q_[launch % 2]->data();
  params.out = q_[(launch + 1) % 2]->data();
  return params;
}

void BenchProblem::enqueue(const Module& module, LaunchPlan plan, int launches, void* stream, int first) const {
  for (int i = first; i < first + launches; ++i) module.launch(complete(spec_, plan, params(i)), stream);
}

Check BenchProblem::check(const Module& module, LaunchPlan plan, int groups) const {
  const size_t rows = lens_.size() * static_cast<size_t>(spec_.q_len) * static_cast<size_t>(spec_.q_heads);
  const size_t out_bytes = rows * static_cast<size_t>(spec_.head_dim_v * (bits_of(spec_.out_dtype) / 8));
  constexpr int kLast = 2;
  device_.fill_random(q_[0]->data(), chain_bytes_, spec_.q_dtype, options_.seed + 3);
  enqueue(module, plan, kLast, device_.stream());
  device_.synchronize();
  const pt_decode_params last = params(kLast);
  std::vector<char> poison(out_bytes);
  fill_poison(poison.data(), out_bytes);
  device_.upload(last.out, poison.data(), out_bytes);
  if (spec_.lse) {
    poison.resize(rows * sizeof(float));
    fill_poison(poison.data(), poison.size());
    device_.upload(last.lse, poison.data(), poison.size());
  }
  enqueue(module, plan, 1, device_.stream(), kLast);
  device_.synchronize();

  Outputs all;
  all.out.resize(out_bytes);
  device_.download(all.out.data(), last.out, out_bytes);
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

  // The sampled groups as an output of their own: rows of group_size heads each.
  Random random(options_.seed + 4);
  AttentionSpec sampled_spec = spec_;
  sampled_spec.kv_heads = 1;
  sampled_spec.q_heads = spec_.group_size();
  const auto group = static_cast<size_t>(spec_.group_size()), q_len = static_cast<size_t>(spec_.q_len), dim = static_cast<size_t>(spec_.head_dim_v);
  const size_t group_bytes = group * dim * static_cast<size_t>(bits_of(spec_.out_dtype) / 8);
  Outputs sampled;
  const size_t rows_of_group = q_len * group;
  Reference expected{std::vector<double>(static_cast<size_t>(groups) * rows_of_group * dim), std::vector<double>(static_cast<size_t>(groups) * rows_of_group)};
  const ReadMemory read = [this](void* to, const void* from, size_t bytes) { device_.download(to, from, bytes); };
  std::vector<std::pair<int, int>> picked;  // sequence, KV head
  for (int i = 0; i < groups; ++i) {
    const int sequence = i == 0 ? static_cast<int>(std::max_element(lens_.begin(), lens_.end()) - lens_.begin()) : random.below(params_.batch);
    picked.emplace_back(sequence, random.below(spec_.kv_heads));
  }
  parallel_for(groups, [&](int64_t i) {
    const auto [sequence, kv_head] = picked[static_cast<size_t>(i)];
    const size_t before = static_cast<size_t>(i) * rows_of_group;
    reference_group(spec_, last, read, sequence, kv_head, expected.out.data() + before * dim, expected.lse.data() + before);
  });
  for (const auto& [sequence, kv_head] : picked) {
    for (size_t row = 0; row < q_len; ++row) {
      const size_t at = (static_cast<size_t>(sequence) * q_len + row) * static_cast<size_t>(spec_.q_heads) + static_cast<size_t>(kv_head) * group;
      const auto from = all.out.begin() + static_cast<std::ptrdiff_t>(at * group_bytes / group);
      sampled.out.insert(sampled.out.end(), from, from + static_cast<std::ptrdiff_t>(group_bytes));
      if (spec_.lse) sampled.lse.insert(sampled.lse.end(), all.lse.begin() + static_cast<std::ptrdiff_t>(at), all.lse.begin() + static_cast<std::ptrdiff_t>(at + group));
    }
  }
  return compare(sampled_spec, int64_t{groups} * spec_.q_len, sampled, expected);
}

}  // namespace pagetune
