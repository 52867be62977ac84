// The host's CPU as a Device.
#pragma once
#include <memory>
#include <string>

#include "runtime/cpu/linker.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "runtime/device.hpp"

namespace pagetune {

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, Compiler&, std::shared_ptr<Linker>);

  const std::string& id() const override { return id_; }
  const Target& target() const override { return target_; }
  const Environment& environment() const override { return environment_; }
  Compiler& compiler() const override { return compiler_; }
  // Error io: damaged, or of another compiler. Error mismatch: made for a CPU with features that this one lacks.
  std::shared_ptr<const Module> load(const Binary&) override;
  bool capturing(void*) const override { return false; }
  void check_pointer(const void*, const char*) const override {}

  void* allocate(size_t bytes) override;
  void release(void*) override;
  size_t free_bytes() const override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;
  void fill_random(void* device, size_t bytes, DType, uint64_t seed) override;
  void* stream() override { return nullptr; }
  void synchronize() override {}
  void synchronize_stream(void*) override {}
  std::unique_ptr<Recording> record(const std::function<void(void* stream)>& calls, Launches) override;

 private:
  std::string id_ = "cpu";
  Target target_;
  Environment environment_;
  Compiler& compiler_;
  std::shared_ptr<Linker> linker_;
  std::shared_ptr<ThreadPool> pool_;
};

}  // namespace pagetune
