// From tokens to pages to shared memory. A stage holds the K and V of one tile; the warps take the tiles of a walk in turn.
// config::loader: 0 cp.async and 1 bulk copies of rows, each warp a pipeline of its own with num_stages stages; 2 a producer warp that fetches
// boxes through tensor maps into a ring of num_stages stages for all warps.
#pragma once
#include "params.h"
#include "cuda/schedule.cuh"

// The tensor maps of K and V, made by the host at launch: dims (64 of the head dim, token, panel, KV head, page), or, where the head dim is no multiple
// of 64, (head dim, token, 1, KV head, page), so that what lies beyond it comes as zeros.
struct pt_tensor_maps {
  alignas(64) unsigned char k[128];
  alignas(64) unsigned char v[128];
};

constexpr int kLoadCopies = 0, kLoadRows = 1, kLoadBoxes = 2;
constexpr bool kProducer = config::loader == kLoadBoxes;
static_assert(config::loader == kLoadCopies || kHopper, "bulk copies need sm_90");
static_assert(config::tile_kv == 16 || config::tile_kv == 32, "a tile is one or two MMA tiles, and its mask one register");
constexpr int kBoxTokens = min_of(spec::page_size, config::tile_kv);  // of a box: it lies in one page
constexpr int kBoxes = config::tile_kv / kBoxTokens;                  // of a tile: pages that it lies in
static_assert(!kProducer || (config::tile_kv % kBoxTokens == 0 && spec::page_size % kBoxTokens == 0 && kBoxTokens % 8 == 0), "boxes fill pages and tiles, in whole periods of the swizzle");
// Producer warps: each fills every so many-th stage. One alone issues a tile's copies in about half a microsecond, however small they are: two keep up with copies of
// 4 KiB, but not with smaller ones where a ring is too large for a second CTA with its own (64 dims on pages of 16, 8 x 32768: 134 us with two, 122 with four; on pages of 64 119 and
// 122). As many as there is room for where a multiprocessor hands out registers, to four warps at a time, and as share the stages evenly.
constexpr int producers(int most) { return config::num_warps % most == 0 && ceil_div(config::num_warps + most, 4) == ceil_div(config::num_warps + 1, 4) ? most : producers(most - 1); }
constexpr int kCopyBytes = kBoxTokens * 128 * (spec::head_dim % 64 == 0 ? spec::head_dim / 64 : 1);
constexpr int kRingBytes = config::num_stages * config::tile_kv * (spec::head_dim + spec::head_dim_v) * 2, kHalfOfAProcessor = 112 * 1024;
constexpr int kProducers = !kProducer ? 0 : kWarpgroups ? 4 : producers(kCopyBytes < 4096 && kRingBytes > kHalfOfAProcessor ? 4 : 2);  // a warpgroup gives its registers to others as a whole
// A barrier tells one round of its stage from the next, not from the one after: a team may wait for a stage only if it was the last to empty it.
static_assert(!kProducer || (config::num_stages % kTeams == 0 && config::num_stages % kProducers == 0), "each stage of the ring belongs to one team and one producer");
// Tiles that a producer of an even share brings into the L2 when the ring is full for the first time: the kernel before usually still merges then, and the memory
// would rest until the first tile is done with. 64 KiB of a CTA are 2 % of 30 us; twice as much delays that merge, and with rows of 512 bytes, whose parts are the longest, so does this.
constexpr int kTilesBeyondRing = config::even_share ? max_of(min_of(512 / (spec::head_dim + spec::head_dim_v), 8), 1) : 0;
constexpr int kLoaderStep = kProducer ? kProducers : config::num_warps;  // from a loader's tile to its next

constexpr int kDimSteps = ceil_div(spec::head_dim, 16);
constexpr u32 kAllPresent = config::tile_kv == 32 ? 0xffffffffu : (1u << (config::tile_kv % 32)) - 1;

// Rows of one of K and V in a stage, so that the eight rows of an ldmatrix never share a bank. Padded: whole MMA steps plus 16 bytes a row.
// Boxes: [box][panel of 64 dims][row], 128 bytes a row, whose 16-byte pieces the copy engine permutes by the row's number (128-byte swizzle).
template <int kDim>
struct Rows {
  static constexpr int kPitch = kProducer ? 128 : ceil_div(kDim, 16) * 32 + 16;
  static constexpr int kPanels = kProducer ? ceil_div(kDim, 64) : 1;
  static constexpr int kPanelBytes = (kProducer ? kBoxTokens : config::tile_kv) * kPitch;
  static constexpr int kBoxBytes = kPanels * kPanelBytes;
  static constexpr int kBytes = kPanels * config::tile_kv * kPitch;
  static constexpr int kCopies = kDim % 64 == 0 ? 1 : kPanels;  // of a box: all panels of its rows at once, or one by one

