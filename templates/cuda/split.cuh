// How the tiles of one sequence are shared among splits: main kernel and merge ask the same function.
#pragma once
#include "params.h"
#include "cuda/numeric.cuh"

constexpr int kTileTokens = config::num_warps * config::tile_kv;  // tokens of one CTA tile

// Tokens of a sequence that its table row can hold; a longer claim is cut, so that nothing past the row is read.
__device__ __forceinline__ int usable_length(const pt_decode_params& p, int sequence) {
  const int length = max(__ldg(p.seq_lens + sequence), 0);
  const i64 capacity = static_cast<i64>(p.block_table_width) * spec::page_size;
  return static_cast<int>(length < capacity ? static_cast<i64>(length) : capacity);
}

struct Shares {
  int tiles;  // of the sequence
  int each;   // tiles per split, the last may have fewer
  int used;   // splits that hold at least one tile; depends on the sequence's own length only
};

__device__ __forceinline__ Shares shares_of(int length, int num_splits) {
  const int tiles = (length + kTileTokens - 1) / kTileTokens;
  if (tiles == 0) return {0, 0, 0};
  const int each = (tiles + num_splits - 1) / num_splits;
  return {tiles, each, (tiles + each - 1) / each};
}
