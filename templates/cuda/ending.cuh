// The end of a segment: the teams meet, and the CTA writes the result, leaves its part for a merge, or merges; and what of the CTA's shared memory lies behind its pipeline.
#pragma once
#include "params.h"
#include "cuda/result.cuh"

constexpr bool kSplit = config::variant == 2;
static_assert(!config::even_share || (kSplit && config::merge == kMergeLast), "an even share is merged by the last CTA to arrive");

// What a CTA of a cluster gathers: a barrier, and from every CTA its part of the rows that this one merges. A cluster is a power of two, at most
// 16 CTAs, so together these are at most the CTA's rows, in sixteens.
constexpr int kGatherBytes = kSplit && config::merge == kMergeCluster ? 16 + round_up(kLiveRows, 16) * (spec::head_dim_v + 1) * 4 : 0;
// In a walk the next segment's query is fetched while the current one runs: read when it is needed, it would come back behind all that the copy engine has
// asked for, 3 us later with a full ring.
constexpr bool kQueryAhead = config::even_share && kProducer && kQueryInRegisters;
constexpr int kQueryBytes = kQueryAhead ? kLiveRows * kQueryPitch : kQueryInRegisters ? 0 : kRowsPerCta * kQueryPitch;
constexpr int kMeetAt = round_up(kPipelineBytes, 16);
constexpr int kGatherAt = kMeetAt + round_up(kMeetBytes, 16);
constexpr int kQueryAt = kGatherAt + round_up(kGatherBytes, 16);
constexpr int kSharedBytes = kQueryAt + kQueryBytes;  // all of it dynamic: with no static shared memory it begins where the stages may

// The end of a segment: the teams' states meet; the result is written, left for a merge, or merged.
struct Ending {
  const pt_decode_params& p;
  unsigned char* memory;
  int thread;
  const Team& team;
  Partials parts;       // of the segment's result
  int part;             // that the segment is
  Segment first;        // even share: the walk's first segment, the parts of its result, and which it is,
  Partials first_parts;
  int first_part;
  bool waits = false;   // where it is one that is not counted yet

  // What can be known before the segment's end is worked out at its beginning, while its data is on the way.
  __device__ __forceinline__ void open(const Segment& s, const RowMap& rows, const Shares& shares, int split) {
    parts = {1, 0, 0, 0, 0};
    part = split;
    if (!kSplit || s.count == s.span.tiles) return;
    if constexpr (config::even_share) {
      parts = even_partials(shares, s, part);
    } else if constexpr (config::merge == kMergeCluster) {
      const int log2 = ptx::cluster_ctas_log2();
      parts = fixed_partials(p, s, log2);
      part = split >> log2;
    } else {
      parts = fixed_partials(p, s);
    }
  }

  __device__ __forceinline__ void run(const State& state, const Segment& s, const RowMap& rows, bool more) {
    const Meeting meeting(memory + kMeetAt);
    sync_workers();  // all have left the last meeting
    meeting.put(state, team);
    sync_workers();
    if constexpr (kSplit && config::merge == kMergeCluster) {
      gather(meeting, s, rows);
    } else {
#pragma unroll 1
      for (int i = thread; i < rows.live * kQuads; i += kWorkers) {
        float lse;
        const float4 o = meeting.take(i / kQuads, i % kQuads * 4, lse);
        put(s, rows, i / kQuads, i % kQuads * 4, o, lse);
      }
      if constexpr (config::even_share) {
        if (more && parts.count > 1) first = s, first_parts = parts, first_part = part, waits = true;
      } else if (kSplit && config::merge == kMergeLast && parts.count > 1) {
        settle(s, rows, 0, rows.live);
      }
    }
  }

  // Of a walk only the first segment and the last, `s`, can be parts of a result. Both are counted at its end, when nothing else is read from afar; walks of an
  // even share end together, so nobody waits for that.
  __device__ __forceinline__ void finish(const Segment& s, const RowMap& rows) const {
    if (!waits && parts.count == 1) return;
    RowMap first_rows = rows;
    if (waits) first_rows.open(p, first);
    int* last = reinterpret_cast<int*>(memory + kMeetAt);
    bool merges = parts.count > 1, merges_first = waits;
    const bool two_steps = merges && parts.in_two_steps(), two_steps_first = merges_first && first_parts.in_two_steps();
#pragma unroll 1
    for (bool is_last = !two_steps && !two_steps_first;; is_last = true) {
      const Partials mine = is_last ? parts.last_step(two_steps) : parts.neighbours(part), firsts = is_last ? first_parts.last_step(two_steps_first) : first_parts.neighbours(first_part);
      const int neighbours = p.batch * spec::kv_heads * kRows;  // their counters
      const int counter = is_last ? pair_row(s) : neighbours + mine.zero / kRowsPerCta, counter_first = is_last ? pair_row(first) : neighbours + firsts.zero / kRowsPerCta;
      sync_workers();  // the partial results are complete; the counters' release makes them visible to whoever arrives last
      if (thread == 0 && merges && (is_last || two_steps)) last[0] = arrives_last(p.counters + counter, mine.count);
      if (thread == kWorkers - 1 && merges_first && (is_last || two_steps_first)) last[1] = arrives_last(p.counters + counter_first, firsts.count);
      sync_workers();
      if (is_last || two_steps) merges = merges && last[0];
      if (is_last || two_steps_first) merges_first = merges_first && last[1];
      Segment of = s;
      RowMap of_rows = rows;
      Partials of_parts = mine;
      bool now = merges && (is_last || two_steps);
#pragma unroll 1
      for (int turn = 0; turn < 2; ++turn) {
        if (now) merge(of, of_rows, 0, of_rows.live, of_parts, is_last);
        of = first, of_rows = first_rows, of_parts = firsts;
        now = merges_first && (is_last || two_steps_first);
      }
      if (is_last) break;
    }
  }

