// Latencies that an engine sees: compiling one decode kernel, taking it from the store, finding it in process, selecting, launching.
//   bench_latency [--benchmark_filter=REGEX]      device: PAGETUNE_BENCH_DEVICE ("auto", "cuda:0", "cpu")
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/merge.hpp"
#include "cache_db/store.hpp"
#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/device.hpp"
#include "runtime/launch.hpp"
#include "scratch.hpp"
#include "tuner/statistics.hpp"

namespace {

using namespace pagetune;
using bench::Scratch;
using Clock = std::chrono::steady_clock;

std::string device_id() {
  const char* id = std::getenv("PAGETUNE_BENCH_DEVICE");
  return id != nullptr ? id : "auto";
}

AttentionSpec llama() {
  AttentionSpec spec;  // Llama-3.1-8B: 32/8 heads, 128 dims, bf16
  spec.page_size = 16;
  return spec;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// NVRTC to cubin, NVRTC's own cache off; no GPU needed. One pass (batch 0), and the defaults of two batches at length 8192.
void compile_cuda(benchmark::State& state) {
  const Target target = Target::by_name("sm_90a");
  const auto batch = static_cast<int>(state.range(0));
  const KernelConfig config = batch == 0 ? default_shape(llama(), target) : default_config(llama(), target, bucket_of(batch, 8192, 0));
  const KernelSource source = generate(llama(), config, target);
  state.SetLabel(config.canonical_json());
  Compiler& compiler = compiler_for(target);
  for (auto _ : state) benchmark::DoNotOptimize(compiler.compile(source).data.size());
}
BENCHMARK(compile_cuda)->ArgName("batch")->Arg(0)->Arg(1)->Arg(64)->Unit(benchmark::kMillisecond)->Iterations(5);

void compile_on_device(benchmark::State& state) {
  const auto device = open_device(device_id());
  const KernelSource source = generate(llama(), default_config(llama(), device->target(), bucket_of(1, 16, 0)), device->target());
  for (auto _ : state) benchmark::DoNotOptimize(device->compiler().compile(source).data.size());
}
BENCHMARK(compile_on_device)->Unit(benchmark::kMillisecond)->Iterations(5);

// get_kernel() and prepare() for one config whose binary lies in a store that this process has not opened yet.
void kernel_from_store(benchmark::State& state) {
  const Scratch origin;
  get_kernel(llama(), {device_id(), origin.path() / "store"})->prepare(1, 16);
  const Scratch copies;
  int number = 0;
  for (auto _ : state) {
    const auto copy = copies.path() / std::to_string(number++);
    std::filesystem::copy(origin.path() / "store", copy, std::filesystem::copy_options::recursive);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    const uint64_t compiles = stats().compiles;
    const auto begin = Clock::now();
    const auto kernel = get_kernel(llama(), {device_id(), copy});
    kernel->prepare(1, 16);
    state.SetIterationTime(seconds_since(begin));
    if (stats().compiles != compiles) state.SkipWithError("the kernel was compiled, not loaded");
  }
}
BENCHMARK(kernel_from_store)->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(20);

void kernel_in_process(benchmark::State& state) {
  const Scratch scratch;
  const KernelOptions options{device_id(), scratch.path() / "store"};
  const auto held = get_kernel(llama(), options);
  for (auto _ : state) benchmark::DoNotOptimize(get_kernel(llama(), options).get());
}
BENCHMARK(kernel_in_process)->Unit(benchmark::kNanosecond);

// A store of 20,000 winners: 62 specs of an H200, every bucket.
class FullStore {
 public:
  FullStore() : store_(Store::open(scratch_.path() / "store")) {
    MergeSource source{"bench", {}, {}};
    Environment environment;
    environment.backend = "cuda";
    environment.device = "NVIDIA H200";
    environment.arch = "sm_90a";
    environment.processors = 132;
    DefaultConfigs defaults(llama(), Target::by_name("sm_90a"));
    for (int heads = 1; static_cast<int>(source.rows.size()) < kWinners; ++heads) {
      AttentionSpec spec = llama();
      spec.kv_heads = heads;
      spec.q_heads = 4 * heads;
      for (int i = 0; i < Bucket::kCells && static_cast<int>(source.rows.size()) < kWinners; ++i) {
        Winner winner;
        winner.env_key = environment.key();
        winner.spec_key = spec_key(spec);
        winner.bucket = Bucket::at(i);
        winner.config = winner.runner_up = defaults.at(winner.bucket);
        winner.median_us = winner.ci_low_us = winner.ci_high_us = winner.default_us = winner.runner_up_us = 10 + i;
        winner.samples = 15;
        winner.reason = "no gain over the default";
        winner.policy_hash = winner.space_hash = winner.generator_hash = generator_hash();
        source.rows.push_back({winner, environment, spec});
      }
    }
    environment_ = environment;
    store_->merge({source}, {[](const Store::Row&) { return true; }, [](const std::string&) { return true; }});
  }
  static constexpr int kWinners = 20'000;
  Store& store() { return *store_; }
  const Environment& environment() const { return environment_; }

 private:
  const Scratch scratch_;
  std::shared_ptr<Store> store_;
  Environment environment_;
};

void load_all_winners(benchmark::State& state) {
  FullStore full;
  for (auto _ : state) {
    size_t winners = 0;
    for (const auto& [spec, of_spec] : full.store().layered_winners(full.environment())) winners += of_spec.size();
    if (winners != FullStore::kWinners) state.SkipWithError("winners are missing");
  }
}
BENCHMARK(load_all_winners)->Unit(benchmark::kMillisecond);

// What get_kernel() reads.
void load_winners_of_a_spec(benchmark::State& state) {
  FullStore full;
  for (auto _ : state) {
    if (full.store().layered_winners(full.environment(), spec_key(llama())).size() != Bucket::kCells) state.SkipWithError("winners are missing");
  }
}
BENCHMARK(load_winners_of_a_spec)->Unit(benchmark::kMillisecond);

void select_config(benchmark::State& state) {
  const auto kernel = get_kernel(llama(), {device_id(), ":memory:"});
  int batch = 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernel->select(batch, 8192, 0));
    batch = batch % 64 + 1;
  }
}
BENCHMARK(select_config)->Unit(benchmark::kNanosecond);

