#include "cache_db/single_flight.hpp"

#include <unistd.h>

#include <mutex>

namespace pagetune {

Binary SingleFlight::run(const std::string& key, const std::function<std::optional<Binary>()>& remembered,
                         const std::function<Binary()>& lead) {
  std::promise<Binary> promise;
  Flight flight;
  bool leading = false;
  {
    std::lock_guard lock(mutex_);
    if (owner_ != getpid()) {  // after fork() the leading threads are the parent's
      flights_.clear();
      owner_ = getpid();
    }
    // Under the mutex: a leader publishes before it removes its flight, so there is no moment at which neither is found.
    if (auto found = remembered()) return *found;
    auto [entry, inserted] = flights_.try_emplace(key);
    leading = inserted;
    if (leading) entry->second = promise.get_future().share();
    flight = entry->second;
  }
  if (!leading) return flight.wait_for(limit_) == std::future_status::ready ? flight.get() : lead();
  auto land = [&] {
    std::lock_guard lock(mutex_);
    flights_.erase(key);
  };
  try {
    Binary binary = lead();
    land();
    promise.set_value(binary);
    return binary;
  } catch (...) {
    land();
    promise.set_exception(std::current_exception());
    throw;
  }
}

}  // namespace pagetune
