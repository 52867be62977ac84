// A loop over independent items on all cores.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace pagetune {

// Compiles at a time: beyond eight they contend for memory (some hundred MB each) more than they gain.
constexpr int64_t kCompileThreads = 8;

// Calls body(i) for i in [0, count), in any order and on up to min(hardware_concurrency, most) threads.
// The first exception stops the loop and is rethrown when all threads have ended.
template <class Body>
void parallel_for(int64_t count, const Body& body, int64_t most = INT64_MAX) {
  const int64_t threads = std::min<int64_t>({count, most, std::max(1U, std::thread::hardware_concurrency())});
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int64_t t = 1; t < threads; ++t) pool.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace pagetune
