// Decode attention over a paged KV cache on tensor cores (sm_80 and up): one or a few query tokens per sequence, packed with the group.
//
// A CTA serves up to 16 query rows of one (sequence, KV head) at a time, or up to 64, and walks segments of KV tiles (schedule.cuh), which its warps, or
// warpgroups, take in turn; every warp keeps an asynchronous-copy pipeline of its own, or a producer one for all, that runs on across segments, so the main loop has
// no CTA barrier and the end of one segment overlaps the loads of the next. The teams' states meet at a segment's end in shared memory; what
// several CTAs hold of one result is merged by a second kernel, by the last CTA to arrive, or in clusters, and where a result takes several clusters,
// by the last of those to arrive.
//   grid: fixed partition: split + num_splits * (row tile + row tiles * (KV head + kv_heads * sequence)); even share: num_ctas
#include "params.h"
#include "cuda/ptx.cuh"
#include "cuda/numeric.cuh"
#include "cuda/visibility.cuh"
#include "cuda/schedule.cuh"
#include "cuda/paging.cuh"
#include "cuda/attend.cuh"
#if PT_WARPGROUPS
#include "cuda/rows_in_m.cuh"
#else
#include "cuda/tokens_in_m.cuh"
#endif
#include "cuda/result.cuh"
#include "cuda/ending.cuh"

// With a producer as many CTAs to a multiprocessor as shared memory has room for and as their registers hold the fragments and what else is live, so
// that one fills its ring while another ends. Else one is enough for the bound: ptxas would aim at fewer registers and spill a word or two to get there.
constexpr bool together(int ctas) {
  constexpr int kProcessorBytes = kWorkstation ? 100 * 1024 : 228 * 1024, kReservedBytes = 1024;  // the system's, of a CTA
  const int registers = 512 / ceil_div(ctas * kThreads, 128) / 8 * 8;                              // of a thread: 16384 for the warps of each quarter
  return ctas * (kSharedBytes + kReservedBytes) <= kProcessorBytes && kStateRegisters <= registers;
}
constexpr int kMinCtas = !kProducer ? 1 : together(3) ? 3 : together(2) ? 2 : 1;

// Read back from the compiled image by the host, in the order of LaunchFacts.
extern "C" __device__ int pt_facts[19] = {
    static_cast<int>(sizeof(pt_decode_params)), PT_PARAMS_VERSION, config::variant, kThreads, kSharedBytes, kTileTokens, kLiveRows, kRowTiles,
    kSplit && config::merge == kMergeKernel ? 256 : 0, spec::kv_heads, spec::q_heads, config::even_share, kSplit && config::merge == kMergeCluster,
    kProducer ? kBoxTokens : 0, spec::page_size, spec::head_dim, spec::head_dim_v, spec::flat_map, spec::dtype};

