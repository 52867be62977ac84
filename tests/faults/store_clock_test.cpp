// A clock that goes back with every look at it: by hours, a week, and soon beyond 1970.
#include <map>

#include "../store_expect.hpp"
#include "answers.hpp"
#include "processes.hpp"

namespace pagetune {
namespace {

constexpr const char* kSteps[] = {"3600", "604800", "4000000000"};  // seconds

std::vector<std::string> back_by(const char* step, const std::vector<std::string>& command) { return with_variables({std::string("CLOCK_BACK=") + step}, command); }

int run(const std::vector<std::string>& command, const std::string& output = "/dev/null") {
  Herd herd;
  const pid_t pid = herd.start(command, output);
  herd.go();
  return wait_for(pid);
}

// Fault: a wait that is measured by the time of day never ends, or a kernel whose day of use lies ahead is not found, or is compiled anew.
TEST(StoreClock, ColdStartsCompileEachKernelOnce) {
  constexpr size_t kProcesses = 8, kKernels = 6;
  for (const char* step : kSteps) {
    TempDir dir;
    const auto start = [&](Herd& herd, size_t p) { return herd.start(back_by(p % 2 ? step : "0", {STORE_HELPER, "compile", dir / "cache", dir / "log", std::to_string(kKernels), "5"}), dir / std::to_string(p)); };
    for (const char* when : {"cold", "warm"}) {
      std::vector<pid_t> pids;
      {
        Herd herd;
        for (size_t p = 0; p < kProcesses; ++p) pids.push_back(start(herd, p));
      }
      for (const pid_t pid : pids) EXPECT_EQ(wait_for(pid), 0) << when;
      EXPECT_EQ(lines_of(dir / "log").size(), kKernels) << when << ", " << step;
      for (size_t p = 0; p < kProcesses; ++p) EXPECT_EQ(read_file(dir / std::to_string(p)), read_file(dir / "0")) << when;
    }
    EXPECT_EQ(Store::open(dir / "cache")->usage().binaries, static_cast<int64_t>(kKernels));
  }
}

// Fault: what is stored while the clock stands wrong is lost, or takes along what was stored before; a count of calls is "old" and forgotten.
TEST(StoreClock, NothingIsForgotten) {
  for (const char* step : kSteps) {
    SCOPED_TRACE(step);
    TempDir dir;
    const std::vector<std::string> answers = {STORE_HELPER, "answers", dir / "cache"};
    EXPECT_EQ(run(answers, dir / "said"), 0);
    AttentionSpec other;
    other.lse = true;
    const Store::Row before = sample_row({5, 5}, other);
    put(*Store::open(dir / "cache"), before);
    Store::open(dir / "cache")->put_binary(sample_binary("before"));
    EXPECT_EQ(run(back_by(step, answers), dir / "back"), 0);
    EXPECT_EQ(run(answers, dir / "again"), 0);
    for (const char* file : {"said", "back", "again"}) EXPECT_EQ(read_file(dir / file), "") << file;
    auto store = Store::open(dir / "cache");
    EXPECT_EQ(store->winners(before.winner.env_key, before.winner.spec_key), std::vector<Winner>{before.winner});
    EXPECT_TRUE(store->find_binary(sample_binary("before").key));
    ASSERT_EQ(store->untuned().size(), 1u);
    EXPECT_EQ(store->untuned()[0].hits, 3u);
    EXPECT_TRUE(store->problems().empty());
  }
}

// Fault: a file that is set aside at a time that was there before takes the place of the one that was set aside then.
TEST(StoreClock, EveryDamagedFileIsKept) {
  TempDir dir;
  std::map<std::string, int> damaged;
  for (int round = 0; round < 6; ++round) {
    EXPECT_EQ(run({STORE_HELPER, "answers", dir / "cache"}), 0);
    const std::string bytes = "damage " + std::to_string(round) + std::string(5000, 'x');
    write_file(dir / "cache/winners.db", bytes);
    damaged[bytes] = 0;
    EXPECT_EQ(run(back_by(round % 2 ? "1" : "4000000000", {STORE_HELPER, "answers", dir / "cache"}), dir / "said"), 0);
    EXPECT_EQ(lines_of(dir / "said").size(), 1u);
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir / "cache"))
    if (entry.path().string().find(".corrupt-") != std::string::npos) ++damaged[read_file(entry.path())];
  EXPECT_EQ(damaged.size(), 6u);
  for (const auto& [bytes, count] : damaged) EXPECT_EQ(count, 1) << bytes.substr(0, 8);
}

}  // namespace
}  // namespace pagetune
