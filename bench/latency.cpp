// Latencies that an engine sees: compiling one decode kernel, taking it from the store, finding it in process, selecting, launching.
//   bench_latency [--benchmark_filter=REGEX]      device: PAGETUNE_BENCH_DEVICE ("auto", "cuda:0", "cpu")
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/device.hpp"

namespace {

using namespace pagetune;
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

// A directory of its own, removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "pagetune-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// NVRTC to cubin, NVRTC's own cache off; no GPU needed.
void compile_cuda(benchmark::State& state) {
  const Target target = Target::by_name("sm_90a");
  const Bucket bucket = bucket_of(state.range(0) == 1 ? 64 : 1, 8192, 0);
  const KernelSource source = generate(llama(), default_config(llama(), target, bucket), target);
  Compiler& compiler = compiler_for(target);
  for (auto _ : state) benchmark::DoNotOptimize(compiler.compile(source).data.size());
}
BENCHMARK(compile_cuda)->ArgName("variant")->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->Iterations(5);

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

void select_config(benchmark::State& state) {
  const auto kernel = get_kernel(llama(), {device_id(), ":memory:"});
  int batch = 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernel->select(batch, 8192, 0));
    batch = batch % 64 + 1;
  }
}
BENCHMARK(select_config)->Unit(benchmark::kNanosecond);

}  // namespace

BENCHMARK_MAIN();