// A producer warp: fills its stages of the ring, tile by tile, in the order in which the warps consume them.
__device__ __forceinline__ void produce(const pt_decode_params& p, const pt_tensor_maps& maps, unsigned char* memory, Walk walk, int producer, int lane) {
  const u32 stages = ptx::shared_address(memory), barriers = stages + kBarriersAt;
  u32* present_of = reinterpret_cast<u32*>(memory + kPresentAt);
  Loader loader;
  loader.at = producer;
  loader.pages.open(p, walk.now.sequence, walk.now.head);
  Walk ahead = walk;
  Pages asked;  // of the next segment
  bool asks = true;
  int stage = producer;
  u32 parity = 1;  // the first round finds all stages empty
  int empty = kStages / kProducers;  // of this warp's stages, until it has filled each once
  bool alone = false;
#pragma unroll 1
  for (;;) {
    if (loader.at < walk.now.count) {
      loader.look_up(p, walk.now, lane);
      if (!alone && !loader.is_old(walk.now)) {
        loader.prefetch(p, walk.now, lane);
        ptx::wait_for_previous_kernel();
        alone = true;
      }
      const u32 present = loader.present();
      ptx::barrier_wait(barriers + kStages * 8 + stage * 8, parity);
      if (lane == 0) present_of[stage] = present;
      __syncwarp();  // the lane that is elected arrives at the barrier for this one too
      loader.copy_boxes(walk.now, present, stages + stage * kStageBytes, barriers + stage * 8, maps);
      stage += kProducers;
      if (stage >= kStages) {
        stage -= kStages;
        parity ^= 1;
      }
      loader.at += kProducers;
      if (--empty == 0) {
        Loader beyond = loader;
#pragma unroll 1
        for (int i = 0; i < kTilesBeyondRing && beyond.at < walk.now.count && beyond.is_old(walk.now); ++i, beyond.at += kProducers) {
          beyond.id = beyond.pages.held(p, walk.now, beyond.first_token(walk.now), lane);
          beyond.prefetch(p, walk.now, lane);
        }
      }
    }
    if constexpr (config::even_share) {
      if (asks && ahead.left > 0) {  // with a segment's first tile, for the next one: behind a full ring the answer takes 3 us
        ahead.next(p);
        asked.open(p, ahead.now.sequence, ahead.now.head);
        asked.ask(ahead.now, ahead.now.span.token_of(0), lane);
      }
      asks = loader.at >= walk.now.count && walk.left > 0;
      if (asks) {
        loader.at -= walk.now.count;
        walk = ahead;
        loader.pages = asked;
        continue;
      }
    }
    if (loader.at >= walk.now.count) return;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas) pt_decode(const __grid_constant__ pt_decode_params p
#if PT_TENSOR_MAPS
                                                                      ,
                                                                      const __grid_constant__ pt_tensor_maps maps
#endif
) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (kProducer && ptx::shared_address(shared) % kStageAlign != 0) __trap();  // the swizzle counts from there
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
#if PT_TENSOR_MAPS
  if (warp == config::num_warps && lane < 2) ptx::prefetch_map(lane == 0 ? maps.k : maps.v);
#endif
  ptx::let_next_kernel_start();
  if constexpr (spec::mask != 0) ptx::wait_for_previous_kernel();  // the mask decides what may be read

  // Stages and barriers of this warp, or with a producer of the CTA.
  const int first_stage = kProducer ? 0 : warp * config::num_stages;
  unsigned char* stages = shared + first_stage * kStageBytes;
  u32* present_of = reinterpret_cast<u32*>(shared + kPresentAt) + first_stage;
  const u32 barriers = ptx::shared_address(shared + kBarriersAt) + first_stage * 8;
  const auto prepare = [&] {
    clear_padding(stages, lane);
#if PT_TENSOR_MAPS
    if (lane == 0) {
#pragma unroll 1
      for (int stage = warp; stage < kStages; stage += kThreads / 32) {
        ptx::barrier_init(barriers + stage * 8, 1);
        ptx::barrier_init(barriers + (kStages + stage) * 8, kTeamThreads);
      }
      if constexpr (kWarpgroups) {
        if (warp == 0)
          for (int other = 0; other < kTeams; ++other) ptx::barrier_init(ptx::shared_address(shared + kTeamBarriersAt) + other * 8, kTeamThreads);
      }
    }
    ptx::fence_async();
#else
    if constexpr (config::loader == kLoadRows) {
      if (lane < config::num_stages) ptx::barrier_init(barriers + lane * 8, 1);
      ptx::fence_async();
      __syncwarp();
    }
#endif
  };

  Shares shares{};
  Walk walk;
  int split = 0;
  if constexpr (config::even_share) {
    if (!start_walk(p, lane, blockIdx.x, shares, walk, prepare)) return;
  } else {
    int x = blockIdx.x;
    if constexpr (kSplit) x = quotient(x, p.num_splits), split = static_cast<int>(blockIdx.x) - x * p.num_splits;
    walk.now.row_tile = x % kRowTiles;
    walk.now.head = x / kRowTiles % spec::kv_heads;
    walk.now.sequence = x / (kRowTiles * spec::kv_heads);
    const int claimed = ptx::load_now(length_at(p, walk.now.sequence, walk.now.head));
    prepare();
    walk.now.span = span_of(p, walk.now.sequence, walk.now.head, claimed);
    walk.left = 0;
    take_split(walk.now, split, kSplit ? p.num_splits : 1);
    // Nothing to do for this CTA, or for its whole cluster.
    if (config::merge == kMergeCluster ? split - ptx::cluster_rank() >= used_splits(walk.now.span, p.num_splits) : walk.now.count == 0) return;
  }

#if PT_TENSOR_MAPS
  __syncthreads();
  if (warp >= config::num_warps) {
    if constexpr (kSplit && config::merge == kMergeCluster) ptx::cluster_arrive();  // for its part; it never waits
    if constexpr (kWarpgroups) ptx::give_registers<88>();
    produce(p, maps, shared, walk, warp - config::num_warps, lane);
    return;
  }
  if constexpr (kWarpgroups) ptx::take_registers<208>();
#endif

  // One loop for all: each round starts the copies of one tile and, once the loader is num_stages - 1 tiles ahead, consumes one. The loader
  // runs on into the next segments. With a producer there is only the consuming half.
  Walk ahead = walk;
  Segment& loading = config::even_share ? ahead.now : walk.now;
  Loader loader;
  const auto find = [&] {  // the loader's next tile; its page is known by the time its stage is free
    while (config::even_share && loader.at >= loading.count && ahead.left > 0) {
      loader.at -= loading.count;
      ahead.next(p);
      loader.pages.open(p, loading.sequence, loading.head);
    }
    loader.look_up(p, loading, lane);
  };
  if constexpr (!kProducer) {
    loader.at = warp;
    loader.pages.open(p, loading.sequence, loading.head);
    find();
  }
  Team team{thread / kTeamThreads, thread % kTeamThreads, ptx::shared_address(shared + kTeamBarriersAt) + thread / kTeamThreads * 8};
  Ending ending{p, shared, thread, team};
  const Segment& s = walk.now;
  Query query;
  State state;
  RowMap rows;
  if constexpr (kSplit && config::merge == kMergeCluster) {
    rows.open(p, s);
    ending.open_cluster(rows);
  }
  int lead = 0, filling = 0;  // tiles that the loader is ahead, at most num_stages - 1, and the stage that it fills next
  int at = team.index;        // this team's next tile, counted from the segment's first; beyond its last: as far in the next segment
  bool open = false;          // the segment has begun
  int reading = kProducer ? team.index : 0;
  u32 parity = 0;
  bool alone = false;  // the preceding kernel has finished
  if constexpr (kQueryAhead) {
    ptx::wait_for_previous_kernel();
    alone = true;
    rows.open(p, s);
    fetch_query(p, rows, shared + kQueryAt, thread);
  }
  const auto begin = [&] {
    open = true;
    if constexpr (spec::checked) {
      if (thread == 0 && s.row_tile == 0 && s.first == 0) check_claims(p, s.sequence, s.head, s.span);
    }
    rows.open(p, s);
    ending.open(s, rows, shares, split);
    if constexpr (kQueryAhead) {
      ptx::wait_copies<0>();
      sync_workers();
      query.take(rows, shared + kQueryAt, team.place);
      if (walk.left > 0) {
        Segment next = s;
        walk.step(next);
        RowMap next_rows;
        next_rows.open(p, next);
        sync_workers();  // all have taken theirs
        fetch_query(p, next_rows, shared + kQueryAt, thread);
      }
    } else {
      query.read(p, rows, shared + kQueryAt, thread);
    }
    state.start();
  };
  const auto consume = [&] {
    if constexpr (config::loader == kLoadCopies) ptx::wait_copies<config::num_stages - 1>();
    else ptx::barrier_wait(barriers + reading * 8, parity);
    __syncwarp();
    const u32 present = present_of[reading];
    unsigned char* stage = stages + reading * kStageBytes;
    if (kProducer && present != kAllPresent && present != 0) {  // a box brings its page's other rows too
      if (team.place < config::tile_kv && !((present >> team.place) & 1)) ValueRows::clear(stage + kValuesAt, team.place);
      ptx::fence_async();
      team.sync();
    }
    if (present != 0) state.absorb(p, query, rows, s, s.span.token_of(s.first + at), stage, present, team);
    // The stage may be filled again.
    if constexpr (kProducer) ptx::barrier_arrive(barriers + (kStages + reading) * 8);
    else __syncwarp();
    reading += kProducer ? kTeams : 1;
    if (reading >= (kProducer ? kStages : config::num_stages)) {
      reading -= kProducer ? kStages : config::num_stages;
      parity ^= 1;
    }
    at += kTeams;
  };

#pragma unroll 1
  for (;;) {
    if constexpr (kProducer) {
      if (!alone) ptx::wait_for_previous_kernel();
      alone = true;
    } else {
      if (!alone && (lead == config::num_stages - 1 || loader.at >= loading.count || !loader.is_old(loading))) {
        if (loader.at < loading.count && lead < config::num_stages - 1) loader.prefetch(p, loading, lane);
        ptx::wait_for_previous_kernel();
        alone = true;
      }
      if (loader.at < loading.count) {
        const u32 present = loader.present();
        if (lane == 0) present_of[filling] = present;
        if constexpr (config::loader == kLoadRows) loader.copy_bulk(p, loading, present, stages + filling * kStageBytes, barriers + filling * 8, lane);
        else if (present != 0) loader.copy(p, loading, present, stages + filling * kStageBytes, lane);
        filling = filling + 1 == config::num_stages ? 0 : filling + 1;
        loader.at += kLoaderStep;
        find();
      }
      if constexpr (config::loader == kLoadCopies) ptx::commit_copies();  // one group a round, an empty one too: the waits count them
      if (lead < config::num_stages - 1) {
        ++lead;
        continue;
      }
    }

    // All warps begin and end all segments, those too that have none of a segment's tiles. Where a CTA has one segment and its end is long, the code lies in the order in which
    // it runs, for a short launch waits for each part of it (8/1 heads, 1 x 8192 in clusters: 7.1 us in this order, 8.3 in the other). Where it has many, one's end comes
    // before the next one's beginning (64 ragged sequences of 64/8 heads of 64 dims: 17.5 us, 18.8 the other way).
    if constexpr (config::merge == kMergeCluster) {
      if (!open) begin();
      if (at < s.count) consume();
      if (at < s.count) continue;
      ending.run(state, s, rows, false);
      break;
    } else {
      bool done = false;
#pragma unroll 1
      while (!open || at >= s.count) {
        if (open) {
          ending.run(state, s, rows, walk.left > 0);
          done = !config::even_share || walk.left == 0;
          if (done) break;
          at -= s.count;
          walk.next(p);
        }
        begin();
      }
      if (done) break;
      consume();
    }
  }
  if constexpr (config::even_share) ending.finish(s, rows);
}
