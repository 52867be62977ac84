// Windows, chunks and sink tokens together, for a few query tokens.
#include "schedule_host.hpp"

#define SCHEDULE_CASE chunked_case
namespace chunked_case {
namespace spec {
constexpr int group_size = 2, kv_heads = 2, q_len = 3, head_dim = 64, head_dim_v = 64, page_size = 16, dtype = 0, out_dtype = 0;
constexpr bool window = true, sink_tokens = true, headwise = false, chunk = true, block_sparse = false;
constexpr int mask = 0;
}  // namespace spec
namespace config {
constexpr int num_warps = 2, warpgroups = 0, tile_kv = 16, merge = 1, even_share = 1;
}
#include "cuda/schedule.cuh"
}  // namespace chunked_case
#include "schedule_case.hpp"

const pagetune::testing_support::Schedule& pagetune::testing_support::chunked_schedule() { return chunked_case::schedule(); }
