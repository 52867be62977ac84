// Calls that no winner answers for: counted where kernels are launched, written to the store away from there.
#pragma once
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/bucket.hpp"
#include "codegen/environment.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

// Of one kernel. Thread-safe.
class UntunedCalls {
 public:
  // With a thread of this process that writes every 30 seconds and at the process's end; without, if the store is in memory.
  static std::shared_ptr<UntunedCalls> make(std::shared_ptr<Store>, const Environment&, const AttentionSpec&);

  UntunedCalls(std::shared_ptr<Store>, const Environment&, const AttentionSpec&);
  ~UntunedCalls();  // writes what is left
  UntunedCalls(const UntunedCalls&) = delete;
  UntunedCalls& operator=(const UntunedCalls&) = delete;

  void count(Bucket bucket) noexcept { hits_[static_cast<size_t>(bucket.index())].fetch_add(1, std::memory_order_relaxed); }
  // Adds what was counted since the last time to the store's counts. Never throws: these are hints.
  void write() noexcept;

 private:
  std::shared_ptr<Store> store_;
  Environment environment_;
  AttentionSpec spec_;
  std::array<std::atomic<uint32_t>, Bucket::kCells> hits_{};
};

// A thread that writes what was counted, every `period` and at its own end. It takes no signals: these are for the program's threads, which may wait for them with
// all others blocked. fork() leaves nothing of it in the child but this object, which must not be touched there, nor destroyed.
class UntunedWriter {
 public:
  explicit UntunedWriter(std::chrono::milliseconds period);  // std::system_error where the process may have no more threads
  ~UntunedWriter();
  UntunedWriter(const UntunedWriter&) = delete;
  UntunedWriter& operator=(const UntunedWriter&) = delete;

  void add(const std::shared_ptr<UntunedCalls>&);
  bool is_of_this_process() const;

 private:
  void run(std::chrono::milliseconds period);
  std::vector<std::shared_ptr<UntunedCalls>> alive();

  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<UntunedCalls>> all_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace pagetune
