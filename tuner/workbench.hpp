// Workbench: what a session needs of a device for one spec: build, verify, time. A seam, so that sessions are tested without a device.
#pragma once
#include <memory>
#include <string>

#include "cache_db/store.hpp"
#include "codegen/binary.hpp"
#include "codegen/bucket.hpp"
#include "runtime/device.hpp"
#include "tuner/policy.hpp"

namespace pagetune {

struct Verdict {
  bool ok = false;
  double error = 0;   // |out - ref| / |ref|
  std::string what;   // what is wrong
};

class Workbench {
 public:
  virtual ~Workbench() = default;

  // Compiles or finds the config's binary and loads it. Thread-safe. Error compile_failed.
  virtual LaunchFacts build(const KernelConfig&) = 0;
  // Runs the config on small ragged problems in poisoned memory against the fp64 oracle.
  virtual Verdict verify(const KernelConfig&) = 0;

  // One problem in memory at a time, shared by all configs that are timed on it.
  virtual void open(Bucket, const std::vector<KernelConfig>&) = 0;
  virtual void close() = 0;
  // One sample on the open problem, in microseconds per launch. The config was built.
  virtual double sample_us(const KernelConfig&) = 0;
};

// The workbench of a real device. Keeps the references.
std::unique_ptr<Workbench> make_workbench(Device&, Store&, const AttentionSpec&, const MeasurePolicy&);

}  // namespace pagetune
