// templates/cuda/schedule.cuh on the host: the warp of a CTA as 32 fibers that meet at every shuffle. A file that defines SCHEDULE_CASE and the
// constants of a kernel includes the template into a namespace of its own and gets the same code as the device, lane by lane.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pagetune/params.h"

namespace pagetune::testing_support {

// What the test sees of a kernel's schedule, whatever its constants.
struct HostSegment {
  int sequence, head, row_tile, first, count, tiles, line;
};
struct HostShares {
  int each, whole, opening, near, total, group, parts, chunk, rest, lanes, range, lane;
  bool operator==(const HostShares&) const = default;
};
// Which part of its pair's result a segment is, and the rows where all parts of it are looked for.
struct HostPart {
  int part;
  std::vector<int64_t> rows, neighbours, steps;  // of all parts; of those that are merged with this one first, and of what is then left
  int step;                                      // parts that are merged first
};
struct HostWalk {
  std::array<HostShares, 32> shares;                    // of each lane
  std::array<std::vector<HostSegment>, 32> segments;
};
struct Schedule {
  bool heads_differ;  // may, by windows or by lengths for each head
  int row_tiles, tile_tokens, kv_heads;
  int rows_per_cta;
  int least_tiles;    // of a part
  int num_warps, opening;
  HostWalk (*walk)(const pt_decode_params&, int cta);
  int (*begin)(HostShares, int cta, int& count);
  HostPart (*part)(HostShares, const HostSegment&);
  int (*tiles_of)(const pt_decode_params&, int sequence, int head);
  HostSegment (*split)(const pt_decode_params&, int sequence, int head, int split, int num_splits);
  int (*used_splits)(const pt_decode_params&, int sequence, int head, int num_splits);
  int (*token_of)(const pt_decode_params&, int sequence, int head, int tile);
  bool (*readable)(const pt_decode_params&, int sequence, int head, int token);
  bool (*seen)(const pt_decode_params&, int sequence, int head, int token);      // by some query token
  bool (*all_see)(const pt_decode_params&, int sequence, int head, int token);   // a unit from that token on
};
const Schedule& uniform_schedule();
const Schedule& windowed_schedule();
const Schedule& headwise_schedule();
const Schedule& chunked_schedule();

// A warp whose lanes run one after the other from meeting to meeting.
class HostWarp {
 public:
  static constexpr int kLanes = 32;

  void run(const std::function<void(int lane)>& body) {
    body_ = &body;
    current() = this;
    for (Fiber& fiber : fibers_) prepare(fiber);
    for (bool any = true; any;) {
      any = false;
      for (lane_ = 0; lane_ < kLanes; ++lane_) {
        if (fibers_[static_cast<size_t>(lane_)].done) continue;
        swapcontext(&scheduler_, &fibers_[static_cast<size_t>(lane_)].context);
        any = true;
      }
    }
    current() = nullptr;
  }

  static HostWarp*& current() {
    static HostWarp* warp = nullptr;
    return warp;
  }
  int lane() const { return lane_; }
  // The values of all lanes. Two arrays in turn: a lane may be at the next meeting before the last has left this one, never at the one after.
  const std::array<int, kLanes>& meet(int value) {
    Fiber& fiber = fibers_[static_cast<size_t>(lane_)];
    auto& values = values_[static_cast<size_t>(fiber.meetings++ % 2)];
    values[static_cast<size_t>(lane_)] = value;
    swapcontext(&fiber.context, &scheduler_);
    return values;
  }

 private:
  static constexpr size_t kStackBytes = size_t{64} * 1024;
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    int meetings = 0;
    bool done = false;
  };
  // A function of its own: getcontext() may return twice, and the loop around it must not lose its place.
  void prepare(Fiber& fiber) {
    if (fiber.stack == nullptr) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.meetings = 0;
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &HostWarp::start, 0);
  }
  static void start() {
    HostWarp& warp = *current();
    const int lane = warp.lane_;
    (*warp.body_)(lane);
    warp.fibers_[static_cast<size_t>(lane)].done = true;
  }

  ucontext_t scheduler_{};
  std::array<Fiber, kLanes> fibers_;
  std::array<std::array<int, kLanes>, 2> values_{};
  const std::function<void(int)>* body_ = nullptr;
  int lane_ = 0;
};

}  // namespace pagetune::testing_support

// The device's words.
// NOLINTBEGIN
#define __device__
#define __forceinline__ inline
#define asm(...)  // of what no schedule calls; a host compiler would refuse its constraints
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __int_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fmaxf(float a, float b) { return a > b ? a : b; }
inline unsigned long long __cvta_generic_to_shared(const void*) { return 0; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
template <class T>
T __ldg(const T* p) { return *p; }
inline int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline int __reduce_add_sync(unsigned, int value) {
  int sum = 0;
  for (const int x : pagetune::testing_support::HostWarp::current()->meet(value)) sum += x;
  return sum;
}
inline int __reduce_min_sync(unsigned, int value) {
  const auto& all = pagetune::testing_support::HostWarp::current()->meet(value);
  return *std::min_element(all.begin(), all.end());
}
inline int __reduce_max_sync(unsigned, int value) {
  const auto& all = pagetune::testing_support::HostWarp::current()->meet(value);
  return *std::max_element(all.begin(), all.end());
}
inline int __shfl_sync(unsigned, int value, int lane) { return pagetune::testing_support::HostWarp::current()->meet(value)[static_cast<size_t>(lane)]; }
inline int __shfl_up_sync(unsigned, int value, int distance) {
  auto& warp = *pagetune::testing_support::HostWarp::current();
  const auto& all = warp.meet(value);
  return warp.lane() < distance ? value : all[static_cast<size_t>(warp.lane() - distance)];
}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned bits = 0, bit = 1;
  for (const int x : pagetune::testing_support::HostWarp::current()->meet(value ? 1 : 0)) {
    if (x != 0) bits |= bit;
    bit <<= 1;
  }
  return bits;
}
// NOLINTEND
