// Tuning sessions that are killed somewhere in the middle.
#include <algorithm>

#include "../store_samples.hpp"
#include "calls.hpp"
#include "kills.hpp"

namespace pagetune {
namespace {

std::vector<std::string> session(const TempDir& dir) { return {TUNER_WORKER_HELPER, "session", dir / "cache", dir / "log"}; }

// What the killed session reported is there, and the next one measures the rest.
void expect_session_kept(const TempDir& dir) {
  const std::vector<std::string> tuned = lines_of(dir / "log");
  std::filesystem::remove(dir / "log");
  expect_next_is_well(session(dir), dir / "said");
  EXPECT_EQ(read_file(dir / "said"), "");
  const std::vector<std::string> after = lines_of(dir / "log");
  for (const std::string& work : tuned) EXPECT_EQ(std::count(after.begin(), after.end(), work), 0) << work << " once more";
  EXPECT_EQ(Store::open(dir / "cache")->all_winners().size(), 24u);
}

// Fault: a winner that a session reported is gone after the crash or measured once more, or the next session cannot use the store.
TEST(TunerKills, InTheMiddleOfSessions) {
  Points points(4);
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    killed += run_and_kill(session(dir), dir / "log", points.next(30'000));
    expect_session_kept(dir);
  }
  EXPECT_GT(killed, kPoints / 2);
}

// Fault: the same between two system calls, which chance hits rarely. The calls of the first winners are those of all.
TEST(TunerKills, AtAnyCallThatWritesTheFirstWinners) {
  for (const char* call : {"write", "sync", "unlink"}) {
    int nth = 1;
    for (size_t tuned = 0; tuned < 3; ++nth) {
      SCOPED_TRACE(call + std::string(" ") + std::to_string(nth));
      TempDir dir;
      Herd herd;
      const pid_t pid = herd.start(with_failure({call, -SIGKILL}, nth, real_path(dir / "cache"), dir / "mark", session(dir)));
      herd.go();
      const int status = wait_for(pid);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      tuned = lines_of(dir / "log").size();
      expect_session_kept(dir);
    }
    EXPECT_GT(nth, 3) << call;
  }
}

}  // namespace
}  // namespace pagetune
