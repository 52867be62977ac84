// The analytic default: a good config without any measurement, the reason beside each number.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/space.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

// The defaults of one spec on one target. It remembers which configs the space admits whatever the bucket, so that many calls are asked faster of
// one object than of one each; not by several threads at once.
class DefaultConfigs {
 public:
  // Error unsupported if the target does not support the spec.
  DefaultConfigs(const AttentionSpec&, const Target&);

  // Warps, tiles, stages of one pass over a large batch: what depends on the spec and the target alone.
  KernelConfig shape();
  // V1 or V2 and how many splits, for calls of that shape. With spec.batch_invariant the call is ignored.
  KernelConfig at(const CallShape&);

 private:
  // How the work is shared, as the tuning parameters of the same names say.
  struct Schedule {
    int variant, num_splits, cta_quarters, merge;
    auto operator<=>(const Schedule&) const = default;
    KernelConfig config() const;  // without a shape
  };
  // A config that the space admits as long as no bucket is given.
  struct Candidate {
    KernelConfig config;
    Admission::Values values;
    int64_t ring_bytes = 0;  // K and V of one head in all its stages; 0 on the CPU
  };
  struct Shapes {
    std::vector<Candidate> rings, others;  // in the order of preference
  };

  static Schedule one_pass() { return {1, 1, 0, 0}; }
  static Schedule fixed_partition(int splits, int merge) { return {2, splits, 0, merge}; }
  static Schedule even_share(int quarters) { return {2, 1, quarters, 1}; }

  Shapes& shapes(const Schedule&);
  const KernelConfig* cuda_shape(std::optional<Bucket>, int64_t bytes, const Schedule&);
  const KernelConfig& required_shape(std::optional<Bucket>, int64_t bytes, const Schedule&);
  const KernelConfig* wide_config(const CallShape&);
  bool takes_two_ctas(const CallShape&, int64_t pairs, int64_t pair_bytes, int64_t walk) const;
  const KernelConfig& cuda_config(const CallShape&);
  KernelConfig cpu_config(Bucket);

  AttentionSpec spec_;
  Target target_;
  Admission admission_;
  std::map<Schedule, Shapes> shapes_;  // of the schedules asked for so far
  std::optional<std::vector<Candidate>> wide_;  // for warpgroups, once asked for
  std::vector<Candidate> splits_;      // CPU: of its one shape, the fewest first
};

// The same for one question.
KernelConfig default_shape(const AttentionSpec&, const Target&);
KernelConfig default_config(const AttentionSpec&, const Target&, const CallShape&);

}  // namespace pagetune
