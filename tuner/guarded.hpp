// Device memory between guard zones, and the pattern that poisons everything a kernel may not read or must overwrite.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.hpp"

namespace pagetune {

// A pattern of 16-bit words that is NaN as bf16, fp16 and fp32 and a negative int32, and differs from word to word, so that a guard
// copied from elsewhere is seen. Continues a longer pattern at byte `offset` (even).
void fill_poison(void* memory, size_t bytes, size_t offset = 0);
// Offset of the first byte that differs from fill_poison()'s pattern, or `bytes` if all is as it was.
size_t first_difference_from_poison(const void* memory, size_t bytes, size_t offset = 0);

// `bytes` of device memory with a patterned zone on either side, right against its first and last byte. Holds poison until filled.
class GuardedBuffer {
 public:
  static constexpr size_t kGuardBytes = 4096;

  GuardedBuffer(Device&, size_t bytes);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() const { return static_cast<char*>(base_) + kGuardBytes; }
  size_t size() const { return bytes_; }
  void upload(const void* host);  // all of it
  void poison();
  std::vector<char> download() const;
  // Empty if both zones are intact; else "guard before …" or "guard after …" with the offset of the first changed byte.
  std::string damage() const;

 private:
  Device& device_;
  size_t bytes_;
  void* base_;
};

}  // namespace pagetune
