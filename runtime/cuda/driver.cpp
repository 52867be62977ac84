#include "runtime/cuda/driver.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "pagetune/error.hpp"
#include "runtime/cuda/library.hpp"

namespace pagetune::cuda {
namespace {

// Contexts that are gone, and what took them. An engine that goes on calling would get the driver's last error from every call, whatever it asks.
class LostContexts {
 public:
  void add(Context context, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    causes_.try_emplace(context, cause);
    any_.store(true, std::memory_order_release);
  }
  bool has(Context context) {
    if (!any_.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(mutex_);
    return causes_.contains(context);
  }
  [[noreturn]] void report(Context context) {
    const std::lock_guard lock(mutex_);
    throw Error(ErrorCode::context_lost, "the CUDA context is lost since " + causes_[context] + "; no call on this device can succeed any more: end the process and start a new one");
  }

 private:
  std::mutex mutex_;
  std::map<Context, std::string> causes_;
  std::atomic<bool> any_ = false;
};
LostContexts& lost_contexts() {
  static LostContexts lost;
  return lost;
}

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
  const std::string cause = std::string(what) + ": " + (name != nullptr ? name : std::to_string(result)) + (text != nullptr ? std::string(", ") + text : std::string());
  if (!loses_context(result)) throw Error(ErrorCode::device_error, cause);
  Context current = nullptr;
  context_current(&current);
  lost_contexts().add(current, cause);
  lost_contexts().report(current);
}

bool loses_context(Result result) {
  // cuda.h: ECC and NVLink uncorrectable; illegal address, launch timeout, context destroyed, assert, hardware stack, illegal instruction, misaligned
  // address, invalid address space, invalid program counter, launch failed
  constexpr Result kSticky[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kSticky), std::end(kSticky), result) != std::end(kSticky);
}

bool is_lost(Context context) { return lost_contexts().has(context); }

const Driver& driver() {
  static const Driver instance = load_driver();
  return instance;
}

std::string driver_version() {
  int version = 0;
  driver().check(driver().driver_version(&version), "reading the driver's version");
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

ContextScope::ContextScope(Context context) {
  if (lost_contexts().has(context)) lost_contexts().report(context);
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
