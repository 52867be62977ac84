// Keys differ by KV head, through windows and head-wise lengths; three row tiles.
#include "schedule_host.hpp"

#define SCHEDULE_CASE windowed_case
namespace windowed_case {
namespace spec {
constexpr int group_size = 24, kv_heads = 3, q_len = 2, head_dim = 64, head_dim_v = 64, page_size = 16, dtype = 0, out_dtype = 0;
constexpr bool window = true, sink_tokens = true, headwise = true, chunk = false, block_sparse = false;
constexpr int mask = 0;
}  // namespace spec
namespace config {
constexpr int num_warps = 2, warpgroups = 0, tile_kv = 16, merge = 2, even_share = 0;
}
#include "cuda/schedule.cuh"
}  // namespace windowed_case
#include "schedule_case.hpp"

const pagetune::testing_support::Schedule& pagetune::testing_support::windowed_schedule() { return windowed_case::schedule(); }
