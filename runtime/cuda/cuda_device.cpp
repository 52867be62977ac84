#include "runtime/cuda/cuda_device.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <mutex>

#include "codegen/launch_plan.hpp"
#include "pagetune/error.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/once_table.hpp"

namespace pagetune::cuda {
namespace {

Pointer device_pointer(const void* p) { return reinterpret_cast<Pointer>(p); }
Stream stream_of(void* stream) { return static_cast<Stream>(stream); }

// K and V as tensors of (64 dims, token, panel, KV head, page), in boxes of `box_tokens` tokens and all panels; a head dim that is no multiple of 64 has
// one panel of all dims, and boxes of 64 of them. With the flat address map an id is a page of one head. Strides of axes with one element are never used
// and may be anything: they are replaced.
struct TensorMaps {
  TensorMap k, v;

  void describe(const LaunchFacts& facts, const pt_decode_params& p) {
    encode(k, facts, p.k_cache, facts.head_dim_k, p.k_stride_page, p.k_stride_token, p.k_stride_head, p.num_pages);
    encode(v, facts, p.v_cache, facts.head_dim_v, p.v_stride_page, p.v_stride_token, p.v_stride_head, p.num_pages);
  }

 private:
  static void encode(TensorMap& map, const LaunchFacts& facts, const void* cache, int dim, long long page, long long token, long long head, int pages) {
    using U64 = unsigned long long;
    constexpr int kPanel = 64, kAxes = 5;
    const int panels = dim % kPanel == 0 ? dim / kPanel : 1;
    const U64 sizes[kAxes] = {static_cast<U64>(dim / panels), static_cast<U64>(facts.page_size), static_cast<U64>(panels), facts.flat_map != 0 ? 1 : static_cast<U64>(facts.kv_heads), static_cast<U64>(pages)};
    const long long elements[kAxes - 1] = {token, kPanel, head, page};
    U64 strides[kAxes - 1];
    for (int i = 0; i < kAxes - 1; ++i) strides[i] = sizes[i + 1] > 1 ? static_cast<U64>(elements[i]) * 2 : static_cast<U64>(dim) * 2;
    const unsigned box[kAxes] = {kPanel, static_cast<unsigned>(facts.box_tokens), static_cast<unsigned>(panels), 1, 1}, steps[kAxes] = {1, 1, 1, 1, 1};
    driver().check(driver().tensor_map(&map, facts.dtype == 0 ? kBfloat16 : kFloat16, kAxes, const_cast<void*>(cache), sizes, strides, box, steps, kNoInterleave, kSwizzle128, kPromoteTo128, kZeroFill),
                   "describing the KV cache to the copy engine");
  }
};

// What of a launch the maps of a kernel depend on.
struct CacheLayout {
  const void *k_cache = nullptr, *v_cache = nullptr;
  long long strides[6] = {};
  int num_pages = 0;

  CacheLayout() = default;
  explicit CacheLayout(const pt_decode_params& p)
      : k_cache(p.k_cache), v_cache(p.v_cache), strides{p.k_stride_page, p.k_stride_token, p.k_stride_head, p.v_stride_page, p.v_stride_token, p.v_stride_head}, num_pages(p.num_pages) {}
  bool operator==(const CacheLayout&) const = default;
  uint64_t hash() const {  // the layers of a model differ in their addresses, by multiples of large powers of two
    return (reinterpret_cast<uintptr_t>(k_cache) ^ static_cast<uint64_t>(num_pages)) * 0x9e3779b97f4a7c15u >> 32;
  }
};

class CudaModule final : public Module {
 public:
  CudaModule(Context context, const Binary& binary, const Target& target) : context_(context), facts_(binary.facts), overlaps_(target.compute_capability >= 90), pairs_(facts_.even_share && target.compute_capability == 90) {
    const ContextScope scope(context_);
    const Driver& d = driver();
    d.check(d.module_load(&module_, binary.data.data()), "loading a kernel");
    try {
      d.check(d.module_function(&decode_, module_, "pt_decode"), "looking for pt_decode");
      if (facts_.shared_bytes + facts_.static_shared_bytes > target.shared_per_block)
        throw Error(ErrorCode::unsupported, fmt::format("the kernel needs {} bytes of shared memory a block, {} allows {}",
                                                        facts_.shared_bytes + facts_.static_shared_bytes, target.arch, target.shared_per_block));
      // Also makes the driver load the function now, not in the first launch, which may be inside a capture.
      d.check(d.function_set(decode_, kMaxDynamicShared, facts_.shared_bytes), "raising the shared-memory limit");
      if (facts_.cluster) d.check(d.function_set(decode_, kLargeClusters, 1), "allowing clusters of 16");
      if (facts_.merge_threads > 0) {
        d.check(d.module_function(&merge_, module_, "pt_merge"), "looking for pt_merge");
        d.check(d.function_set(merge_, kMaxDynamicShared, 0), "preparing pt_merge");
      }
    } catch (...) {
      d.module_unload(module_);
      throw;
    }
  }
  ~CudaModule() override {
    try {
      const ContextScope scope(context_);
      driver().module_unload(module_);
    } catch (const Error&) {
      // The driver is shutting down with the process: there is nothing left to unload.
    }
  }

