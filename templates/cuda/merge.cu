// Merges the splits of a fixed partition. Splits that see no token were never written and are never read.
//   grid: x = (KV head, row tile) of a sequence, all its rows a CTA
#include "params.h"
#include "cuda/result.cuh"

constexpr int kMergeThreads = 256, kMergeBytes = 40 * 1024;

extern "C" __global__ void __launch_bounds__(kMergeThreads) pt_merge(const __grid_constant__ pt_decode_params p) {
  __shared__ __align__(16) unsigned char memory[kMergeBytes];
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  Segment s;
  s.row_tile = blockIdx.x % kRowTiles;
  s.head = blockIdx.x / kRowTiles % spec::kv_heads;
  s.sequence = blockIdx.x / (kRowTiles * spec::kv_heads);
  s.span = span_of(p, s.sequence, s.head);
  RowMap rows;
  rows.open(p, s);
  const Partials parts = fixed_partials(p, s);
  if (parts.count <= 1) return;  // the main kernel wrote the result
  merge_parts<kMergeThreads, kMergeBytes>(p, s, rows, 0, rows.live, parts, true, threadIdx.x, memory, [] { __syncthreads(); });
}
