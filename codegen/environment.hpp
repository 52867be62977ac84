// Environment: the fingerprint of a measured device. Device::environment() is the only maker, for tuner and runtime alike.
#pragma once
#include <cstdint>
#include <string>

namespace pagetune {

struct Environment {
  // strict identity
  std::string backend;        // "cuda", "cpu"
  std::string device;         // product name
  std::string arch;           // Target::arch
  std::string cpu_features;   // CPU only
  int processors = 0;         // SMs or hardware threads
  int memory_bus_bits = 0;    // CUDA only
  int memory_clock_khz = 0;   // CUDA only
  int l2_bytes = 0;
  int clock_khz = 0;          // maximum; CUDA only
  int ecc = 0;                // CUDA only
  std::string driver;         // "13.0"; CPU: empty
  std::string compiler;       // "nvrtc 13.0", "llvm 19.1"
  // recorded, not keyed
  int64_t memory_bytes = 0;

  bool operator==(const Environment&) const = default;

  std::string canonical_json() const;                    // all fields
  static Environment from_json(const std::string& text);
  std::string key() const;                               // sha256 of the strict identity's canonical JSON
  std::string class_text() const;                        // "cuda sm_90a 132 processors": fallback for winners of a near relative
  std::string text() const;                              // for people: "NVIDIA H200 (sm_90a, driver 13.0, nvrtc 13.0)"
  // Name for files: "NVIDIA_H200"; only letters, digits, '.', '_' and '-'.
  std::string file_name() const;
};

}  // namespace pagetune