  const LaunchFacts& facts() const override { return facts_; }

  void launch(const pt_decode_params& params, void* stream) const override {
    if (params.batch == 0) return;
    const ContextScope scope(context_);
    const unsigned row_tiles = static_cast<unsigned>(params.batch) * static_cast<unsigned>(facts_.kv_heads * facts_.head_tiles);
    const auto splits = static_cast<unsigned>(params.num_splits);
    if (facts_.cluster && splits % 2 != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("num_splits is {}: a kernel that merges in clusters takes an even number, for clusters of 2, 4, 8 or 16 CTAs", splits));
    const bool overlap = (params.flags & PT_LAUNCH_OVERLAP) != 0 && overlaps_;
    pt_decode_params completed = params;
    if (facts_.even_share) ShareFit(params.batch, facts_.kv_heads * facts_.head_tiles, params.num_ctas, params.window == nullptr && params.seq_lens_stride_head == 0).tell(completed);
    void* arguments[] = {&completed, nullptr};
    TensorMaps spare;
    if (facts_.box_tokens > 0) {
      const CacheLayout layout(params);
      arguments[1] = const_cast<TensorMaps*>(&maps_.find_or_make(layout, layout.hash(), spare, [&](TensorMaps& maps) { maps.describe(facts_, params); }));
    }
    const unsigned ctas = facts_.even_share ? static_cast<unsigned>(params.num_ctas) : row_tiles * splits;
    const unsigned cluster = facts_.cluster ? static_cast<unsigned>(cluster_of(params.num_splits)) : pairs_ && ctas % 2 == 0 ? 2 : 1;
    enqueue(decode_, ctas, facts_.threads, facts_.shared_bytes, overlap, cluster, arguments, stream);
    // The merge always overlaps its own main kernel: it reads nothing before that has finished.
    if (merge_ != nullptr && splits > 1) enqueue(merge_, row_tiles, facts_.merge_threads, 0, overlaps_, 1, arguments, stream);
  }

 private:
  static void enqueue(Function kernel, unsigned ctas, int threads, int shared_bytes, bool overlap, unsigned cluster, void** arguments, void* stream) {
    LaunchAttribute attributes[2];
    LaunchConfig config{{ctas, 1, 1}, {static_cast<unsigned>(threads), 1, 1}, static_cast<unsigned>(shared_bytes), stream_of(stream), attributes, 0};
    if (overlap) {
      LaunchAttribute& attribute = attributes[config.num_attributes++];
      attribute.id = kProgrammaticOverlap;
      attribute.value.allowed = 1;
    }
    if (cluster > 1) {
      LaunchAttribute& attribute = attributes[config.num_attributes++];
      attribute.id = kClusterDimension;
      attribute.value.cluster[0] = cluster;
      attribute.value.cluster[1] = attribute.value.cluster[2] = 1;
    }
    driver().check(driver().launch_ex(&config, kernel, arguments, nullptr), "launching a decode kernel");
  }

  Context context_;
  LaunchFacts facts_;
  bool overlaps_;  // the device has programmatic dependent launch
  bool pairs_;     // CTAs go in clusters of 2, which changes nothing but where they run: neighbours in the line read pages together, 2 % faster on an H200 with 64 dims
  ModuleHandle module_ = nullptr;
  Function decode_ = nullptr, merge_ = nullptr;
  mutable OnceTable<CacheLayout, TensorMaps, 128> maps_;  // a K and V cache for each layer
};

// Times what play() enqueues between two events.
class TimedOnStream : public Device::Recording {
 public:
  TimedOnStream(Context context, Stream stream) : context_(context), stream_(stream) {
    const Driver& d = driver();
    d.check(d.event_create(&begin_, 0), "creating an event");
    d.check(d.event_create(&end_, 0), "creating an event");
  }
  ~TimedOnStream() override {
    const Driver& d = driver();
    d.event_destroy(begin_);
    d.event_destroy(end_);
  }
  double replay_us() final {
    const Driver& d = driver();
    const ContextScope scope(context_);
    d.check(d.event_record(begin_, stream_), "recording an event");
    play(stream_);
    d.check(d.event_record(end_, stream_), "recording an event");
    d.check(d.event_synchronize(end_), "waiting for what was recorded");
    float ms = 0;
    d.check(d.event_elapsed(&ms, begin_, end_), "reading the elapsed time");
    return ms * 1e3;
  }

