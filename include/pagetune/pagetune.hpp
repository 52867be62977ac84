// The C++ API of pagetune: from an AttentionSpec to tuned, cached kernels.
//
//   auto kernel = pagetune::get_kernel(spec);            // slow, once: cache, compile, load
//   kernel->prepare(max_batch, max_len);                 // before capturing a CUDA graph
//   size_t bytes = kernel->workspace_bytes(max_batch, max_len);
//   kernel->launch(params, stream);                      // no allocation, no lock, no synchronisation
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "pagetune/error.hpp"
#include "pagetune/params.h"
#include "pagetune/spec.hpp"

namespace pagetune {

// A call's parameters with size and version set and everything else zero.
pt_decode_params make_decode_params();
// Fills the q, out, K, V and table strides for contiguous tensors in the spec's layout.
void set_contiguous_strides(const AttentionSpec&, int block_table_width, pt_decode_params&);

struct KernelOptions {
  std::string device = "auto";  // "auto" (first GPU, else CPU), "cuda:N", "cpu"
  std::string cache_dir;        // empty: PAGETUNE_CACHE_DIR, else $XDG_CACHE_HOME/pagetune, ~/.cache/pagetune, memory; ":memory:" keeps nothing
  std::string snapshot;         // empty: choose from the stored winners; else the bytes of another rank's Kernel::snapshot()
};

// Where the configs of a kernel's dispatch table came from. other_device: a winner of another environment of the device's class, for want of its own.
enum class Source : uint8_t { tuned, nearest, analytic_default, other_device };

struct Selection {
  uint16_t index = 0;  // of the config, in the kernel's own list
  Source source = Source::analytic_default;
};

// All configs of one spec on one device that its dispatch table can choose. Thread-safe. Lives as long as someone holds it.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual const AttentionSpec& spec() const = 0;
  virtual const std::string& device() const = 0;

  // The config for a batch of `batch` sequences whose longest has max_len tokens; total_len is the sum of the lengths, 0 if unknown. Give it where it is
  // known: some configs are the fastest for sequences of one length and are chosen only if the sum says so.
  // Table look-up only.
  virtual Selection select(int batch, int max_len, int64_t total_len = 0) const noexcept = 0;
  virtual std::string config_json(Selection) const = 0;

  // Enough for every launch with batch <= max_batch and max_len <= max_len, whatever select() picks.
  virtual size_t workspace_bytes(int max_batch, int max_len) const = 0;

  // Compiles and loads every config that such launches can choose. Later launches beyond these maxima are errors; a second call can
  // only raise them.
  virtual void prepare(int max_batch, int max_len) = 0;

  // Checks the call against the kernel and enqueues it on `stream` (a CUstream; ignored by the CPU backend, which returns when done).
  // Without prepare() the first launch of a config compiles it; inside a stream capture that is Error not_prepared and the capture
  // stays usable. Launches for which the store has no winner are counted there, for `pagetune tune --from-untuned`; a thread writes the counts.
  virtual void launch(const pt_decode_params&, void* stream) = 0;
  virtual void launch(const pt_decode_params&, Selection, void* stream) = 0;

  // For checked specs: waits for the stream and throws Error bad_table if a launch met a bad block-table entry; then clears the record.
  virtual void check(void* workspace, void* stream) = 0;

  // sha256 over spec, dispatch table and configs, hex: equal on ranks that will run the same kernels.
  virtual std::string digest() const = 0;
  // The dispatch table as bytes: a rank that gives them to get_kernel() in KernelOptions::snapshot runs the same kernels, whatever its own store holds.
  virtual std::string snapshot() const = 0;
};

// The kernel of a spec on a device. One compile per key across threads and processes; the same object for the same arguments as long
// as someone holds it. Throws Error unsupported with supports()'s reason.
std::shared_ptr<Kernel> get_kernel(const AttentionSpec&, const KernelOptions& = {});

// After an engine's warm-up: what happens when a launch or prepare() would still compile or load a kernel. off: it does, uncounted; warn: it does, and one line on stderr for each kernel says so;
// error: Error not_prepared. Of the whole process, from now on; warn and error count in Stats::frozen_misses.
enum class Freeze : uint8_t { off, warn, error };
void freeze(Freeze);

struct Stats {
  uint64_t kernel_hits, kernel_misses;                         // get_kernel()
  uint64_t compiles, binaries_loaded_from_store, corrupt_binaries;
  uint64_t selected_tuned, selected_nearest, selected_default, selected_other_device; // launches
  uint64_t capture_refusals, frozen_misses;
};
Stats stats();

}  // namespace pagetune