  __device__ __forceinline__ static u32 row_at(int row) { return kProducer ? row / kBoxTokens * kBoxBytes + row % kBoxTokens * 128 : row * kPitch; }
  // A lane's address of row `row`, 16-byte piece `piece` of the first step; step() moves it on by MMA steps of 16 dims and tiles of 16 tokens.
  __device__ __forceinline__ static u32 lane_offset(int row, int piece) { return row_at(row) + ((kProducer ? piece ^ (row & 7) : piece) << 4); }
  __device__ __forceinline__ static u32 step(u32 base, u32 offset, int token_tile, int dim_step) {
    if constexpr (kProducer) return base + row_at(token_tile * 16) + dim_step / 4 * kPanelBytes + (offset ^ (dim_step % 4 << 5));
    return base + offset + row_at(token_tile * 16) + dim_step * 32;
  }
  // Byte offset of an element.
  __device__ __forceinline__ static u32 element(int row, int dim) {
    if constexpr (kProducer) return row_at(row) + dim / 64 * kPanelBytes + ((dim % 64 / 8 ^ (row & 7)) << 4) + dim % 8 * 2;
    return row_at(row) + dim * 2;
  }
  // Makes a row zeros: a V row that must not count, since 0 * garbage must stay 0.
  __device__ __forceinline__ static void clear(unsigned char* rows, int row) {
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel)
      for (int at = 0; at < (kProducer ? 128 : kDim * 2); at += 16) *reinterpret_cast<uint4*>(rows + row_at(row) + panel * kPanelBytes + at) = make_uint4(0, 0, 0, 0);
  }
};
using KeyRows = Rows<spec::head_dim>;
using ValueRows = Rows<spec::head_dim_v>;
constexpr int kStageAlign = kProducer ? 1024 : 16;  // the swizzle's period
constexpr int kStageBytes = round_up(KeyRows::kBytes + ValueRows::kBytes, kStageAlign);
constexpr int kValuesAt = KeyRows::kBytes;
constexpr int kStages = kProducer ? config::num_stages : config::num_warps * config::num_stages;  // of the CTA

// What lies behind the stages: their masks of present tokens, then the barriers "full" and, with a producer, "empty", and those of warpgroups.
constexpr int kPresentAt = kStages * kStageBytes;
constexpr int kBarriersAt = round_up(kPresentAt + kStages * 4, 8);
constexpr int kTeamBarriersAt = kBarriersAt + (config::loader == kLoadCopies ? 0 : kStages * (kProducer ? 16 : 8));
constexpr int kPipelineBytes = kTeamBarriersAt + (kWarpgroups ? kTeams * 8 : 0);

__device__ __forceinline__ void report(const pt_decode_params& p, int kind, int sequence, int head, int slot, int value) {
  const int seen = *const_cast<const volatile int*>(&p.error->kind);
  if (seen > PT_ERROR_TAG && seen <= PT_ERROR_TAG + 4) return;
  if (atomicCAS(&p.error->kind, seen, PT_ERROR_TAG + kind) == seen) {
    p.error->sequence = sequence;
    p.error->head = head;
    p.error->slot = slot;
    p.error->value = value;
  }
}

// What a launch claims and a kernel cuts: lengths beyond the table row, more query tokens than the kernel has rows for.
__device__ __forceinline__ void check_claims(const pt_decode_params& p, int sequence, int head, const Span& span) {
  const int claimed = __ldg(length_at(p, sequence, head));
  if (claimed > span.length) report(p, 3, sequence, head, claimed, span.length);
  if (spec::q_len > 1 && p.cu_seqlens_q != nullptr) {
    const int tokens = __ldg(p.cu_seqlens_q + sequence + 1) - __ldg(p.cu_seqlens_q + sequence);
    if (tokens > spec::q_len) report(p, 4, sequence, head, 0, tokens);
  }
}

