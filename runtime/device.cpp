#include "runtime/device.hpp"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <mutex>

#include "pagetune/error.hpp"
#include "runtime/cpu_provider.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace pagetune {
namespace {

std::shared_ptr<Device> open_cuda(const std::string& id) {
  int ordinal = -1;
  const char* end = id.data() + id.size();
  const auto [parsed, error] = std::from_chars(id.data() + 5, end, ordinal);
  if (error != std::errc() || parsed != end || ordinal < 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("device '{}' is not known; allowed: auto, cpu, cuda:N", id));
  const int count = cuda::device_count();
  if (ordinal >= count) throw Error(ErrorCode::no_device, fmt::format("there is no {}: this machine has {} CUDA device{}", id, count, count == 1 ? "" : "s"));
  return cuda::open_device(ordinal);
}

std::shared_ptr<Device> open_best() {
  std::string reason;
  try {
    if (cuda::device_count() > 0) return open_device("cuda:0");
    reason = "no CUDA device is visible";
  } catch (const Error& error) {
    reason = error.what();
  }
  try {
    return open_device("cpu");
  } catch (const Error& error) {
    throw Error(ErrorCode::no_device, "no device: " + reason + "; " + error.what());
  }
}

}  // namespace

std::shared_ptr<Device> open_device(const std::string& id) {
  static std::recursive_mutex mutex;
  static std::map<std::string, std::shared_ptr<Device>> devices;
  const std::lock_guard lock(mutex);
  auto& device = devices[id];
  if (device == nullptr) {
    if (id == "auto") device = open_best();
    else if (id == "cpu") device = open_cpu_device();
    else if (id.starts_with("cuda:")) device = open_cuda(id);
    else throw Error(ErrorCode::invalid_argument, fmt::format("device '{}' is not known; allowed: auto, cpu, cuda:N", id));
  }
  return device;
}

DeviceList list_devices() {
  DeviceList list;
  try {
    for (int i = 0, count = cuda::device_count(); i < count; ++i) list.ids.push_back("cuda:" + std::to_string(i));
    if (list.ids.empty()) list.absent.emplace_back("cuda: no device is visible");
  } catch (const Error& error) {
    list.absent.push_back(std::string("cuda: ") + error.what());
  }
  try {
    list.ids.push_back(open_device("cpu")->id());
  } catch (const Error& error) {
    list.absent.push_back(std::string("cpu: ") + error.what());
  }
  return list;
}

Compiler& compiler_for(const Target& target) { return target.backend == Backend::cuda ? cuda::nvrtc() : cpu_compiler(); }

}  // namespace pagetune
