// Kernel and get_kernel(): the dispatch table, the configs it can choose, and their modules, compiled when first needed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "codegen/support.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/build.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/freezer.hpp"
#include "runtime/launch.hpp"
#include "runtime/no_winners.hpp"
#include "runtime/untuned.hpp"

namespace pagetune {
namespace {

struct Counters {
  std::atomic<uint64_t> kernel_hits{0}, kernel_misses{0}, capture_refusals{0};
  std::array<std::atomic<uint64_t>, 4> selected{};  // by Source
};
Counters counters;

// Stores that kernels have used, for stats().
std::mutex stores_mutex;
std::vector<std::shared_ptr<Store>> stores;

void remember(const std::shared_ptr<Store>& store) {
  const std::lock_guard lock(stores_mutex);
  if (std::find(stores.begin(), stores.end(), store) == stores.end()) stores.push_back(store);
}

class KernelImpl final : public Kernel {
 public:
  KernelImpl(const AttentionSpec& spec, std::shared_ptr<Device> device, std::shared_ptr<Store> store, const std::string& snapshot)
      : spec_(spec), device_(std::move(device)), store_(std::move(store)), table_(table_of(spec, *device_, *store_, snapshot)), slots_(table_.configs().size()),
        untuned_(UntunedCalls::make(store_, device_->environment(), spec)) {
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i].plan = LaunchPlan(table_.configs()[i], device_->target());
    if (table_.lacks_winners()) say_no_winners(*store_, device_->environment(), spec_);
  }

  const AttentionSpec& spec() const override { return spec_; }
  const std::string& device() const override { return device_->id(); }

  Selection select(int batch, int max_len, int64_t total_len) const noexcept override { return table_.select(batch, max_len, total_len); }
  std::string config_json(Selection selection) const override { return table_.configs().at(selection.index).canonical_json(); }
  std::string digest() const override { return table_.digest(); }
  std::string snapshot() const override { return table_.snapshot(); }

  size_t workspace_bytes(int max_batch, int max_len) const override {
    require_maxima(max_batch, max_len);
    size_t bytes = pagetune::workspace_bytes(spec_, max_batch, 1);
    for (const CallShape& call : DispatchTable::reachable(max_batch, max_len)) {
      // The largest batch that lands in this bucket: up to half an octave above its centre, times the raggedness that select() admits.
      const double largest = call.bucket.batch() * std::sqrt(2.0) * kMaxRaggedness;
      const int64_t batch = std::min<int64_t>(max_batch, static_cast<int64_t>(largest) + 1);
      bytes = std::max(bytes, pagetune::workspace_bytes(spec_, batch, slots_[table_.at(call).index].plan));
    }
    return bytes;
  }

  void prepare(int max_batch, int max_len) override {
    require_maxima(max_batch, max_len);
    // A kernel is shared by all who asked for its spec: what one of them prepared must not shrink under another.
    const std::lock_guard lock(prepare_mutex_);
    max_batch = std::max(max_batch, planned_batch_.load(std::memory_order_relaxed));
    max_len = std::max(max_len, planned_len_.load(std::memory_order_relaxed));
    std::vector<uint16_t> needed;
    for (const CallShape& call : DispatchTable::reachable(max_batch, max_len)) needed.push_back(table_.at(call).index);
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    // Configs that differ only in launch-time values share a binary: one representative each goes to the compile pool.
    std::map<std::string, uint16_t> shapes;
    for (const uint16_t index : needed)
      if (slots_[index].module.load(std::memory_order_acquire) == nullptr) shapes.emplace(shape_text(index), index);
    std::vector<KernelConfig> work;
    for (const auto& [shape, index] : shapes) work.push_back(table_.configs()[index]);
    if (freezer().refuses() && !work.empty()) freezer().miss(spec_, work.front());  // before anything is compiled
    if (work.size() > 1) build_binaries(device_->compiler(), *store_, spec_, work, device_->target());  // into the store, from where module() takes them
    for (const uint16_t index : needed) module(index);
    planned_batch_.store(max_batch, std::memory_order_relaxed);
    planned_len_.store(max_len, std::memory_order_relaxed);
  }

  void launch(const pt_decode_params& params, void* stream) override { launch(params, select(params.batch, params.max_len, params.total_len), stream); }