// The pages of one pair. A producer serves all warps, tile after tile, and cannot wait for the table each time: its lanes hold the ids of
// consecutive table slots, and of as many slots after them.
struct Pages {
  const int* row;
  i64 k_head, v_head;  // element offsets
  int base, ids, more;  // producer: ids of the slots base + lane and base + 32 + lane

  __device__ __forceinline__ void open(const pt_decode_params& p, int sequence, int head) {
    const i64 r = spec::headwise ? static_cast<i64>(sequence) * spec::kv_heads + head : static_cast<i64>(sequence);
    row = p.block_tables + r * p.block_table_stride;
    k_head = spec::flat_map ? 0 : head * p.k_stride_head;
    v_head = spec::flat_map ? 0 : head * p.v_stride_head;
    base = -64;
  }
  // The page id of a token, or -1: unreadable, absent, or not a page.
  __device__ __forceinline__ int look_up(const pt_decode_params& p, const Segment& s, int token) const {
    const Visibility visibility{p, s.sequence, s.head};
    if (!visibility.readable(s.span, token)) return -1;
    const int slot = static_cast<u32>(token) / static_cast<u32>(spec::page_size);
    return valid(p, s, slot, __ldg(row + slot));
  }
  // Asks for the slots from that of token `first` on, by the whole warp.
  __device__ __forceinline__ void ask(const Segment& s, int first, int lane) {
    base = static_cast<u32>(first) / static_cast<u32>(spec::page_size);
    ids = entry(s, base + lane);
    more = entry(s, base + 32 + lane);
  }
  // The page id of the lane's token of a tile that begins at token `first`, by the whole warp.
  __device__ __forceinline__ int look_up_ahead(const pt_decode_params& p, const Segment& s, int first, int lane) {
    const int begin = static_cast<u32>(first) / static_cast<u32>(spec::page_size);  // a tile's slots never straddle 32 from another's first on
    if (static_cast<u32>(begin - base) >= 64u) {
      ask(s, first, lane);
    } else if (begin - base >= 32) {
      base += 32;
      ids = more;
      more = entry(s, base + 32 + lane);
    }
    const int token = first + lane % config::tile_kv, slot = static_cast<u32>(token) / static_cast<u32>(spec::page_size);
    return readable(p, s, token, slot, __shfl_sync(0xffffffffu, ids, slot - base));
  }
  // The same without asking for anything: -1 where no lane holds the id.
  __device__ __forceinline__ int held(const pt_decode_params& p, const Segment& s, int first, int lane) const {
    const int token = first + lane % config::tile_kv, slot = static_cast<u32>(token) / static_cast<u32>(spec::page_size), at = slot - base;
    const int soon = __shfl_sync(0xffffffffu, ids, at % 32), later = __shfl_sync(0xffffffffu, more, at % 32);
    return at < 64 ? readable(p, s, token, slot, at < 32 ? soon : later) : -1;
  }

 private:
  __device__ __forceinline__ int readable(const pt_decode_params& p, const Segment& s, int token, int slot, int id) const {
    const Visibility visibility{p, s.sequence, s.head};
    return visibility.readable(s.span, token) ? valid(p, s, slot, id) : -1;
  }
  __device__ __forceinline__ int entry(const Segment& s, int slot) const {
    return static_cast<u32>(slot) * static_cast<u32>(spec::page_size) < static_cast<u32>(s.span.hi) ? __ldg(row + slot) : -1;  // 63 slots on, a product may need the 32nd bit
  }
  __device__ __forceinline__ int valid(const pt_decode_params& p, const Segment& s, int slot, int id) const {
    if (static_cast<u32>(id) < static_cast<u32>(p.num_pages)) return id;
    if constexpr (spec::checked) report(p, id < 0 ? 2 : 1, s.sequence, s.head, slot, id);
    return -1;
  }
};

// Walks the tiles of one warp, or those that one producer warp fills, in order: every so many-th of a walk, wherever its segments end.
struct Loader {
  Pages pages;
  int at;  // the next tile, counted from the segment's first; beyond its last: as far in the next segment
  int id;  // of the lane's token's page

