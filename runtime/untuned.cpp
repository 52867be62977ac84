#include "runtime/untuned.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <system_error>
#include <utility>

#include "cache_db/fork_safe_mutex.hpp"

namespace pagetune {
namespace {

constexpr std::chrono::seconds kPeriod{30};

// The process's writer, from the first kernel that wants one to the end of the process, or until the library is unloaded.
class ProcessWriter {
 public:
  ~ProcessWriter() { leave_the_parents(); }
  void add(const std::shared_ptr<UntunedCalls>& calls) {
    const std::lock_guard lock(mutex_);
    leave_the_parents();
    try {
      if (writer_ == nullptr) writer_ = std::make_unique<UntunedWriter>(kPeriod);
      writer_->add(calls);
    } catch (const std::system_error&) {
      // The kernel's end writes them.
    }
  }

 private:
  void leave_the_parents() {
    static auto* left = new std::vector<UntunedWriter*>;
    if (writer_ != nullptr && !writer_->is_of_this_process()) left->push_back(writer_.release());
  }

  ForkSafeMutex mutex_{LockLevel::untuned};
  std::unique_ptr<UntunedWriter> writer_;
};

}  // namespace

std::shared_ptr<UntunedCalls> UntunedCalls::make(std::shared_ptr<Store> store, const Environment& environment, const AttentionSpec& spec) {
  static ProcessWriter writer;
  const bool kept = store->dir() != ":memory:";
  auto calls = std::make_shared<UntunedCalls>(std::move(store), environment, spec);
  if (kept) writer.add(calls);
  return calls;
}

UntunedCalls::UntunedCalls(std::shared_ptr<Store> store, const Environment& environment, const AttentionSpec& spec) : store_(std::move(store)), environment_(environment), spec_(spec) {}

UntunedCalls::~UntunedCalls() { write(); }

void UntunedCalls::write() noexcept {
  try {
    std::vector<Store::Untuned> calls;
    for (int i = 0; i < Bucket::kCells; ++i)
      if (const uint32_t hits = hits_[static_cast<size_t>(i)].exchange(0, std::memory_order_relaxed); hits > 0) calls.push_back({environment_, spec_, Bucket::at(i), hits});
    store_->add_untuned(calls);
  } catch (const std::exception&) {
    // Out of memory, say: the counts are lost.
  }
}

UntunedWriter::UntunedWriter(std::chrono::milliseconds period) : process_(getpid()) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr failure;
  try {
    thread_ = std::thread([this, period] { run(period); });
  } catch (...) {
    failure = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) std::rethrow_exception(failure);
  pthread_setname_np(thread_.native_handle(), "pagetune-counts");
}

UntunedWriter::~UntunedWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (const auto& calls : alive()) calls->write();
}

bool UntunedWriter::is_of_this_process() const { return process_ == getpid(); }

void UntunedWriter::add(const std::shared_ptr<UntunedCalls>& calls) {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(calls);
}

void UntunedWriter::run(std::chrono::milliseconds period) {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return ends_; })) {
    lock.unlock();
    for (const auto& calls : alive()) calls->write();
    lock.lock();
  }
}

std::vector<std::shared_ptr<UntunedCalls>> UntunedWriter::alive() {
  std::vector<std::shared_ptr<UntunedCalls>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& each : all_)
    if (auto calls = each.lock()) found.push_back(std::move(calls));
  return found;
}

}  // namespace pagetune
