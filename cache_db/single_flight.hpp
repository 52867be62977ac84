// One computation per key among the threads of a process.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cache_db/fork_safe_mutex.hpp"
#include "codegen/binary.hpp"

namespace pagetune {

class SingleFlight {
 public:
  explicit SingleFlight(std::chrono::milliseconds limit) : limit_(limit) {}

  // remembered(): a quick look for a result that is there already. lead(): makes the result and leaves it where remembered() finds it.
  // Threads that come while another one leads wait for its result or its exception; after `limit` they lead themselves. An exception
  // is not remembered: the next caller tries again.
  Binary run(const std::string& key, const std::function<std::optional<Binary>()>& remembered, const std::function<Binary()>& lead);

 private:
  using Flight = std::shared_future<Binary>;
  const std::chrono::milliseconds limit_;
  ForkSafeMutex mutex_{LockLevel::single_flight};
  std::map<std::string, Flight> flights_;
  pid_t owner_ = 0;  // whose threads lead the flights
};

}  // namespace pagetune
