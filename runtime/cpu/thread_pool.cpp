#include "runtime/cpu/thread_pool.hpp"

namespace pagetune {

ThreadPool::ThreadPool(int threads) {
  threads_.reserve(static_cast<size_t>(threads) - 1);
  for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  ++round_;
  round_.notify_all();
}

void ThreadPool::run(int workers, Work work, const void* context) {
  if (workers == 1) {
    work(context, 0, 1);
    return;
  }
  work_ = work;
  context_ = context;
  workers_ = workers;
  running_ = static_cast<int>(threads_.size());  // every thread answers each round, so that none can miss one
  ++round_;
  round_.notify_all();
  work(context, 0, workers);
  for (int running = running_; running != 0; running = running_) running_.wait(running);
}

void ThreadPool::serve(int worker) {
  for (uint32_t seen = 0;; ++seen) {
    round_.wait(seen);
    if (stopping_) return;
    if (worker < workers_) work_(context_, worker, workers_);
    if (--running_ == 0) running_.notify_one();
  }
}

}  // namespace pagetune
