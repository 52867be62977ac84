// The analytic default: a good config without any measurement. Two small pure functions, the reason beside each number.
#pragma once
#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

// Warps, tiles, stages of one pass over a large batch: what depends on the spec and the target alone.
KernelConfig default_shape(const AttentionSpec&, const Target&);
// V1 or V2 and how many splits, for calls of that shape. With spec.batch_invariant it is ignored.
KernelConfig default_config(const AttentionSpec&, const Target&, const CallShape&);

}  // namespace pagetune