  void launch(const pt_decode_params& params, Selection selection, void* stream) override {
    if (selection.index >= slots_.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("selection {} is not of this kernel, which has {} configs", selection.index, slots_.size()));
    if (selection.source > Source::other_device)
      throw Error(ErrorCode::invalid_argument, fmt::format("the selection's source is {}: use a Selection of select()", static_cast<int>(selection.source)));
    Slot& slot = slots_[selection.index];
    check_params(spec_, slot.plan, params);
    require_planned(params);
    const Module* loaded = slot.module.load(std::memory_order_acquire);
    if (loaded == nullptr) {
      if (device_->capturing(stream)) {
        counters.capture_refusals.fetch_add(1, std::memory_order_relaxed);
        throw Error(ErrorCode::not_prepared, "this launch would compile a kernel inside a stream capture: call prepare(max_batch, max_len) before capturing; the capture is still usable");
      }
      loaded = &module(selection.index);
    }
    if (spec_.checked && params.batch > 0) require_this_device(params);
    counters.selected[static_cast<size_t>(selection.source)].fetch_add(1, std::memory_order_relaxed);
    if (selection.source != Source::tuned) {
      const Bucket bucket = bucket_of(params.batch, params.max_len, params.total_len);
      if (table_.wants_winner(bucket)) untuned_->count(bucket);
    }
    loaded->launch(complete(spec_, slot.plan, params), stream);
  }

  void check(void* workspace, void* stream) override;

 private:
  struct Slot {
    std::atomic<const Module*> module{nullptr};
    LaunchPlan plan;
  };

  static DispatchTable table_of(const AttentionSpec& spec, const Device& device, const Store& store, const std::string& snapshot) {
    if (!snapshot.empty()) return DispatchTable::from_snapshot(spec, device.target(), snapshot);
    return {spec, device.target(), store.layered_winners(device.environment(), spec_key(spec)), Blocklist(store, device.environment().key(), spec_key(spec))};
  }

  static void require_maxima(int max_batch, int max_len) {
    if (max_batch < 1 || max_len < 1) throw Error(ErrorCode::invalid_argument, fmt::format("max_batch is {} and max_len is {}: both must be at least 1", max_batch, max_len));
  }

  void require_planned(const pt_decode_params& params) const {
    const int batch = planned_batch_.load(std::memory_order_relaxed), len = planned_len_.load(std::memory_order_relaxed);
    if (batch == 0 || (params.batch <= batch && params.max_len <= len)) return;
    throw Error(ErrorCode::mismatch, fmt::format("batch {} with max_len {} exceeds what was prepared, {} and {}: call prepare() with larger maxima", params.batch, params.max_len, batch, len));
  }

  void require_this_device(const pt_decode_params& params) const {
    device_->check_pointer(params.q, "q");
    device_->check_pointer(params.k_cache, "k_cache");
    device_->check_pointer(params.v_cache, "v_cache");
    device_->check_pointer(params.out, "out");
    device_->check_pointer(params.block_tables, "block_tables");
    device_->check_pointer(params.seq_lens, "seq_lens");
    const std::pair<const void*, const char*> optional[] = {{params.cu_seqlens_q, "cu_seqlens_q"}, {params.window, "window"},       {params.sinks, "sinks"},
                                                            {params.alibi_slopes, "alibi_slopes"}, {params.tree_mask, "tree_mask"}, {params.mask_offset, "mask_offset"}};
    for (const auto& [pointer, what] : optional)
      if (pointer != nullptr) device_->check_pointer(pointer, what);
  }

  std::string shape_text(uint16_t index) const { return shape_of(table_.configs()[index]).canonical_json(); }

  // The module of a config, built by the first thread that needs it.
  const Module& module(uint16_t index) {
    const std::lock_guard lock(mutex_);
    if (const Module* loaded = slots_[index].module.load(std::memory_order_relaxed)) return *loaded;
    auto& shared = modules_[shape_text(index)];
    if (shared == nullptr) {
      freezer().miss(spec_, table_.configs()[index]);
      shared = build_module(*device_, *store_, spec_, table_.configs()[index]);
    }
    slots_[index].module.store(shared.get(), std::memory_order_release);
    return *shared;
  }

