// What every launch shares, whatever the backend: the checks against the spec, the workspace's layout, the fields filled by launch.
#pragma once
#include <cstddef>

#include "codegen/launch_plan.hpp"
#include "pagetune/params.h"
#include "pagetune/spec.hpp"

namespace pagetune {

// Workspace of one launch: [error record, only if checked][counters][partial_out][partial_lse], each part 256-byte aligned. 0 for V1
// unchecked. Partial rows: [batch][rows of a sequence][num_splits], or two for each CTA of an even share and each row that a CTA can serve.
size_t workspace_bytes(const AttentionSpec&, int64_t batch, LaunchPlan);

// Checks a call against its spec: sizes, null pointers, strides, alignment, features given or missing, K and V overlapping, workspace.
// Error mismatch or invalid_argument with the value and what is allowed.
void check_params(const AttentionSpec&, LaunchPlan, const pt_decode_params&);

// The parameters as a kernel wants them: the caller's, plus everything after "filled by launch".
pt_decode_params complete(const AttentionSpec&, LaunchPlan, pt_decode_params);

}  // namespace pagetune
