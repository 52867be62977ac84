// A large decode problem filled on the device, for timing: rotating KV pages and a dependent chain of launches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device.hpp"
#include "tuner/device_problem.hpp"

namespace pagetune {

// Data of the spec's features; what is left out is typical: a soft cap of 30, a vertical stride of 8, ….
struct BenchFeatures {
  std::vector<int> windows;     // [kv_heads], 0: all; empty: 1024 for every second head, the last among them
  int chunk = 8192;
  int sink_tokens = 4;
  SparseBlocks blocks;          // block_size 0: whole pages of at least 64 tokens, vert_stride 8, 16 local blocks, head_step 1
};

class DeviceBuffer;

// Random K and V that problems share or take in turn, so that memory is filled once and not for each of them. What a problem holds stays
// valid when the pool grows.
class KvPool {
 public:
  explicit KvPool(Device&);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  size_t bytes() const { return k_bytes_ + v_bytes_; }

 private:
  friend class BenchProblem;
  void reserve(DType, size_t k_bytes, size_t v_bytes);

  Device& device_;
  DType dtype_ = DType::bf16;
  size_t k_bytes_ = 0, v_bytes_ = 0;
  std::shared_ptr<DeviceBuffer> k_, v_;
};

struct BenchOptions {
  BenchFeatures features = {};
  unsigned flags = 0;           // PT_LAUNCH_…, of every enqueued launch
  std::vector<LaunchPlan> plans = {LaunchPlan()};  // of the launches; they size the workspace
  size_t memory_limit = 0;      // bytes for everything; 0: nine tenths of Device::free_bytes()
  int64_t rotation_bytes = 0;   // KV that consecutive launches touch before they come back to the same; 0: four times the L2, at least 64 MiB
  uint64_t seed = 1;
  KvPool* pool = nullptr;       // where K and V lie; null: in memory of the problem's own
  int prepared_len = 0;         // what tables are laid out for, as for a graph that serves longer sequences later; 0: the longest length
  bool all_pages = false;       // head-wise tables list every page of a sequence, also those that their head does not see
};

// Each launch reads KV pages of its own set, in random order, and its q is the output of the one before: nothing is found in the L2,
// and no two launches overlap that could not in a model. Where q is larger than the output, its first part is the output; where their types
// differ, its bits. Error unsupported for an output of wider elements than q: halves of floats are no query. Every sequence has q_len query
// tokens. A head-wise table lists the pages that its head sees, and no memory is spent on others where ids are flat.
class BenchProblem {
 public:
  // Error invalid_argument naming the bytes needed and allowed if not even one set fits; fewer sets than the rotation asks for are
  // taken silently, see sets().
  BenchProblem(Device&, const AttentionSpec&, const std::vector<int>& lens, const BenchOptions& = {});
  ~BenchProblem();
  BenchProblem(const BenchProblem&) = delete;
  BenchProblem& operator=(const BenchProblem&) = delete;

  // Bytes that a problem needs with one set.
  static size_t bytes_needed(const AttentionSpec&, const std::vector<int>& lens, const std::vector<LaunchPlan>& plans, const BenchFeatures& = {});

  int sets() const { return sets_; }
  int64_t kv_bytes() const { return kv_bytes_; }       // that one launch must read: of the tokens that some row of a head sees
  size_t memory_bytes() const { return memory_bytes_; }

  // The caller's part of the parameters of the i-th launch of a chain: table of set i mod sets(), q and out swap from launch to launch.
  pt_decode_params params(int launch) const;
  // Enqueues launches first … first + launches - 1 as one chain. A recording of fewer launches than sets() comes back to its own pages
  // when it is replayed: record several that follow one another, or as many launches as there are sets. With an even number of
  // launches a replay goes on from its own output.
  void enqueue(const Module&, LaunchPlan, int launches, void* stream, int first = 0) const;

  // A chain of three launches from random q: the last one's output against the oracle, on about `groups` (sequence, KV head) pairs,
  // the longest sequence among them, and every element of the output for being written.
  Check check(const Module&, LaunchPlan, int groups = 8) const;

 private:
  Device& device_;
  AttentionSpec spec_;
  BenchOptions options_;
  std::vector<int> lens_;
  int sets_ = 0;
  int64_t kv_bytes_ = 0;
  size_t memory_bytes_ = 0;
  int64_t table_rows_ = 0;  // of one set
  pt_decode_params params_;
  size_t chain_bytes_ = 0;  // of each of q_
  std::shared_ptr<DeviceBuffer> k_, v_;
  std::unique_ptr<DeviceBuffer> q_[2], tables_, lse_, workspace_;
  std::vector<std::unique_ptr<DeviceBuffer>> arrays_;
};

}  // namespace pagetune