// A decode step of 64 sequences of 16 tokens, which claims a longest length of max_len, as a captured or padded step would.
class Step {
 public:
  explicit Step(int max_len) : device_(open_device(device_id())), spec_(llama()) {
    const int width = max_len / spec_.page_size;
    const std::vector<int> lens(kBatch, spec_.page_size);
    std::vector<int> tables(static_cast<size_t>(kBatch) * static_cast<size_t>(width), -1);
    for (int b = 0; b < kBatch; ++b) tables[static_cast<size_t>(b) * static_cast<size_t>(width)] = b;
    set_contiguous_strides(spec_, width, params_);
    const size_t cache = size_t{kBatch} * 16 * 8 * 128 * 2, rows = size_t{kBatch} * 32 * 128 * 2;
    params_.k_cache = take(cache);
    params_.v_cache = take(cache);
    params_.q = take(rows);
    params_.out = take(rows);
    params_.seq_lens = static_cast<const int*>(filled(lens));
    params_.block_tables = static_cast<const int*>(filled(tables));
    params_.batch = kBatch;
    params_.max_len = max_len;
    params_.num_pages = kBatch;
    params_.flags = PT_LAUNCH_OVERLAP;
  }
  ~Step() {
    for (void* memory : memory_) device_->release(memory);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  static constexpr int kBatch = 64;
  Device& device() { return *device_; }
  const AttentionSpec& spec() const { return spec_; }
  pt_decode_params& params() { return params_; }
  void add_workspace(size_t bytes) {
    params_.workspace = take(bytes);
    params_.workspace_bytes = static_cast<long long>(bytes);
  }

  // Seconds of the host for one call, by a burst that the device's queue holds.
  template <class Call>
  double burst(Call&& call) {
    constexpr int kBurst = 128;
    const auto begin = Clock::now();
    for (int i = 0; i < kBurst; ++i) call();
    const double seconds = seconds_since(begin) / kBurst;
    device_->synchronize();
    return seconds;
  }

 private:
  void* take(size_t bytes) { return memory_.emplace_back(device_->allocate(bytes)); }
  void* filled(const std::vector<int>& values) {
    void* memory = take(values.size() * sizeof(int));
    device_->upload(memory, values.data(), values.size() * sizeof(int));
    return memory;
  }

  std::shared_ptr<Device> device_;
  AttentionSpec spec_;
  pt_decode_params params_ = make_decode_params();
  std::vector<void*> memory_;
};

// The driver's launch alone, of a small kernel with the same parameters and attribute: what Kernel::launch is to be compared with.
class BareLaunch {
 public:
  explicit BareLaunch(Step& step) {
    KernelConfig config = default_shape(step.spec(), step.device().target());
    for (const auto& [name, value] : {std::pair("LOADER", 0), {"NUM_WARPS", 4}, {"TILE_KV", 16}, {"NUM_STAGES", 3}}) config.set(name, value);
    const Binary binary = step.device().compiler().compile(generate(step.spec(), config, step.device().target()));
    cuda::DeviceHandle handle = 0;
    cuda::Context context = nullptr;
    driver_.check(driver_.device_get(&handle, std::stoi(step.device().id().substr(5))), "opening a device");  // "cuda:N"
    driver_.check(driver_.primary_context_retain(&context, handle), "retaining its context");
    scope_.emplace(context);
    driver_.check(driver_.module_load(&module_, binary.data.data()), "loading a kernel");
    driver_.check(driver_.module_function(&function_, module_, "pt_decode"), "looking for pt_decode");
    driver_.check(driver_.function_set(function_, cuda::kMaxDynamicShared, binary.facts.shared_bytes), "raising the shared-memory limit");
    params_ = complete(step.spec(), 1, step.params());
    attribute_.id = cuda::kProgrammaticOverlap;
    attribute_.value.allowed = 1;
    launch_ = {{Step::kBatch * 8, 1, 1}, {static_cast<unsigned>(binary.facts.threads), 1, 1}, static_cast<unsigned>(binary.facts.shared_bytes), static_cast<cuda::Stream>(step.device().stream()), &attribute_, 1};
  }
  ~BareLaunch() { driver_.module_unload(module_); }
  BareLaunch(const BareLaunch&) = delete;
  BareLaunch& operator=(const BareLaunch&) = delete;

