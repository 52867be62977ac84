// Stands for the engine's own allocator: memory of the kernel's device. An engine has this already (cudaMalloc, torch tensors, …).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.hpp"

namespace example {

class Memory {
 public:
  explicit Memory(const std::string& device) : device_(pagetune::open_device(device)) {}
  ~Memory() {
    for (void* pointer : owned_) device_->release(pointer);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* allocate(size_t bytes) const {
    owned_.push_back(device_->allocate(bytes));
    return owned_.back();
  }
  template <class T>
  T* copy(const std::vector<T>& host) const {
    void* pointer = allocate(host.size() * sizeof(T));
    device_->upload(pointer, host.data(), host.size() * sizeof(T));
    return static_cast<T*>(pointer);
  }
  template <class T>
  std::vector<T> fetch(const void* pointer, size_t count) const {
    std::vector<T> host(count);
    device_->download(host.data(), pointer, count * sizeof(T));
    return host;
  }
  void* stream() const { return device_->stream(); }

 private:
  std::shared_ptr<pagetune::Device> device_;
  mutable std::vector<void*> owned_;
};

}  // namespace example