  __device__ __forceinline__ int first_token(const Segment& s) const { return s.span.token_of(s.first + at); }
  __device__ __forceinline__ int token(const Segment& s, int lane) const { return first_token(s) + lane % config::tile_kv; }
  __device__ __forceinline__ void look_up(const pt_decode_params& p, const Segment& s, int lane) {
    id = -1;
    if (at >= s.count) return;
    if constexpr (kProducer) id = pages.look_up_ahead(p, s, first_token(s), lane);
    else id = pages.look_up(p, s, token(s, lane));
  }
  __device__ __forceinline__ u32 present() const { return __ballot_sync(0xffffffffu, id >= 0) & kAllPresent; }
  // Positions from length - tokens on are the step's own: the preceding kernel may still be writing them.
  __device__ __forceinline__ bool is_old(const Segment& s) const { return first_token(s) + config::tile_kv <= s.span.first_position(); }
  __device__ __forceinline__ int slot(const Segment& s, int lane) const { return static_cast<u32>(token(s, lane)) % static_cast<u32>(spec::page_size); }

  // Only brings the tile's lines near: its bytes are read after the wait.
  __device__ __forceinline__ void prefetch(const pt_decode_params& p, const Segment& s, int lane) const {
    if (id < 0) return;
    const char* k = static_cast<const char*>(p.k_cache) + 2 * (id * p.k_stride_page + slot(s, lane) * p.k_stride_token + pages.k_head);
    const char* v = static_cast<const char*>(p.v_cache) + 2 * (id * p.v_stride_page + slot(s, lane) * p.v_stride_token + pages.v_head);
    if (config::tile_kv == 32 || lane < 16)
      for (int at = 0; at < spec::head_dim * 2; at += 128) ptx::prefetch_l2(k + at);
    if (config::tile_kv == 32 || lane >= 16)
      for (int at = 0; at < spec::head_dim_v * 2; at += 128) ptx::prefetch_l2(v + at);
  }