  void operator()() { driver_.check(driver_.launch_ex(&launch_, function_, arguments_, nullptr), "launching"); }

 private:
  const cuda::Driver& driver_ = cuda::driver();
  std::optional<cuda::ContextScope> scope_;
  cuda::ModuleHandle module_ = nullptr;
  cuda::Function function_ = nullptr;
  pt_decode_params params_{};
  void* arguments_[1] = {&params_};
  cuda::LaunchAttribute attribute_{};
  cuda::LaunchConfig launch_{};
};

// select() and launch(): checks, workspace, the choice of a config and, where the config takes tensor maps (long contexts), these. Hosts have phases in which
// every launch takes 0.8 us longer, so bursts take turns with bursts of the driver's launch; counters: medians, and the median of the turns' differences, ns.
void launch_kernel(benchmark::State& state) {
  const auto max_len = static_cast<int>(state.range(0));
  Step step(max_len);
  if (step.device().target().backend != Backend::cuda) return state.SkipWithError("needs a GPU");
  const auto kernel = get_kernel(step.spec(), {device_id(), ":memory:"});
  kernel->prepare(Step::kBatch, max_len);
  step.add_workspace(kernel->workspace_bytes(Step::kBatch, max_len));
  state.SetLabel(kernel->config_json(kernel->select(Step::kBatch, max_len)));
  BareLaunch bare(step);
  std::vector<double> ours, drivers, over;
  for (auto _ : state) {
    drivers.push_back(1e9 * step.burst(bare));
    ours.push_back(1e9 * step.burst([&] { kernel->launch(step.params(), step.device().stream()); }));
    over.push_back(ours.back() - drivers.back());
    state.SetIterationTime(1e-9 * ours.back());
  }
  state.counters["median"] = median(ours);
  state.counters["bare_median"] = median(drivers);
  state.counters["over_bare_median"] = median(over);
}
BENCHMARK(launch_kernel)->ArgName("max_len")->Arg(64)->Arg(8192)->Unit(benchmark::kNanosecond)->UseManualTime()->Iterations(1000);

}  // namespace

BENCHMARK_MAIN();
