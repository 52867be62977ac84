#include <filesystem>

#include <fmt/format.h>

#include "cache_db/database.hpp"
#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "pagetune/error.hpp"
#include "runtime/cpu_provider.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/device.hpp"
#include "tuner/cli/check.hpp"

namespace pagetune::cli {
namespace {

// Empty if the default kernel of the plainest spec can be made for the device, else why not.
std::string compile_fault(const Device& device) {
  try {
    const AttentionSpec spec;
    device.compiler().compile(generate(spec, default_config(spec, device.target(), Bucket{0, Bucket::kMinLenLog2}), device.target()));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The kernel's part of the driver is there and lets this process in.
bool has_gpu_node() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored);
}

Check check_driver(int& gpus) {
  Check check{.what = "NVIDIA driver"};
  try {
    const std::string version = cuda::driver_version();
    gpus = cuda::device_count();
    check.facts = {{"version", version}, {"devices", gpus}};
    check.found = fmt::format("libcuda for CUDA {}, {} device{}", version, gpus, gpus == 1 ? "" : "s");
    if (gpus == 0) {
      check.level = Level::warning;
      check.remedy = "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES if this machine has one";
    }
  } catch (const Error& error) {
    check.level = has_gpu_node() ? Level::error : Level::warning;
    check.found = error.what();
    check.remedy = has_gpu_node() ? "this machine has a GPU that cannot be used: repair its driver" : "nothing, if no GPU is to be used here";
  }
  return check;
}

Check check_nvrtc(int gpus) {
  Check check{.what = "NVRTC"};
  try {
    const std::string identity = cuda::nvrtc().identity();
    check.facts = {{"identity", identity}, {"path", cuda::nvrtc_path()}};
    check.found = fmt::format("{} at {}", identity, cuda::nvrtc_path());
  } catch (const Error& error) {
    check.level = gpus > 0 ? Level::error : Level::warning;
    check.found = error.what();
    check.remedy = gpus > 0 ? "install CUDA's NVRTC package (libnvrtc.so.12 or .13) or set PAGETUNE_NVRTC to the file" : "nothing, if no GPU is to be used or compiled for here";
  }
  return check;
}

Check check_gpu(int ordinal, std::vector<Environment>& devices) {
  const std::string id = fmt::format("cuda:{}", ordinal);
  Check check{.what = id};
  try {
    const std::shared_ptr<Device> device = open_device(id);
    check.facts = {{"device", device->environment().device}, {"arch", device->target().arch}, {"environment", device->environment().key()}};
    if (const std::string fault = compile_fault(*device); !fault.empty()) {
      check.level = Level::error;
      check.found = fmt::format("{}: no kernel can be compiled for {}: {}", device->environment().device, device->target().arch, fault);
      check.remedy = "install an NVRTC that knows this architecture, or set PAGETUNE_NVRTC to one";
      return check;
    }
    devices.push_back(device->environment());
    check.found = fmt::format("{}, kernels compile for {}", device->environment().device, device->target().arch);
  } catch (const Error& error) {
    check.level = Level::error;
    check.found = error.what();
    check.remedy = "see NVRTC and the driver above; another process may hold the device alone (nvidia-smi shows the compute mode)";
  }
  return check;
}

Check check_cpu(int gpus, std::vector<Environment>& devices) {
  Check check{.what = "CPU backend"};
  try {
    const std::shared_ptr<Device> device = open_device("cpu");
    check.facts = {{"path", cpu_library()}, {"compiler", device->compiler().identity()}, {"arch", device->target().arch}, {"environment", device->environment().key()}};
    if (const std::string fault = compile_fault(*device); !fault.empty()) throw Error(ErrorCode::compile_failed, fault);
    devices.push_back(device->environment());
    check.found = fmt::format("{} at {}, kernels compile for {}", device->compiler().identity(), cpu_library(), device->target().arch);
  } catch (const Error& error) {
    check.level = gpus > 0 ? Level::warning : Level::error;
    check.found = error.what();
    check.remedy = gpus > 0 ? "nothing, if no kernels are to run on the CPU" : "there is no device at all: install libpagetune_cpu.so beside the program or set PAGETUNE_CPU_BACKEND to its path";
  }
  return check;
}

Check check_sqlite() {
  Check check{.what = "SQLite"};
  const int number = SQLite::getLibVersionNumber();
  const bool safe = wal_is_safe(number);
  check.facts = {{"version", SQLite::getLibVersion()}, {"wal_reset_fault", !safe}, {"journal", wanted_journal()}};
  check.found = fmt::format("{}, {} the fault by which a WAL database can lose commits: journal mode {}", SQLite::getLibVersion(), safe ? "without" : "with", wanted_journal());
  return check;
}

}  // namespace

const char* name_of(Level level) {
  switch (level) {
    case Level::ok: return "ok";
    case Level::warning: return "warning";
    case Level::error: return "error";
  }
  return "?";
}

std::vector<Check> machine_checks(std::vector<Environment>& devices) {
  int gpus = 0;
  std::vector<Check> checks{check_driver(gpus)};
  checks.push_back(check_nvrtc(gpus));
  for (int i = 0; i < gpus; ++i) checks.push_back(check_gpu(i, devices));
  checks.push_back(check_cpu(gpus, devices));
  checks.push_back(check_sqlite());
  return checks;
}

}  // namespace pagetune::cli
