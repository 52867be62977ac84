// Merges the splits of a fixed partition: one warp for 64 dims of a query row. Splits that see no token were never written and are
// never read.
//   grid: x = (KV head, row tile) of a sequence, all its rows a CTA
#include "params.h"
#include "cuda/result.cuh"

extern "C" __global__ void __launch_bounds__(128) pt_merge(const __grid_constant__ pt_decode_params p) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Segment s;
  s.row_tile = blockIdx.x % kRowTiles;
  s.head = blockIdx.x / kRowTiles % spec::kv_heads;
  s.sequence = blockIdx.x / (kRowTiles * spec::kv_heads);
  s.span = span_of(p, s.sequence, s.head);
  RowMap rows;
  rows.open(p, s);
  const Partials parts = fixed_partials(p, s, rows);
  if (parts.count <= 1) return;  // the main kernel wrote the result
  merge_parts(p, s, rows, parts, warp, 4, lane);
}
