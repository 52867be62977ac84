// A workbench in other processes: a candidate that faults, hangs or corrupts memory costs a worker, never the session.
#pragma once
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tuner/worker_messages.hpp"
#include "tuner/worker_process.hpp"

namespace pagetune {

// Seconds that a worker has for an answer before it is killed.
struct WorkerLimits {
  double start_s = 60;   // to load libraries and open the device
  double build_s = 120;  // the slowest compile, on a busy machine
  double verify_s = 30;  // the references of the first one included
  double open_s = 60;    // and a multiple of what filling the memory takes
  double sample_s = 10;  // or a multiple of what reading the KV takes, if that is more
};

// The worker processes of one device: one that measures, and one for each compile that runs.
//
// Compiles are the workers' too, not this process's: a compiler that crashes or hangs on a candidate is a candidate's fault like any other. Each
// has a process of its own, which keeps them parallel and leaves no doubt which one took its process along; the binary goes through the store.
class Workers {
 public:
  // command: the program that calls serve_worker() with standard input. The workers begin when first asked.
  Workers(std::vector<std::string> command, std::string device_id, Target, const std::string& store_dir, WorkerLimits = {});
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  const WorkerLimits& limits() const { return limits_; }
  WorkerTask task(const AttentionSpec&, const MeasurePolicy&) const;
  // Thread-safe. Error compile_failed, WorkerLost, WorkerUnavailable.
  void compile(const WorkerTask&, const KernelConfig&);
  // Ends the processes that compiled: while others are timed they only take memory.
  void end_compilers();

  // The process that measures, or null; not thread-safe.
  WorkerProcess* measuring() { return measuring_.get(); }
  WorkerProcess& start_measuring();
  void drop_measuring() { measuring_.reset(); }

 private:
  std::vector<std::string> command_;
  std::string device_id_;
  Target target_;
  std::string store_dir_;
  std::filesystem::path own_store_;  // where the session's store keeps nothing: binaries go from process to process through it
  WorkerLimits limits_;
  std::unique_ptr<WorkerProcess> measuring_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerProcess>> idle_compilers_;
};

// Keeps the reference; one at a time. All calls may throw WorkerLost: that worker has been replaced and the call may be made again. They throw
// WorkerUnavailable where no worker can be had.
std::unique_ptr<Workbench> make_remote_workbench(Workers&, const AttentionSpec&, const MeasurePolicy&);

}  // namespace pagetune
