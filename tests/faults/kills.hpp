// Killing a process somewhere in the middle, and looking whether the next one is well.
#pragma once
#include <signal.h>

#include <random>

#include "processes.hpp"

namespace pagetune {

inline constexpr int kPoints = 50;

// Runs the command until `log` has its first line, and for a while longer. False if it was at its end by then.
inline bool run_and_kill(const std::vector<std::string>& command, const std::string& log, std::chrono::microseconds longer, const std::string& output = "/dev/null") {
  Herd herd;
  const pid_t pid = herd.start(command, output);
  herd.go();
  wait_for_lines(log, 1);
  std::this_thread::sleep_for(longer);
  kill(pid, SIGKILL);
  return WIFSIGNALED(wait_for(pid));
}

// The next process works as if nothing had happened, without waiting for anybody.
inline void expect_next_is_well(const std::vector<std::string>& command, const std::string& output) {
  const auto begin = std::chrono::steady_clock::now();
  Herd herd;
  const pid_t pid = herd.start(command, output);
  herd.go();
  EXPECT_EQ(wait_for(pid), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8)) << "it waited for a lock of the dead";
}

// When to kill, by a seed.
class Points {
 public:
  explicit Points(uint32_t seed) : random_(seed) {}
  std::chrono::microseconds next(int most_us) { return std::chrono::microseconds(std::uniform_int_distribution<int>(0, most_us)(random_)); }

 private:
  std::mt19937 random_;
};

}  // namespace pagetune
