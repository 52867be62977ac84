// What every launch shares, whatever the backend: the checks against the spec, the workspace's layout, the fields filled by launch.
#pragma once
#include <cstddef>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"

namespace pagetune {

// Workspace of one launch: [error record, only if checked][partial_out][partial_lse], each part 256-byte aligned. 0 for V1 unchecked.
size_t workspace_bytes(const AttentionSpec&, int64_t batch, int num_splits);

// Checks a call against its spec: sizes, null pointers, strides, alignment, features given or missing, K and V overlapping, workspace.
// Error mismatch or invalid_argument with the value and what is allowed.
void check_params(const AttentionSpec&, int num_splits, const pt_decode_params&);

// The parameters as a kernel wants them: the caller's, plus everything after "filled by launch".
pt_decode_params complete(const AttentionSpec&, int num_splits, pt_decode_params);

}  // namespace pagetune
