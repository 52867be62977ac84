#include "runtime/cuda/driver.hpp"

#include <dlfcn.h>

#include "pagetune/error.hpp"
#include "runtime/cuda/library.hpp"

namespace pagetune::cuda {
namespace {

Driver load_driver() {
  std::string tried;
  void* handle = open_library({"libcuda.so.1", "libcuda.so"}, tried);
  if (handle == nullptr)
    throw Error(ErrorCode::no_device, "no NVIDIA driver: libcuda.so.1 could not be loaded (" + tried + "); install the driver or use the CPU backend (device 'cpu')");
  Driver d;
#define PAGETUNE_LOAD(member, symbol, ...)                                                       \
  d.member = reinterpret_cast<typename Pointee<__VA_ARGS__>::type>(dlsym(handle, symbol));       \
  if (d.member == nullptr)                                                                       \
    throw Error(ErrorCode::no_device, "the NVIDIA driver is too old: libcuda has no " symbol "; pagetune needs CUDA 12.0 or newer");
  PAGETUNE_DRIVER_FUNCTIONS(PAGETUNE_LOAD)
#undef PAGETUNE_LOAD
  const Result result = d.init(0);
  if (result != 0) {
    const char* name = nullptr;
    d.error_name(result, &name);
    throw Error(ErrorCode::no_device, std::string("no CUDA device: cuInit says ") + (name != nullptr ? name : std::to_string(result)) +
                                          "; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU backend (device 'cpu')");
  }
  return d;
}

}  // namespace

void Driver::check(Result result, const char* what) const {
  if (result == 0) return;
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  throw Error(ErrorCode::device_error, std::string(what) + ": " + (name != nullptr ? name : std::to_string(result)) + (text != nullptr ? std::string(", ") + text : std::string()));
}

const Driver& driver() {
  static const Driver instance = load_driver();
  return instance;
}

ContextScope::ContextScope(Context context) {
  const Driver& d = driver();
  Context current = nullptr;
  d.check(d.context_current(&current), "asking for the current context");
  if (current == context) return;
  d.check(d.context_push(context), "making the device's context current");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  Context popped = nullptr;
  driver().context_pop(&popped);
}

}  // namespace pagetune::cuda
