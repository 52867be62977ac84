// Tuning sessions that are killed somewhere in the middle.
#include <algorithm>

#include "../store_samples.hpp"
#include "kills.hpp"

namespace pagetune {
namespace {

// Fault: a winner that a session reported is gone after the crash or measured once more, or the next session cannot use the store.
TEST(TunerKills, InTheMiddleOfSessions) {
  Points points(4);
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    const std::vector<std::string> session = {TUNER_WORKER_HELPER, "session", dir / "cache", dir / "log"};
    killed += run_and_kill(session, dir / "log", points.next(30'000));
    const std::vector<std::string> tuned = lines_of(dir / "log");
    std::filesystem::remove(dir / "log");
    expect_next_is_well(session, dir / "said");
    EXPECT_EQ(read_file(dir / "said"), "");
    const std::vector<std::string> after = lines_of(dir / "log");
    for (const std::string& work : tuned) EXPECT_EQ(std::count(after.begin(), after.end(), work), 0) << work << " once more";
    EXPECT_EQ(Store::open(dir / "cache")->all_winners().size(), 24u);
  }
  EXPECT_GT(killed, kPoints / 2);
}

}  // namespace
}  // namespace pagetune
