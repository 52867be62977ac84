#include "runtime/cpu/device.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "pagetune/error.hpp"
#include "runtime/cpu/host.hpp"
#include "runtime/cpu/module.hpp"
#include "runtime/cpu/object_file.hpp"
#include "runtime/cpu/random_fill.hpp"

namespace pagetune {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;

class CpuRecording final : public Device::Recording {
 public:
  explicit CpuRecording(std::function<void(void*)> calls) : calls_(std::move(calls)) {}
  double replay_us() override {
    const auto start = std::chrono::steady_clock::now();
    calls_(nullptr);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  std::function<void(void*)> calls_;
};

}  // namespace

CpuDevice::CpuDevice(int threads, Compiler& compiler, std::shared_ptr<Linker> linker)
    : target_(host_target(threads)),
      environment_(host_environment(threads)),
      compiler_(compiler),
      linker_(std::move(linker)),
      pool_(std::make_shared<ThreadPool>(threads)) {}

std::shared_ptr<const Module> CpuDevice::load(const Binary& binary) {
  if (binary.kind != "object") throw Error(ErrorCode::mismatch, "the CPU was given a binary of kind '" + binary.kind + "'; allowed: object");
  const OpenedObject object = open_object(binary.data, compiler_.identity());
  const auto missing = missing_features(object.footer.arch, object.footer.cpu_features);
  if (!missing.empty())
    throw Error(ErrorCode::mismatch, "the object was made for " + object.footer.arch + " and wants " + missing.front() +
                                         ", which this CPU (" + target_.arch + ") does not offer; compile for target cpu or this host");
  return std::make_shared<CpuModule>(object.facts, linker_->link(object.elf), pool_);
}

void* CpuDevice::allocate(size_t bytes) {
  void* memory = nullptr;
  // One head's rows of an nhd cache are 2 KiB and more apart: with 4 KiB pages every other row is a TLB miss.
  const bool huge = bytes >= kHugePage;
  if (posix_memalign(&memory, huge ? kHugePage : kAlignment, bytes == 0 ? 1 : bytes) != 0)
    throw Error(ErrorCode::device_error, "the CPU device cannot allocate " + std::to_string(bytes) + " bytes; about " +
                                             std::to_string(free_bytes()) + " are free");
  if (huge) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint: without it the kernels are only slower
  return memory;
}

void CpuDevice::release(void* memory) { std::free(memory); }
size_t CpuDevice::free_bytes() const { return static_cast<size_t>(available_memory_bytes()); }

void CpuDevice::upload(void* device, const void* host, size_t bytes) {
  if (bytes != 0) std::memcpy(device, host, bytes);
}
void CpuDevice::download(void* host, const void* device, size_t bytes) {
  if (bytes != 0) std::memcpy(host, device, bytes);
}

void CpuDevice::fill_random(void* device, size_t bytes, DType type, uint64_t seed) { pagetune::fill_random(device, bytes, type, seed); }

std::unique_ptr<Device::Recording> CpuDevice::record(const std::function<void(void* stream)>& calls, Launches) {
  return std::make_unique<CpuRecording>(calls);
}

}  // namespace pagetune
