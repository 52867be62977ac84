// As the uniform case, but with a table row for each KV head.
#include "schedule_host.hpp"

#define SCHEDULE_CASE headwise_case
namespace headwise_case {
namespace spec {
constexpr int group_size = 20, kv_heads = 2, q_len = 1, head_dim = 64, head_dim_v = 64, page_size = 16, dtype = 0, out_dtype = 0;
constexpr bool window = false, sink_tokens = false, headwise = true, chunk = false, block_sparse = false;
constexpr int mask = 0;
}  // namespace spec
namespace config {
constexpr int num_warps = 2, warpgroups = 0, tile_kv = 16, merge = 1, even_share = 1;
}
#include "cuda/schedule.cuh"
}  // namespace headwise_case
#include "schedule_case.hpp"

const pagetune::testing_support::Schedule& pagetune::testing_support::headwise_schedule() { return headwise_case::schedule(); }