  // Starts the copies of the tile into a stage. Absent rows are never addressed; their V becomes zeros, their scores are masked.
  __device__ __forceinline__ void copy(const pt_decode_params& p, const Segment& s, u32 present, unsigned char* stage, int lane) const {
    const u32 shared = ptx::shared_address(stage);
    const int page = max(id, 0);
    const i64 k_offset = page * p.k_stride_page + slot(s, lane) * p.k_stride_token + pages.k_head;
    const i64 v_offset = page * p.v_stride_page + slot(s, lane) * p.v_stride_token + pages.v_head;
    copy_rows<spec::head_dim, KeyRows::kPitch>(shared, static_cast<const unsigned short*>(p.k_cache), k_offset, p.k_stride_token, present, lane);
    copy_rows<spec::head_dim_v, ValueRows::kPitch>(shared + kValuesAt, static_cast<const unsigned short*>(p.v_cache), v_offset, p.v_stride_token, present, lane);
  }
  // The same with a bulk copy of each row, on a barrier.
  __device__ __forceinline__ void copy_bulk(const pt_decode_params& p, const Segment& s, u32 present, unsigned char* stage, u32 barrier, int lane) const {
    if (lane == 0) ptx::barrier_expect(barrier, __popc(present) * (spec::head_dim + spec::head_dim_v) * 2);
    __syncwarp();
    if (present == 0) return;
    const u32 shared = ptx::shared_address(stage);
    const int r = lane % config::tile_kv;
    const bool keys = config::tile_kv == 32 || lane < 16, values = config::tile_kv == 32 || lane >= 16;
    if (id >= 0) {
      if (keys) {
        const unsigned short* k = static_cast<const unsigned short*>(p.k_cache) + (id * p.k_stride_page + slot(s, lane) * p.k_stride_token + pages.k_head);
        ptx::copy_bulk(shared + r * KeyRows::kPitch, k, spec::head_dim * 2, barrier);
      }
      if (values) {
        const unsigned short* v = static_cast<const unsigned short*>(p.v_cache) + (id * p.v_stride_page + slot(s, lane) * p.v_stride_token + pages.v_head);
        ptx::copy_bulk(shared + kValuesAt + r * ValueRows::kPitch, v, spec::head_dim_v * 2, barrier);
      }
    } else if (values) {
      ValueRows::clear(stage + kValuesAt, r);
      ptx::fence_async();
    }
  }
  // One box for each page, of each panel where the head dim is no multiple of 64. Rows that are not present come along where their page is valid; the
  // consumer clears them.
  __device__ __forceinline__ void copy_boxes(const Segment& s, u32 present, u32 stage, u32 barrier, const pt_tensor_maps& maps) const {
    constexpr int kPanels = KeyRows::kPanels + ValueRows::kPanels;
    constexpr u32 kBoxMask = kBoxTokens == 32 ? 0xffffffffu : (1u << (kBoxTokens % 32)) - 1;
    const int first = first_token(s), head = spec::flat_map ? 0 : s.head;
    int pages[kBoxes], boxes = 0;
    bool here[kBoxes];
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const u32 rows = present >> (box * kBoxTokens) & kBoxMask;
      here[box] = rows != 0;
      boxes += here[box];
      pages[box] = __shfl_sync(0xffffffffu, id, box * kBoxTokens + max(__ffs(rows) - 1, 0));
    }
    if (!ptx::elect_one()) return;
    ptx::barrier_expect(barrier, boxes * kPanels * kBoxTokens * 128);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (!here[box]) continue;
      const int token = static_cast<u32>(first + box * kBoxTokens) % static_cast<u32>(spec::page_size);
#pragma unroll
      for (int panel = 0; panel < KeyRows::kCopies; ++panel)  // where a copy brings one panel
        ptx::copy_box(stage + box * KeyRows::kBoxBytes + panel * KeyRows::kPanelBytes, maps.k, panel * 64, token, 0, head, pages[box], barrier);
#pragma unroll
      for (int panel = 0; panel < ValueRows::kCopies; ++panel)
        ptx::copy_box(stage + kValuesAt + box * ValueRows::kBoxBytes + panel * ValueRows::kPanelBytes, maps.v, panel * 64, token, 0, head, pages[box], barrier);
    }
  }

 private:
  // cp.async: 16 bytes a lane. `offset` is that of the lane's own token.
  template <int kDim, int kPitch>
  __device__ __forceinline__ static void copy_rows(u32 shared, const unsigned short* cache, i64 offset, i64 stride, u32 present, int lane) {
    constexpr bool kTileInPage = spec::page_size % config::tile_kv == 0;
    constexpr int kRowPieces = kDim / 8, kPieces = config::tile_kv * kRowPieces;
    if (kTileInPage && present == kAllPresent) {  // one page, all of it: pointers advance by constants of the launch
      const unsigned short* first = cache + __shfl_sync(0xffffffffu, offset, 0);
      if constexpr (32 % kRowPieces == 0) {
        constexpr int kRowsAtOnce = 32 / kRowPieces;
        const unsigned short* from = first + lane / kRowPieces * stride + lane % kRowPieces * 8;
        const u32 to = shared + lane / kRowPieces * kPitch + lane % kRowPieces * 16;
#pragma unroll
        for (int r = 0; r < config::tile_kv; r += kRowsAtOnce) {
          if (kPieces % 32 == 0 || lane < kPieces) ptx::copy16_async(to + r * kPitch, from);
          from += kRowsAtOnce * stride;
        }
      } else {
#pragma unroll
        for (int base = 0; base < kPieces; base += 32) {
          const int piece = base + lane, r = piece / kRowPieces, column = piece % kRowPieces;
          if (kPieces % 32 == 0 || piece < kPieces) ptx::copy16_async(shared + r * kPitch + column * 16, first + r * stride + column * 8);
        }
      }
      return;
    }
#pragma unroll 2
    for (int base = 0; base < kPieces; base += 32) {
      const int piece = base + lane, r = piece / kRowPieces, column = piece % kRowPieces;
      const i64 row = __shfl_sync(0xffffffffu, offset, r % config::tile_kv);
      if (kPieces % 32 == 0 || piece < kPieces) {
        const bool here = (present >> r) & 1;
        // An absent row's pointer is never formed from its id: the cache's start stands in, and nothing is read.
        ptx::copy16_or_zero_async(shared + r * kPitch + column * 16, cache + (here ? row + column * 8 : 0), here ? 16 : 0);
      }
    }
  }
};

// Head dims that are an odd multiple of 8: the last MMA step of q . k is half empty, and 0 * garbage must stay 0. (Boxes bring zeros.)
__device__ __forceinline__ void clear_padding(unsigned char* stages, int lane) {
  if constexpr (spec::head_dim % 16 != 0 && !kProducer) {
#pragma unroll 1
    for (int i = lane; i < config::num_stages * config::tile_kv; i += 32)
      *reinterpret_cast<uint4*>(stages + i / config::tile_kv * kStageBytes + i % config::tile_kv * KeyRows::kPitch + spec::head_dim * 2) = make_uint4(0, 0, 0, 0);
    __syncwarp();
  }
}
