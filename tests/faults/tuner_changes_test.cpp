// Stored winners of which something has changed since: each is measured once more, and once only.
#include <SQLiteCpp/SQLiteCpp.h>

#include <functional>

#include "../store_samples.hpp"
#include "processes.hpp"

namespace pagetune {
namespace {

constexpr size_t kWinners = 24, kChanged = 3;  // the session's works, and those of one batch among them

class TunerChanges : public ::testing::Test {
 protected:
  void SetUp() override { EXPECT_EQ(tuned(), kWinners); }

  // How many winners a session on the store measures. Its exit status is 1 if the store had something to say.
  size_t tuned(int expected_status = 0) {
    std::filesystem::remove(dir_ / "log");
    Herd herd;
    const pid_t pid = herd.start({TUNER_WORKER_HELPER, "session", dir_ / "cache", dir_ / "log"}, dir_ / "said");
    herd.go();
    const int status = wait_for(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == expected_status) << status << ": " << read_file(dir_ / "said");
    return lines_of(dir_ / "log").size();
  }
  std::vector<Store::Row> rows() const { return Store::open(dir_ / "cache")->all_winners(); }

  const TempDir dir_;
};

// Fault: what an older generator, space or policy measured counts as current, or is measured anew at every start; a config that the space lost ends the session.
TEST_F(TunerChanges, RowsOfAnotherGeneratorSpaceOrPolicyAreMeasuredOnce_B185) {
  const std::vector<Store::Row> before = rows();
  const std::function<void(Winner&)> changes[] = {
      [](Winner& w) { w.generator_hash = std::string(64, 'f'); },
      [](Winner& w) { w.space_hash = std::string(64, 'f'); },
      [](Winner& w) { w.policy_hash = std::string(64, 'f'); },
      [](Winner& w) { w.space_hash = std::string(64, 'f'), w.config.set("NUM_WARPS", 77); },
      [](Winner& w) { w.space_hash = std::string(64, 'f'), w.config = KernelConfig({{"GONE", 1}}); },
  };
  for (const auto& change : changes) {
    for (Store::Row row : before) {
      if (row.winner.bucket.batch_log2 != 2) continue;
      change(row.winner);
      put(*Store::open(dir_ / "cache"), row);
    }
    EXPECT_EQ(tuned(), kChanged);
    EXPECT_EQ(tuned(), 0u);
    ASSERT_EQ(rows().size(), kWinners);
    for (size_t i = 0; i < kWinners; ++i) EXPECT_EQ(rows()[i].winner.config, before[i].winner.config);
  }
}

// Fault: a winner that was measured with another compiler, driver or architecture counts for this one, or gives way to this one's.
TEST_F(TunerChanges, RowsOfAnotherCompilerOrDriverStandBeside_B145) {
  std::vector<Store::Row> others;
  for (std::string Environment::*field : {&Environment::compiler, &Environment::driver, &Environment::arch}) {
    Store::Row other = rows().front();
    other.environment.*field = "another";
    other.winner.env_key = other.environment.key();
    others.push_back(other);
  }
  std::filesystem::remove_all(dir_ / "cache");
  for (const Store::Row& other : others) put(*Store::open(dir_ / "cache"), other);
  EXPECT_EQ(tuned(), kWinners);
  EXPECT_EQ(rows().size(), kWinners + others.size());
  for (const Store::Row& other : others) EXPECT_EQ(Store::open(dir_ / "cache")->winners(other.winner.env_key, other.winner.spec_key), std::vector<Winner>{other.winner});
}

// Fault: a row that was edited or has rotted is believed, stays in the way of its bucket's winner, or is complained of for ever.
TEST_F(TunerChanges, PoisonedRowsAreReplacedOnce_B145) {
  for (const char* poison : {"config=policy_hash", "median_us=0.001, ci_low_us=0.001, ci_high_us=0.001", "policy_hash=session", "digest='x'", "config=-1"}) {
    SCOPED_TRACE(poison);
    ASSERT_EQ(SQLite::Database(dir_ / "cache/winners.db", SQLite::OPEN_READWRITE).exec(std::string("UPDATE winner SET ") + poison + " WHERE batch=4"), static_cast<int>(kChanged));
    EXPECT_EQ(tuned(1), kChanged);
    EXPECT_EQ(lines_of(dir_ / "said").size(), 1u);
    EXPECT_EQ(tuned(), 0u);
    EXPECT_EQ(rows().size(), kWinners);
  }
}

}  // namespace
}  // namespace pagetune
