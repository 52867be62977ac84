// From tokens to memory: page look-up and the asynchronous load of one warp's unit of K and V into shared memory.
#pragma once
#include "params.h"
#include "cuda/numeric.cuh"

// A row of head_dim elements in shared memory, padded to whole MMA steps plus 16 bytes: rows then start in different banks, and the
// eight rows of an ldmatrix never collide, whatever the head dim.
constexpr int kDimSteps = ceil_div(spec::head_dim, 16);
constexpr int kRowBytes = kDimSteps * 32 + 16;
constexpr int kRowPieces = spec::head_dim / 8;  // 16-byte pieces that exist in memory
constexpr int kUnitBytes = config::tile_kv * kRowBytes;
constexpr int kStageBytes = 2 * kUnitBytes + 16;  // K, V, and the unit's mask of present tokens
static_assert(config::tile_kv == 16 || config::tile_kv == 32, "a unit is one or two MMA depths, and its mask one register");

// Every token of a unit lies in one page: one look-up and one pointer serve all its rows.
constexpr bool kUnitInPage = spec::page_size % config::tile_kv == 0;

__device__ __forceinline__ void report(const pt_decode_params& p, int kind, int sequence, int head, int slot, int value) {
  const int seen = *const_cast<const volatile int*>(&p.error->kind);
  if (seen > PT_ERROR_TAG && seen <= PT_ERROR_TAG + 3) return;
  if (atomicCAS(&p.error->kind, seen, PT_ERROR_TAG + kind) == seen) {
    p.error->sequence = sequence;
    p.error->head = head;
    p.error->slot = slot;
    p.error->value = value;
  }
}

// The pages of one sequence as one KV head sees them.
struct Pages {
  const pt_decode_params& p;
  const int* row;
  int sequence, head, length, lane;

  // The page id of this lane's token of the unit that begins at `token`, or -1: past the end, absent, or not a page.
  __device__ __forceinline__ int look_up(int token) const {
    const int mine = token + lane % config::tile_kv;
    if (mine >= length) return -1;
    const int slot = static_cast<u32>(mine) / static_cast<u32>(spec::page_size);
    const int id = __ldg(row + slot);
    if (static_cast<u32>(id) < static_cast<u32>(p.num_pages)) return id;
    if constexpr (spec::checked) report(p, id < 0 ? 2 : 1, sequence, head, slot, id);
    return -1;
  }

  // Starts the copies of the unit at `token` into a stage. `id` is this lane's look_up(). Absent rows become zeros without a read.
  __device__ __forceinline__ void load(int token, int id, unsigned char* stage) const {
    constexpr u32 kAll = config::tile_kv == 32 ? 0xffffffffu : (1u << (config::tile_kv % 32)) - 1;
    const u32 present = __ballot_sync(0xffffffffu, id >= 0) & kAll;
    if (lane == 0) *reinterpret_cast<u32*>(stage + 2 * kUnitBytes) = present;
    if (present == 0) return;
    const int mine = token + lane % config::tile_kv;
    const int slot = static_cast<u32>(mine) % static_cast<u32>(spec::page_size);
    // Offsets of the lane's own row; for a unit in one page, of the unit's first row.
    const int first = kUnitInPage ? static_cast<int>(static_cast<u32>(token) % static_cast<u32>(spec::page_size)) : slot;
    const int page = kUnitInPage ? __shfl_sync(0xffffffffu, id, 0) : max(id, 0);
    const i64 k_offset = page * p.k_stride_page + first * p.k_stride_token + head * p.k_stride_head;
    const i64 v_offset = page * p.v_stride_page + first * p.v_stride_token + head * p.v_stride_head;
    const unsigned short* k = static_cast<const unsigned short*>(p.k_cache);
    const unsigned short* v = static_cast<const unsigned short*>(p.v_cache);
    const u32 shared = ptx::shared_address(stage);
    constexpr int kPieces = config::tile_kv * kRowPieces;
#pragma unroll
    for (int base = 0; base < kPieces; base += 32) {
      const int piece = base + lane;
      const int r = piece / kRowPieces, column = piece % kRowPieces;
      i64 k_row, v_row;
      if constexpr (kUnitInPage) {
        k_row = k_offset + r * p.k_stride_token;
        v_row = v_offset + r * p.v_stride_token;
      } else {  // every lane takes part in the shuffle, also those beyond the last piece
        k_row = __shfl_sync(0xffffffffu, k_offset, r % config::tile_kv);
        v_row = __shfl_sync(0xffffffffu, v_offset, r % config::tile_kv);
      }
      if (kPieces % 32 == 0 || piece < kPieces) {
        const bool here = (present >> r) & 1;
        const u32 to = shared + r * kRowBytes + column * 16;
        // An absent row's pointer is never formed from its id: the cache's start stands in, and nothing is read.
        ptx::copy16_async(to, k + (here ? k_row + column * 8 : 0), here ? 16 : 0);
        ptx::copy16_async(to + kUnitBytes, v + (here ? v_row + column * 8 : 0), here ? 16 : 0);
      }
    }
  }
};

// Head dims that are an odd multiple of 8: the last MMA step is half empty, and 0 * garbage must stay 0.
__device__ __forceinline__ void clear_padding(unsigned char* stages, int count, int lane) {
  if constexpr (spec::head_dim % 16 != 0) {
    for (int i = lane; i < count * 2 * config::tile_kv; i += 32) {
      const int stage = i / (2 * config::tile_kv), r = i % (2 * config::tile_kv);
      *reinterpret_cast<uint4*>(stages + stage * kStageBytes + r * kRowBytes + kRowPieces * 16) = make_uint4(0, 0, 0, 0);
    }
  }
}
