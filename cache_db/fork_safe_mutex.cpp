#include "cache_db/fork_safe_mutex.hpp"

#include <pthread.h>

#include <set>
#include <tuple>

namespace pagetune {
namespace {

struct ByLevel {
  bool operator()(const ForkSafeMutex* a, const ForkSafeMutex* b) const {
    return std::make_tuple(a->level(), a) < std::make_tuple(b->level(), b);
  }
};

// Never destroyed: a store that lives in a static object may outlive it otherwise.
struct Registry {
  std::mutex mutex;
  std::set<ForkSafeMutex*, ByLevel> all;

  Registry() {
    pthread_atfork([] { registry().lock_all(); }, [] { registry().unlock_all(); }, [] { registry().unlock_all(); });
  }
  static Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
  }
  void lock_all() {
    mutex.lock();
    for (ForkSafeMutex* each : all) each->lock();
  }
  void unlock_all() {
    for (ForkSafeMutex* each : all) each->unlock();
    mutex.unlock();
  }
};

}  // namespace

ForkSafeMutex::ForkSafeMutex(LockLevel level) : level_(level) {
  Registry& registry = Registry::registry();
  std::lock_guard lock(registry.mutex);
  registry.all.insert(this);
}

ForkSafeMutex::~ForkSafeMutex() {
  Registry& registry = Registry::registry();
  std::lock_guard lock(registry.mutex);
  registry.all.erase(this);
}

}  // namespace pagetune
