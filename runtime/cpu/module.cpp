#include "runtime/cpu/module.hpp"

#include <algorithm>

namespace pagetune {
namespace {

// Tokens of one KV head that make waking another thread worth it: a wake-up takes some 5 to 50 µs (typical of Linux), a token about 27 ns
// (measured: Zen 4, group of 4, head dim 128, bf16, in cache).
constexpr long long kTokensPerWorker = 1024;

struct Call {
  void (*entry)(const pt_decode_params*, int, int);
  const pt_decode_params* params;
};

void run_call(const void* context, int worker, int workers) {
  const Call& call = *static_cast<const Call*>(context);
  call.entry(call.params, worker, workers);
}

}  // namespace

CpuModule::CpuModule(const LaunchFacts& facts, std::unique_ptr<Linker::Linked> code, std::shared_ptr<ThreadPool> pool)
    : facts_(facts),
      code_(std::move(code)),
      pool_(std::move(pool)),
      cost_(reinterpret_cast<Cost>(code_->address("pt_cost"))),
      decode_(reinterpret_cast<Entry>(code_->address("pt_decode"))) {
  if (facts_.variant == 2) merge_ = reinterpret_cast<Entry>(code_->address("pt_merge"));
}

void CpuModule::launch(const pt_decode_params& params, void*) const {
  const long long useful = cost_(&params) / kTokensPerWorker;
  const int workers = static_cast<int>(std::clamp<long long>(useful, 1, pool_->size()));
  ThreadPool::Session session(*pool_);
  const Call decode{decode_, &params};
  session.run(workers, run_call, &decode);
  if (merge_ == nullptr || params.num_splits <= 1) return;
  const Call merge{merge_, &params};
  session.run(workers, run_call, &merge);
}

}  // namespace pagetune
