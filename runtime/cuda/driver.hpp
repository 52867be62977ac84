// The few functions of libcuda that pagetune uses, found with dlopen: a machine without a driver builds, tests and runs the CPU backend.
// Types and numbers follow the driver's stable C ABI, so that no toolkit is needed to build.
#pragma once
#include <cstddef>
#include <string>

namespace pagetune::cuda {

using Result = int;
using DeviceHandle = int;
using Context = struct ContextTag*;
using ModuleHandle = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using Pointer = unsigned long long;

enum DeviceAttribute : int {
  kClockRate = 13,
  kMultiprocessorCount = 16,
  kEccEnabled = 32,
  kMemoryClockRate = 36,
  kMemoryBusWidth = 37,
  kL2CacheSize = 38,
  kThreadsPerMultiprocessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedPerBlockOptin = 97,
};
enum FunctionAttribute : int { kMaxDynamicShared = 8, kLargeClusters = 14 };
enum PointerAttribute : int { kDeviceOrdinal = 9 };
enum LaunchAttributeId : int { kClusterDimension = 4, kProgrammaticOverlap = 6 };
struct LaunchAttribute {
  LaunchAttributeId id;
  int padding;
  union {
    unsigned cluster[3];
    int allowed;
    char bytes[64];
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
// A tensor map as the copy engine reads it.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
enum TensorElement : int { kFloat16 = 6, kBfloat16 = 9 };
constexpr int kNoInterleave = 0, kSwizzle128 = 3, kPromoteTo128 = 2, kZeroFill = 0;
constexpr int kCaptureThreadLocal = 1;
constexpr unsigned kStreamNonBlocking = 1;
constexpr Result kErrorNoDevice = 100;

// One row per function: member name, symbol, signature.
#define PAGETUNE_DRIVER_FUNCTIONS(X)                                                                                                     \
  X(init, "cuInit", Result(unsigned))                                                                                                    \
  X(driver_version, "cuDriverGetVersion", Result(int*))                                                                                  \
  X(error_name, "cuGetErrorName", Result(Result, const char**))                                                                          \
  X(error_string, "cuGetErrorString", Result(Result, const char**))                                                                      \
  X(device_count, "cuDeviceGetCount", Result(int*))                                                                                      \
  X(device_get, "cuDeviceGet", Result(DeviceHandle*, int))                                                                               \
  X(device_name, "cuDeviceGetName", Result(char*, int, DeviceHandle))                                                                    \
  X(device_attribute, "cuDeviceGetAttribute", Result(int*, int, DeviceHandle))                                                           \
  X(device_memory, "cuDeviceTotalMem_v2", Result(size_t*, DeviceHandle))                                                                 \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", Result(Context*, DeviceHandle))                                                  \
  X(primary_context_release, "cuDevicePrimaryCtxRelease_v2", Result(DeviceHandle))                                                       \
  X(context_current, "cuCtxGetCurrent", Result(Context*))                                                                                \
  X(context_push, "cuCtxPushCurrent_v2", Result(Context))                                                                                \
  X(context_pop, "cuCtxPopCurrent_v2", Result(Context*))                                                                                 \
  X(module_load, "cuModuleLoadData", Result(ModuleHandle*, const void*))                                                                 \
  X(module_unload, "cuModuleUnload", Result(ModuleHandle))                                                                               \
  X(module_function, "cuModuleGetFunction", Result(Function*, ModuleHandle, const char*))                                                \
  X(function_set, "cuFuncSetAttribute", Result(Function, int, int))                                                                      \
  X(launch, "cuLaunchKernel",                                                                                                            \
    Result(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))                      \
  X(launch_ex, "cuLaunchKernelEx", Result(const LaunchConfig*, Function, void**, void**))                                                \
  X(tensor_map, "cuTensorMapEncodeTiled",                                                                                                \
    Result(TensorMap*, int, unsigned, void*, const unsigned long long*, const unsigned long long*, const unsigned*, const unsigned*, int, int, int, int)) \
  X(memory_alloc, "cuMemAlloc_v2", Result(Pointer*, size_t))                                                                             \
  X(memory_free, "cuMemFree_v2", Result(Pointer))                                                                                        \
  X(memory_info, "cuMemGetInfo_v2", Result(size_t*, size_t*))                                                                            \
  X(copy_to_device, "cuMemcpyHtoD_v2", Result(Pointer, const void*, size_t))                                                             \
  X(copy_to_host, "cuMemcpyDtoH_v2", Result(void*, Pointer, size_t))                                                                     \
  X(pointer_attribute, "cuPointerGetAttribute", Result(void*, int, Pointer))                                                             \
  X(stream_create, "cuStreamCreate", Result(Stream*, unsigned))                                                                          \
  X(stream_synchronize, "cuStreamSynchronize", Result(Stream))                                                                           \
  X(stream_is_capturing, "cuStreamIsCapturing", Result(Stream, int*))                                                                    \
  X(capture_begin, "cuStreamBeginCapture_v2", Result(Stream, int))                                                                       \
  X(capture_end, "cuStreamEndCapture", Result(Stream, Graph*))                                                                           \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", Result(GraphExec*, Graph, unsigned long long))                                     \
  X(graph_launch, "cuGraphLaunch", Result(GraphExec, Stream))                                                                            \
  X(graph_exec_destroy, "cuGraphExecDestroy", Result(GraphExec))                                                                         \
  X(graph_destroy, "cuGraphDestroy", Result(Graph))                                                                                      \
  X(event_create, "cuEventCreate", Result(Event*, unsigned))                                                                             \
  X(event_record, "cuEventRecord", Result(Event, Stream))                                                                                \
  X(event_synchronize, "cuEventSynchronize", Result(Event))                                                                              \
  X(event_elapsed, "cuEventElapsedTime", Result(float*, Event, Event))                                                                   \
  X(event_destroy, "cuEventDestroy_v2", Result(Event))

template <class Signature>
struct Pointee;
template <class R, class... Args>
struct Pointee<R(Args...)> {
  using type = R (*)(Args...);
};

struct Driver {
#define PAGETUNE_MEMBER(member, symbol, ...) typename Pointee<__VA_ARGS__>::type member = nullptr;
  PAGETUNE_DRIVER_FUNCTIONS(PAGETUNE_MEMBER)
#undef PAGETUNE_MEMBER

  // Error device_error: "<what>: CUDA_ERROR_…, <the driver's text>"; context_lost where the result says that the context is gone, which from
  // then on every ContextScope of it says too.
  void check(Result result, const char* what) const;
};

// Does a result mean that the context it came from is lost: a fault of a kernel, memory that cannot be trusted, a context that was destroyed?
bool loses_context(Result);
// Was that seen of this context?
bool is_lost(Context);

// The driver, initialised once per process. Error no_device with what was tried.
const Driver& driver();

// "13.0": the newest CUDA that the driver knows. Errors likewise.
std::string driver_version();

// Makes a context current for a scope; costs one look at the thread's current context where it already is. Error context_lost.
class ContextScope {
 public:
  explicit ContextScope(Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace pagetune::cuda
