// The fp64 oracle of decode attention over a paged cache. It follows the contract alone and shares no code with any kernel.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"

namespace pagetune {

// How the oracle reads what the parameters point to: host memory, or a device's through Device::download.
using ReadMemory = std::function<void(void* to, const void* from, size_t bytes)>;
void read_host(void* to, const void* from, size_t bytes);

struct Reference {
  std::vector<double> out;  // [batch][q_heads][head_dim_v]
  std::vector<double> lse;  // [batch][q_heads], natural log; -inf for a row without a visible key
};

// The query heads of one (sequence, KV head): out [group_size][head_dim_v], lse [group_size]. Lengths are clamped to what the table row
// can hold; entries outside [0, num_pages) are masked and no pointer is formed from them. Only bytes of visible tokens enter the
// result. Error unsupported for a spec with a feature that the oracle does not know.
void reference_group(const AttentionSpec&, const pt_decode_params&, const ReadMemory&, int sequence, int kv_head, double* out, double* lse);

// All rows, on all cores.
Reference reference(const AttentionSpec&, const pt_decode_params&, const ReadMemory& = read_host);

}  // namespace pagetune