  AttentionSpec spec_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Store> store_;
  DispatchTable table_;
  std::vector<Slot> slots_;
  std::shared_ptr<UntunedCalls> untuned_;
  std::mutex mutex_, prepare_mutex_;
  std::map<std::string, std::shared_ptr<const Module>> modules_;
  std::atomic<int> planned_batch_{0}, planned_len_{0};
};

void KernelImpl::check(void* workspace, void* stream) {
  if (!spec_.checked) throw Error(ErrorCode::mismatch, "check() needs a kernel whose AttentionSpec has checked");
  if (workspace == nullptr) throw Error(ErrorCode::invalid_argument, "workspace is null: give the workspace of the launches to check");
  device_->synchronize_stream(stream);
  pt_error_record record{};
  device_->download(&record, workspace, sizeof record);
  const int kind = record.kind - PT_ERROR_TAG;
  if (kind < 1 || kind > 4) return;
  const pt_error_record clear{};
  device_->upload(workspace, &clear, sizeof clear);
  switch (kind) {
    case 1:
      throw Error(ErrorCode::bad_table, fmt::format("block table of sequence {}, KV head {}, slot {}: page id {} is beyond the cache's num_pages", record.sequence, record.head, record.slot, record.value));
    case 2:
      throw Error(ErrorCode::bad_table, fmt::format("block table of sequence {}, KV head {}, slot {}: page id {} is negative inside the sequence's visible range", record.sequence, record.head,
                                                    record.slot, record.value));
    case 4:
      throw Error(ErrorCode::bad_table, fmt::format("sequence {} has {} query tokens by cu_seqlens_q, but the kernel was built with q_len {} ({} > {}); those beyond were not computed", record.sequence,
                                                    record.value, spec_.q_len, record.value, spec_.q_len));
    default:
      throw Error(ErrorCode::bad_table, fmt::format("sequence {} has length {}, but its block-table row holds {} tokens ({} > {})", record.sequence, record.slot, record.value, record.slot, record.value));
  }
}

// Kernels by (spec, device, store), as asked for. Weak: a kernel lives as long as someone holds it.
struct Key {
  AttentionSpec spec;
  std::string device, cache_dir, snapshot;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const noexcept {
    return AttentionSpecHash{}(key.spec) ^ (std::hash<std::string>{}(key.device) * 31) ^ (std::hash<std::string>{}(key.cache_dir) * 1031) ^ (std::hash<std::string>{}(key.snapshot) * 32771);
  }
};
std::shared_mutex registry_mutex;
std::unordered_map<Key, std::weak_ptr<KernelImpl>, KeyHash> registry;

}  // namespace

std::shared_ptr<Kernel> get_kernel(const AttentionSpec& spec, const KernelOptions& options) {
  const Key key{spec, options.device, options.cache_dir, options.snapshot};
  {
    const std::shared_lock lock(registry_mutex);
    if (const auto found = registry.find(key); found != registry.end())
      if (auto kernel = found->second.lock()) {
        counters.kernel_hits.fetch_add(1, std::memory_order_relaxed);
        return kernel;
      }
  }
  const auto device = open_device(options.device);
  require_support(spec, device->target());
  const auto store = Store::open(options.cache_dir);
  remember(store);
  const std::unique_lock lock(registry_mutex);
  if (auto kernel = registry[key].lock()) {  // another thread was faster
    counters.kernel_hits.fetch_add(1, std::memory_order_relaxed);
    return kernel;
  }
  counters.kernel_misses.fetch_add(1, std::memory_order_relaxed);
  auto kernel = std::make_shared<KernelImpl>(spec, device, store, options.snapshot);
  registry[key] = kernel;
  return kernel;
}

void freeze(Freeze policy) { freezer().set(policy); }

Stats stats() {
  Stats s{};
  s.kernel_hits = counters.kernel_hits;
  s.kernel_misses = counters.kernel_misses;
  s.capture_refusals = counters.capture_refusals;
  s.selected_tuned = counters.selected[static_cast<size_t>(Source::tuned)];
  s.selected_nearest = counters.selected[static_cast<size_t>(Source::nearest)];
  s.selected_default = counters.selected[static_cast<size_t>(Source::analytic_default)];
  s.selected_other_device = counters.selected[static_cast<size_t>(Source::other_device)];
  s.frozen_misses = freezer().misses();
  const std::lock_guard lock(stores_mutex);
  for (const auto& store : stores) {
    const auto c = store->counters();
    s.compiles += c.compiles;
    s.binaries_loaded_from_store += c.hits;
    s.corrupt_binaries += c.corrupt;
  }
  return s;
}

}  // namespace pagetune
