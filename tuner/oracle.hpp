// The fp64 oracle of decode attention over a paged cache. It follows the contract alone and shares no code with any kernel.
#pragma once
#include <cstddef>
#include <vector>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"
#include "tuner/visibility.hpp"

namespace pagetune {

// A row is a query token, counted as in pt_decode_params: batch * q_len rows, or with cu_seqlens_q as many as its last entry says.
struct Reference {
  std::vector<double> out;  // [row][q_heads][head_dim_v]
  std::vector<double> lse;  // [row][q_heads], natural log; -inf for a row without a visible key and sink; NaN for a row that no kernel may write:
                            // it belongs to no sequence, or it is beyond the first q_len of its sequence
};
int64_t rows_of(const AttentionSpec&, const pt_decode_params&, const ReadMemory& = read_host);

// One (sequence, KV head): out [rows of the sequence][group_size][head_dim_v], lse [rows of the sequence][group_size]; space for q_len rows
// is enough. Returns the number of rows. Lengths are clamped to what the table row can hold, and a sequence with more than q_len query
// tokens is one of q_len; entries outside [0, num_pages) are masked and no pointer is formed from them. Only bytes of visible tokens enter
// the result. Error unsupported for a spec with a feature that the oracle does not know.
int reference_group(const AttentionSpec&, const pt_decode_params&, const ReadMemory&, int sequence, int kv_head, double* out, double* lse);

// All rows, on all cores.
Reference reference(const AttentionSpec&, const pt_decode_params&, const ReadMemory& = read_host);
// The same on the calling thread alone.
Reference reference_here(const AttentionSpec&, const pt_decode_params&, const ReadMemory& = read_host);

}  // namespace pagetune