 protected:
  virtual void play(Stream) = 0;

 private:
  Context context_;
  Stream stream_;
  Event begin_ = nullptr, end_ = nullptr;
};

class GraphRecording final : public TimedOnStream {
 public:
  GraphRecording(Context context, Stream stream, GraphExec graph) : TimedOnStream(context, stream), graph_(graph) {}
  ~GraphRecording() override { driver().graph_exec_destroy(graph_); }

 protected:
  void play(Stream stream) override { driver().check(driver().graph_launch(graph_, stream), "launching a graph"); }

 private:
  GraphExec graph_;
};

class EagerRecording final : public TimedOnStream {
 public:
  EagerRecording(Context context, Stream stream, std::function<void(void*)> calls) : TimedOnStream(context, stream), calls_(std::move(calls)) {}

 protected:
  void play(Stream stream) override { calls_(stream); }

 private:
  std::function<void(void*)> calls_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal), id_("cuda:" + std::to_string(ordinal)) {
    const Driver& d = driver();
    d.check(d.device_get(&handle_, ordinal), ("opening " + id_).c_str());
    const auto attribute = [&](DeviceAttribute which) {
      int value = 0;
      d.check(d.device_attribute(&value, which, handle_), "reading a device attribute");
      return value;
    };
    const int capability = attribute(kComputeCapabilityMajor) * 10 + attribute(kComputeCapabilityMinor);
    target_.backend = Backend::cuda;
    // From sm_90 on, the architecture-specific instructions ("a") exist on exactly this architecture, which is what is compiled for.
    target_.arch = "sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
    target_.compute_capability = capability;
    target_.processors = attribute(kMultiprocessorCount);
    target_.shared_per_block = attribute(kSharedPerBlockOptin);
    target_.shared_per_processor = attribute(kSharedPerMultiprocessor);
    target_.registers_per_processor = attribute(kRegistersPerMultiprocessor);
    target_.threads_per_processor = attribute(kThreadsPerMultiprocessor);

    char name[256] = {};
    d.check(d.device_name(name, sizeof name, handle_), "reading the device's name");
    size_t memory = 0;
    d.check(d.device_memory(&memory, handle_), "reading the device's memory size");
    environment_.backend = "cuda";
    environment_.device = name;
    environment_.arch = target_.arch;
    environment_.processors = target_.processors;
    environment_.memory_bus_bits = attribute(kMemoryBusWidth);
    environment_.memory_clock_khz = attribute(kMemoryClockRate);
    environment_.l2_bytes = attribute(kL2CacheSize);
    environment_.clock_khz = attribute(kClockRate);
    environment_.ecc = attribute(kEccEnabled);
    environment_.driver = driver_version();
    environment_.compiler = nvrtc_version();
    environment_.memory_bytes = static_cast<int64_t>(memory);
  }

  const std::string& id() const override { return id_; }
  const Target& target() const override { return target_; }
  const Environment& environment() const override { return environment_; }
  Compiler& compiler() const override { return nvrtc(); }

  std::shared_ptr<const Module> load(const Binary& binary) override {
    if (binary.arch != target_.arch)
      throw Error(ErrorCode::mismatch, fmt::format("a kernel for {} cannot be loaded on {} ({})", binary.arch, id_, target_.arch));
    return std::make_shared<CudaModule>(context(), binary, target_);
  }

  bool capturing(void* stream) const override {
    const ContextScope scope(context());
    int status = 0;
    driver().check(driver().stream_is_capturing(stream_of(stream), &status), "asking whether the stream is capturing");
    return status != 0;
  }

  void check_pointer(const void* pointer, const char* what) const override {
    const ContextScope scope(context());
    int ordinal = -1;
    if (driver().pointer_attribute(&ordinal, kDeviceOrdinal, device_pointer(pointer)) != 0)
      throw Error(ErrorCode::mismatch, fmt::format("{} ({}) is not device memory; allowed: memory of {}", what, pointer, id_));
    if (ordinal != ordinal_)
      throw Error(ErrorCode::mismatch, fmt::format("{} ({}) is memory of cuda:{}; this kernel was made for {}", what, pointer, ordinal, id_));
  }