  // Before anyone can push: the barrier of the rows that this CTA merges. The cluster's CTAs know of each other's barriers by the time of gather().
  __device__ __forceinline__ void open_cluster(const RowMap& rows) const {
    const Gather to(memory + kGatherAt, rows.live);
    if (thread == 0) {
      ptx::barrier_init(to.barrier, 1);
      ptx::fence_async();
      ptx::barrier_expect(to.barrier, to.ctas * to.count * (spec::head_dim_v + 1) * 4);
    }
    ptx::cluster_arrive();
  }

 private:
  static constexpr int kQuads = spec::head_dim_v / 4;

  // Four dims of a row: the result, or this CTA's or cluster's part of it.
  __device__ __forceinline__ void put(const Segment& s, const RowMap& rows, int row, int dim, float4 o, float lse) const {
    if (!kSplit || parts.count == 1) {
      write_result(p, s, rows, row, dim, o, lse);
    } else {
      write_part(p, parts.row(part, row), dim, o, lse);
    }
  }

  // The parts of some rows are counted; who brings the last merges them.
  __device__ __forceinline__ void settle(const Segment& s, const RowMap& rows, int first_row, int end_row) const {
    int& last = *reinterpret_cast<int*>(memory + kMeetAt);
    sync_workers();  // the partial result is complete; the counter's release makes it visible to whoever arrives last
    if (thread == 0) last = arrives_last(p.counters + pair_row(s) + first_row, parts.count);
    sync_workers();
    if (last) merge(s, rows, first_row, end_row, parts, true);
  }

  // The stages are empty by then, and hold the parts.
  __device__ __forceinline__ void merge(const Segment& s, const RowMap& rows, int first_row, int end_row, const Partials& of, bool to_result) const {
    merge_parts<kWorkers, kPresentAt>(p, s, rows, first_row, end_row, of, to_result, thread, memory, [] { sync_workers(); });
  }

  // In a cluster every CTA merges some of the rows, and each pushes its part of a row to the CTA that merges it: one way instead of a meeting
  // and a read. The barrier there counts the bytes.
  struct Gather {
    int ctas, each;    // rows that a CTA merges, but the last ones
    int first, count;  // the rows of this one
    float4* sums;      // [CTA][row][dims / 4]
    float* lses;       // [CTA][row]
    u32 barrier;

    __device__ __forceinline__ Gather(unsigned char* memory, int live_rows)
        : ctas(1 << ptx::cluster_ctas_log2()), each(ceil_shift(live_rows, ptx::cluster_ctas_log2())), first(ptx::cluster_rank() * each), count(max(min(live_rows - first, each), 0)),
          sums(reinterpret_cast<float4*>(memory + 16)), lses(reinterpret_cast<float*>(sums + ctas * each * kQuads)), barrier(ptx::shared_address(memory)) {}
  };

  __device__ __forceinline__ void gather(const Meeting& meeting, const Segment& s, const RowMap& rows) const {
    const Gather to(memory + kGatherAt, rows.live);
    const int mine = ptx::cluster_rank() * to.each;  // this CTA's parts in each gathering
    ptx::cluster_wait();
#pragma unroll 1
    for (int i = thread; i < rows.live * kQuads; i += kWorkers) {
      float lse;
      const int row = i / kQuads, dim = i % kQuads * 4;
      const float4 o = meeting.take(row, dim, lse);
      const int owner = quotient(row, to.each), at = mine + row - owner * to.each;
      const u32 barrier = ptx::cluster_address(to.barrier, owner);
      ptx::push_cluster(ptx::cluster_address(ptx::shared_address(to.sums + at * kQuads + i % kQuads), owner), o, barrier);
      if (dim == 0) ptx::push_cluster(ptx::cluster_address(ptx::shared_address(to.lses + at), owner), lse, barrier);
    }
    ptx::barrier_wait(to.barrier, 0);
    constexpr int kPeers = 8;  // parts that are weighed at once
#pragma unroll 1
    for (int i = thread; i < to.count * kQuads; i += kWorkers) {
      const int row = i / kQuads;
      Mixture mixture;
      mixture.start();
#pragma unroll 1
      for (int first = 0; first < to.ctas; first += kPeers) {
        float lse[kPeers];
        float4 o[kPeers];
#pragma unroll
        for (int c = 0; c < kPeers; ++c) {
          const int at = min(first + c, to.ctas - 1) * to.each + row;
          lse[c] = first + c < to.ctas ? to.lses[at] : minus_infinity();
          o[c] = to.sums[at * kQuads + i % kQuads];
        }
        mixture.add(lse, o);
      }
      put(s, rows, to.first + row, i % kQuads * 4, mixture.mean(), mixture.lse());
    }
    if (parts.count > 1 && to.count > 0) settle(s, rows, to.first, to.first + to.count);
  }
};
