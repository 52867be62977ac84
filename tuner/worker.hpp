// The worker's side of a tuning session: a process that does what its session asks, so that a candidate's fault ends it and not the session.
#pragma once
#include <memory>

#include "tuner/worker_messages.hpp"

namespace pagetune {

// What a worker works with. A seam, so that sessions are tested against workers that misbehave.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // Compiles or finds the config's binary in the store, without the device.
  virtual LaunchFacts compile(const WorkerTask&, const KernelConfig&) = 0;
  virtual std::unique_ptr<Workbench> workbench(const WorkerTask&) = 0;
};
std::unique_ptr<WorkerHost> make_worker_host();

// Answers the requests that come in through `socket` until its other end is closed. Returns the process's exit code.
int serve_worker(int socket, WorkerHost&);

}  // namespace pagetune