  void* allocate(size_t bytes) override {
    const ContextScope scope(context());
    Pointer pointer = 0;
    driver().check(driver().memory_alloc(&pointer, bytes > 0 ? bytes : 1), fmt::format("allocating {} bytes on {}", bytes, id_).c_str());
    return reinterpret_cast<void*>(pointer);
  }
  void release(void* pointer) override {
    if (pointer == nullptr || is_lost(context())) return;  // with its context the memory is gone
    const ContextScope scope(context());
    driver().memory_free(device_pointer(pointer));
  }
  size_t free_bytes() const override {
    const Driver& d = driver();
    size_t free = 0, total = 0;
    Context held = nullptr;  // for the question alone: the device's own may not be made yet, and is not made for this
    d.check(d.primary_context_retain(&held, handle_), "retaining the device's primary context");
    try {
      const ContextScope scope(held);
      d.check(d.memory_info(&free, &total), "asking for free memory");
    } catch (...) {
      d.primary_context_release(handle_);
      throw;
    }
    d.primary_context_release(handle_);
    return free;
  }
  void upload(void* device, const void* host, size_t bytes) override {
    const ContextScope scope(context());
    driver().check(driver().copy_to_device(device_pointer(device), host, bytes), "copying to the device");
    // From pageable memory the call returns once the bytes are staged; stream_ does not wait for the default stream's copy by itself.
    driver().check(driver().stream_synchronize(nullptr), "waiting for a copy");
  }
  void download(void* host, const void* device, size_t bytes) override {
    const ContextScope scope(context());
    driver().check(driver().stream_synchronize(stream_), "waiting for the stream");
    driver().check(driver().copy_to_host(host, device_pointer(device), bytes), "copying from the device");
  }

  void fill_random(void* device, size_t bytes, DType type, uint64_t seed) override {
    if (type != DType::bf16 && type != DType::fp16)
      throw Error(ErrorCode::unsupported, fmt::format("cannot fill device memory with random {}; allowed: bf16, fp16", name_of(type)));
    const ContextScope scope(context());
    const Driver& d = driver();
    std::call_once(fill_once_, [&] {
      const std::string image = compile_utility("templates/cuda/fill.cu", target_.arch);
      d.check(d.module_load(&fill_module_, image.data()), "loading pt_fill");
      d.check(d.module_function(&fill_, fill_module_, "pt_fill"), "looking for pt_fill");
    });
    unsigned long long count = bytes / 2, number = seed;
    int format = type == DType::bf16 ? 0 : 1;
    Pointer pointer = device_pointer(device);
    void* arguments[] = {&pointer, &count, &format, &number};
    d.check(d.launch(fill_, static_cast<unsigned>(target_.processors * 8), 1, 1, 256, 1, 1, 0, stream_, arguments, nullptr), "launching pt_fill");
  }

  void* stream() override {
    context();
    return stream_;
  }
  void synchronize() override { synchronize_stream(stream()); }
  void synchronize_stream(void* stream) override {
    const ContextScope scope(context());
    driver().check(driver().stream_synchronize(stream_of(stream)), "waiting for the stream");
  }

  std::unique_ptr<Recording> record(const std::function<void(void*)>& calls, Launches launches) override {
    const ContextScope scope(context());
    if (launches == Launches::eager) return std::make_unique<EagerRecording>(context(), stream_, calls);
    const Driver& d = driver();
    d.check(d.capture_begin(stream_, kCaptureThreadLocal), "beginning a capture");
    Graph graph = nullptr;
    try {
      calls(stream_);
    } catch (...) {
      d.capture_end(stream_, &graph);
      if (graph != nullptr) d.graph_destroy(graph);
      throw;
    }
    d.check(d.capture_end(stream_, &graph), "ending a capture");
    GraphExec executable = nullptr;
    const Result result = d.graph_instantiate(&executable, graph, 0);
    d.graph_destroy(graph);
    d.check(result, "instantiating a graph");
    return std::make_unique<GraphRecording>(context(), stream_, executable);
  }

 private:
  // The primary context and a stream in it, made when first needed: a process that only asks what a device is holds none of its memory, and leaves it to its workers where the
  // device takes one process at a time (compute mode EXCLUSIVE_PROCESS).
  Context context() const {
    std::call_once(context_once_, [&] {
      const Driver& d = driver();
      d.check(d.primary_context_retain(&context_, handle_), "retaining the device's primary context");
      const ContextScope scope(context_);
      d.check(d.stream_create(&stream_, kStreamNonBlocking), "creating a stream");
    });
    return context_;
  }

  int ordinal_;
  std::string id_;
  DeviceHandle handle_ = 0;
  mutable std::once_flag context_once_;
  mutable Context context_ = nullptr;
  mutable Stream stream_ = nullptr;
  Target target_;
  Environment environment_;
  std::once_flag fill_once_;
  ModuleHandle fill_module_ = nullptr;
  Function fill_ = nullptr;
};

}  // namespace

int device_count() {
  int count = 0;
  driver().check(driver().device_count(&count), "counting devices");
  return count;
}

std::shared_ptr<Device> open_device(int ordinal) { return std::make_shared<CudaDevice>(ordinal); }

}  // namespace pagetune::cuda
