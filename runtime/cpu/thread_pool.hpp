// A fixed set of threads that run one function together. No OpenMP: an engine's own thread pool and this one must not multiply.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pagetune {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller of run() is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // One round: work(context, worker, workers) for each worker in [0, workers), worker 0 on the calling thread. Must not throw.
  using Work = void (*)(const void* context, int worker, int workers);

  // The pool for the rounds of one launch; concurrent launches wait for each other.
  class Session {
   public:
    explicit Session(ThreadPool& pool) : pool_(pool), lock_(pool.launch_) {}
    // Returns when all are done. workers: 1 to size().
    void run(int workers, Work work, const void* context) { pool_.run(workers, work, context); }

   private:
    ThreadPool& pool_;
    std::scoped_lock<std::mutex> lock_;
  };

 private:
  void run(int workers, Work work, const void* context);
  void serve(int worker);

  std::mutex launch_;
  std::atomic<uint32_t> round_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  Work work_ = nullptr;  // these three are published by round_
  const void* context_ = nullptr;
  int workers_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace pagetune
