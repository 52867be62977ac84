// winners.db files of the schema before: a file that version 0.1.0 wrote is read where it lies, and upgraded with a copy beside it where it is the store's own.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <tuple>

#include "cache_db/garbage.hpp"
#include "cache_db/inspection.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/source.hpp"
#include "cache_db/store.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen_testing.hpp"
#include "faults/processes.hpp"
#include "store_expect.hpp"
#include "store_samples.hpp"

namespace pagetune {
namespace {

namespace fs = std::filesystem;

const std::string kOldFile = std::string(TEST_DATA_DIR) + "/fuzz/corpus/winners_db/two_winners";

int64_t number(const std::string& file, const std::string& sql) { return SQLite::Database(file, SQLite::OPEN_READONLY).execAndGet(sql).getInt64(); }

std::vector<std::string> copies_in(const TempDir& dir) {
  std::vector<std::string> copies;
  for (const auto& entry : fs::directory_iterator(dir.path()))
    if (entry.path().filename().string().starts_with("winners.db.v1-")) copies.push_back(entry.path());
  return copies;
}

std::vector<Store::Row> sorted(std::vector<Store::Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) { return std::tie(a.winner.env_key, a.winner.spec_key, a.winner.bucket) < std::tie(b.winner.env_key, b.winner.spec_key, b.winner.bucket); });
  return rows;
}

class Upgrade : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy_file(kOldFile, file());
    fs::permissions(file(), fs::perms::owner_read | fs::perms::owner_write);
    ASSERT_EQ(number(file(), "PRAGMA user_version"), 1);
    old_ = read_source(file()).content;
    old_.rows = sorted(old_.rows);
    ASSERT_EQ(old_.rows.size(), 2U);
  }
  std::string file() const { return dir_ / "winners.db"; }
  void change(const std::string& sql) const { SQLite::Database(file(), SQLite::OPEN_READWRITE).exec(sql); }
  void expect_old_rows(const std::vector<Store::Row>& rows) const {
    ASSERT_EQ(rows.size(), old_.rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].winner, old_.rows[i].winner);
      EXPECT_EQ(rows[i].environment, old_.rows[i].environment);
      EXPECT_EQ(rows[i].spec, old_.rows[i].spec);
    }
  }

  const TempDir dir_;
  MergeSource old_;
};

// Faults: a row, a block or a digest that does not survive; no copy, or one that others can read or that is not the old file; an upgrade at every opening; a sentence although all went well.
TEST_F(Upgrade, KeepsEveryRowAndACopyOfTheFile) {
  for (const char* journal : {"delete", "wal"}) {
    SCOPED_TRACE(journal);
    fs::copy_file(kOldFile, file(), fs::copy_options::overwrite_existing);
    change(std::string("PRAGMA journal_mode=") + journal);
    change("INSERT OR IGNORE INTO blocklist SELECT env_id, spec_key, config, 'wrong' FROM winner LIMIT 1");
    for (const std::string& copy : copies_in(dir_)) fs::remove(copy);
    for (int opening = 0; opening < 2; ++opening) {
      const auto store = Store::open(dir_.path());
      expect_old_rows(store->all_winners());
      EXPECT_FALSE(store->layered_winners(old_.rows[0].environment, old_.rows[0].winner.spec_key).empty());
      size_t blocked = 0;
      for (const Store::Row& row : old_.rows) blocked += store->blocked(row.winner.env_key, row.winner.spec_key).size();
      EXPECT_GE(blocked, 1U);
      EXPECT_TRUE(store->problems().empty()) << store->problems()[0];
    }
    EXPECT_EQ(number(file(), "PRAGMA user_version"), kWinnersVersion);
    EXPECT_EQ(number(file(), "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    const auto copies = copies_in(dir_);
    ASSERT_EQ(copies.size(), 1U);
    expect_old_rows(sorted(read_source(copies[0]).content.rows));
    EXPECT_EQ(number(copies[0], "SELECT count(*) FROM blocklist"), number(file(), "SELECT count(*) FROM blocklist"));
    struct stat info {};
    ASSERT_EQ(stat(copies[0].c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
    EXPECT_TRUE(set_aside_time(fs::path(copies[0]).filename().string())) << "gc does not know its name";
  }
}

// Faults: rows that do not match their digest get a new one that they match; they go without a word.
TEST_F(Upgrade, LeavesDamagedRowsInTheCopyAndSaysSo) {
  change("UPDATE winner SET median_us=1 WHERE rowid=(SELECT min(rowid) FROM winner)");
  const auto store = Store::open(dir_.path());
  EXPECT_EQ(store->all_winners().size(), 1U);
  ASSERT_EQ(store->problems().size(), 1U);
  testing::expect_mentions(store->problems()[0], {"1 rows that do not match their digest stay behind", "winners.db.v1-"});
  EXPECT_EQ(number(copies_in(dir_).at(0), "SELECT count(*) FROM winner"), 2);
}

// Faults: a disk without room for the copy costs the winners, or the file; half an upgrade.
TEST_F(Upgrade, WithoutRoomServesTheRowsAndLeavesTheFile) {
  const std::string before = read_file(file());
  const std::string status = in_child([&]() -> std::string {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8 << 10, 8 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto store = Store::open(dir_.path());
    if (store->all_winners().size() != 2) return "rows are missing";
    if (store->problems().empty() || store->problems()[0].find("could not be upgraded") == std::string::npos) return "nothing is said";
    put(*store, sample_row({7, 11}));
    return store->all_winners().size() == 3 ? "" : "a new winner is not kept in memory";
  });
  EXPECT_EQ(status, "");
  EXPECT_EQ(read_file(file()), before);
  EXPECT_TRUE(copies_in(dir_).empty());
}

// Faults: two processes upgrade one file, one sees it between two tables, or takes the other's new file for damage.
TEST_F(Upgrade, EightProcessesAtOnceSeeAllRows) {
  for (int round = 0; round < 5; ++round) {
    fs::copy_file(kOldFile, file(), fs::copy_options::overwrite_existing);
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        const auto store = Store::open(dir_.path());
        _exit(store->all_winners().size() == 2 && store->problems().empty() ? 0 : 1);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(number(file(), "SELECT count(*) FROM winner"), 2);
  }
  EXPECT_EQ(copies_in(dir_).size(), 5U) << "one of each round";
}

// Fault: a look at a store upgrades it, or takes its old file for another program's.
TEST_F(Upgrade, InspectionReadsTheOldFileAsItIs) {
  const std::string before = read_file(file());
  const StoreReport report = inspect_store(dir_.path());
  EXPECT_EQ(report.winners_db.state, FileState::sound) << report.winners_db.why;
  EXPECT_EQ(report.winners_db.schema_version, 1);
  EXPECT_TRUE(report.winners_db.wrong.empty());
  expect_old_rows(report.rows);
  EXPECT_EQ(read_file(file()), before);
}

}  // namespace
}  // namespace pagetune
