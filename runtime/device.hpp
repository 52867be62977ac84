// Device: a GPU or the CPU as pagetune sees it. Compiler: turns a KernelSource into a Binary without needing a device.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/binary.hpp"
#include "codegen/environment.hpp"
#include "codegen/generate.hpp"
#include "codegen/target.hpp"
#include "pagetune/params.h"

namespace pagetune {

class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual std::string identity() const = 0;             // "nvrtc 13.0.48"
  // Error compile_failed with the compiler's log and the entry's name. Binary::key is binary_key(source, identity()). Thread-safe.
  virtual Binary compile(const KernelSource&) = 0;
  // Launch facts of an image of this compiler; throws Error io if the image is damaged or its facts do not fit this build.
  virtual LaunchFacts read_facts(const std::string& data) = 0;
  // The assembly or intermediate text of a source for `pagetune gen`: stage "ptx", "sass", "ir", … Error invalid_argument if it has no such stage.
  virtual std::string listing(const KernelSource&, const std::string& stage) = 0;
};

// A Binary loaded on a device.
class Module {
 public:
  virtual ~Module() = default;
  virtual const LaunchFacts& facts() const = 0;
  // Enqueues the main kernel and, with num_splits > 1, the merge. The parameters were checked and completed by the caller. Allocates
  // nothing, never synchronises (CPU: runs to the end).
  virtual void launch(const pt_decode_params&, void* stream) const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& id() const = 0;            // "cuda:0", "cpu"
  virtual const Target& target() const = 0;
  virtual const Environment& environment() const = 0;
  virtual Compiler& compiler() const = 0;
  virtual std::shared_ptr<const Module> load(const Binary&) = 0;
  virtual bool capturing(void* stream) const = 0;
  // Is this memory of this device (CPU: always true)? Error mismatch naming the pointer's device where it is another one's.
  virtual void check_pointer(const void*, const char* what) const = 0;

  // Memory and time, for the tuner, the tests and the benches. Never used at launch.
  virtual void* allocate(size_t bytes) = 0;              // 256-byte aligned; Error device_error
  virtual void release(void*) = 0;
  virtual size_t free_bytes() const = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void fill_random(void* device, size_t bytes, DType, uint64_t seed) = 0;  // uniform in [-2, 2), never constant
  virtual void* stream() = 0;                            // one stream of the device's own; null for the CPU
  virtual void synchronize() = 0;                        // waits for stream(); Error device_error if something failed since
  virtual void synchronize_stream(void* stream) = 0;     // the same for a stream of the caller's

  // Calls to be timed again and again. As a graph they are made once and replayed by the device; eagerly they are made anew each time, and their host time counts
  // where it is what the device waits for. (The CPU knows only the latter.)
  enum class Launches { graph, eager };
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual double replay_us() = 0;                      // one replay, wall time on the device, in microseconds
  };
  virtual std::unique_ptr<Recording> record(const std::function<void(void* stream)>& calls, Launches = Launches::graph) = 0;
};

// "auto", "cuda:N", "cpu". Opened once per id and process. Error no_device says which libraries or devices were looked for and where.
std::shared_ptr<Device> open_device(const std::string& id);
// Ids of all devices that open_device() would open; a reason for each backend that is absent.
struct DeviceList {
  std::vector<std::string> ids;
  std::vector<std::string> absent;
};
DeviceList list_devices();
// The compiler for a target, with or without such a device. Error no_device if its library cannot be loaded.
Compiler& compiler_for(const Target&);

}  // namespace pagetune
