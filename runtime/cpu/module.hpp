// A compiled kernel in executable memory.
#pragma once
#include <memory>

#include "runtime/cpu/linker.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "runtime/device.hpp"

namespace pagetune {

class CpuModule final : public Module {
 public:
  CpuModule(const LaunchFacts&, std::unique_ptr<Linker::Linked>, std::shared_ptr<ThreadPool>);

  const LaunchFacts& facts() const override { return facts_; }
  // Runs to the end on the device's pool. The bits do not depend on the number of threads.
  void launch(const pt_decode_params&, void* stream) const override;

 private:
  using Entry = void (*)(const pt_decode_params*, int worker, int workers);
  using Cost = long long (*)(const pt_decode_params*);

  LaunchFacts facts_;
  std::unique_ptr<Linker::Linked> code_;
  std::shared_ptr<ThreadPool> pool_;
  Cost cost_ = nullptr;
  Entry decode_ = nullptr;
  Entry merge_ = nullptr;  // null for V1
};

}  // namespace pagetune
