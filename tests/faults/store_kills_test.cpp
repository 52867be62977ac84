// Processes of the store that are killed somewhere in the middle: what they said was stored is there afterwards, and nobody waits for them.
#include <map>
#include <set>

#include "../store_expect.hpp"
#include "../variable.hpp"
#include "answers.hpp"
#include "calls.hpp"
#include "kills.hpp"

namespace pagetune {
namespace {

// What a process that compiled into `before` handed out is what the next one, which compiled what `log` says and handed out `after`, found in the store.
void expect_compiles_kept(const std::string& before, const std::string& after, const std::string& log) {
  const std::vector<std::string> found = lines_of(after), compiled = lines_of(log);
  const std::string text = read_file(before);
  for (const std::string& line : lines_of(before)) {
    if (text.find(line + "\n") == std::string::npos) continue;  // half a line
    EXPECT_EQ(std::count(found.begin(), found.end(), line), 1) << line;
    EXPECT_EQ(std::count(compiled.begin(), compiled.end(), line.substr(0, line.find(' '))), 0) << line << " was compiled anew";
  }
}

// Stores to merge, each with the rows of a spec of its own.
struct Sources {
  Sources(int count, size_t rows) : rows_each(rows) {
    for (int i = 0; i < count; ++i) {
      AttentionSpec spec;
      spec.q_heads = 8 * (i + 1);
      of_spec[spec_key(spec)] = i;
      paths.push_back(dir / std::to_string(i));
      for (size_t row = 0; row < rows; ++row) put(*Store::open(paths.back()), sample_row({static_cast<int>(row) % Bucket::kBatchCells, Bucket::kMinLenLog2 + static_cast<int>(row) / Bucket::kBatchCells}, spec));
    }
  }
  std::vector<std::string> command(const std::string& into, const std::string& log) const {
    std::vector<std::string> words = {STORE_HELPER, "merge", into, log};
    words.insert(words.end(), paths.begin(), paths.end());
    return words;
  }
  // After a merge whose log ends somewhere, and after the next one.
  void expect_whole(const std::string& into, const std::string& log) const {
    std::map<int, size_t> rows;
    for (const auto& row : Store::open(into)->all_winners()) ++rows[of_spec.at(row.winner.spec_key)];
    for (const auto& [source, count] : rows) EXPECT_EQ(count, rows_each) << "a part of source " << source;
    for (const std::string& line : lines_of(log)) EXPECT_EQ(rows[std::stoi(line)], rows_each) << "source " << line << " is lost";
    expect_next_is_well(command(into, log + "2"), "/dev/null");
    EXPECT_EQ(Store::open(into)->all_winners().size(), rows_each * paths.size());
    EXPECT_TRUE(Store::open(into)->problems().empty());
  }

  TempDir dir;
  size_t rows_each;
  std::vector<std::string> paths;
  std::map<std::string, int> of_spec;  // which source
};

// Fault: a kernel that was handed out is gone after the crash, is compiled anew, or its lock is held for ever.
TEST(StoreKills, InTheMiddleOfCompiles_B139_B142) {
  Points points(1);
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    const std::vector<std::string> compile = {STORE_HELPER, "compile", dir / "cache"};
    const auto with = [&](const char* log) {
      std::vector<std::string> command = compile;
      command.insert(command.end(), {dir / log, "40", "1"});
      return command;
    };
    killed += run_and_kill(with("log"), dir / "log", points.next(60'000), dir / "before");
    expect_next_is_well(with("log2"), dir / "after");
    EXPECT_EQ(lines_of(dir / "after").size(), 40u);
    expect_compiles_kept(dir / "before", dir / "after", dir / "log2");
  }
  EXPECT_GT(killed, kPoints / 2);
}

// With winners in a database, and as lines.
class StoreKillsIn : public ::testing::TestWithParam<const char*> {
  const Variable variable_{"PAGETUNE_WINNERS", GetParam()};
};
INSTANTIATE_TEST_SUITE_P(, StoreKillsIn, ::testing::Values("database", "lines"), [](const auto& test) { return std::string(test.param); });

// Fault: a winner or a binary that was stored is gone after the crash, or the file cannot be used.
TEST_P(StoreKillsIn, TheMiddleOfPublishing_B139) {
  Points points(2);
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    EXPECT_TRUE(run_and_kill({STORE_HELPER, "publish", dir / "cache", dir / "log"}, dir / "log", points.next(20'000)));
    expect_next_is_well({STORE_HELPER, "answers", dir / "cache"}, dir / "said");
    EXPECT_EQ(read_file(dir / "said"), "");
    auto store = Store::open(dir / "cache");
    std::set<Bucket> buckets;
    for (const auto& row : store->all_winners()) {
      expect_same(row, sample_row(row.winner.bucket));
      buckets.insert(row.winner.bucket);
    }
    for (const std::string& line : lines_of(dir / "log")) {
      const int i = std::stoi(line);
      EXPECT_TRUE(buckets.contains(published_row(i).winner.bucket)) << "a winner is lost";
      EXPECT_EQ(store->find_binary(published_binary(i).key).value_or(Binary()).sha256, published_binary(i).sha256) << "a binary is lost";
    }
    EXPECT_EQ(store->counters().corrupt, 0u);
    EXPECT_TRUE(store->problems().empty());
  }
}

// Fault: a merge that was reported is gone after the crash, or one that was not is there in parts.
TEST_P(StoreKillsIn, TheMiddleOfMerges) {
  const Sources sources(12, 20);
  Points points(3);
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    killed += run_and_kill(sources.command(dir / "cache", dir / "log"), dir / "log", points.next(30'000));
    sources.expect_whole(dir / "cache", dir / "log");
  }
  EXPECT_GT(killed, kPoints / 2);
}

// Kills a process as it reaches a system call. False if there were not that many.
bool killed_at(const char* call, int nth, const TempDir& dir, const std::vector<std::string>& command, const std::string& output) {
  Herd herd;
  const pid_t pid = herd.start(with_failure({call, -SIGKILL}, nth, real_path(dir / "cache"), dir / "mark", command), output);
  herd.go();
  const int status = wait_for(pid);
  EXPECT_EQ(WIFSIGNALED(status), std::filesystem::exists(dir / "mark"));
  return WIFSIGNALED(status);
}

// Fault: two calls of which only the first was made leave something that the next process cannot use. Chance hits few of these moments.
class StoreKillsAt : public ::testing::TestWithParam<const char*> {};
TEST_P(StoreKillsAt, AnyCallOfCompilesAndMerges_B139_B142) {
  const Sources sources(3, 4);
  int kills = 0;
  for (int nth = 1;; ++nth) {
    SCOPED_TRACE(nth);
    TempDir dir;
    const std::vector<std::string> compile = {STORE_HELPER, "compile", dir / "cache"};
    const auto with = [&](const char* log) {
      std::vector<std::string> command = compile;
      command.insert(command.end(), {dir / log, "3", "0"});
      return command;
    };
    const bool killed = killed_at(GetParam(), nth, dir, with("log"), dir / "before");
    expect_next_is_well(with("log2"), dir / "after");
    EXPECT_EQ(lines_of(dir / "after").size(), 3u);
    expect_compiles_kept(dir / "before", dir / "after", dir / "log2");
    expect_next_is_well({STORE_HELPER, "answers", dir / "cache"}, dir / "said");
    EXPECT_EQ(read_file(dir / "said"), "");
    if (!killed) break;
    ++kills;
  }
  for (int nth = 1;; ++nth) {
    SCOPED_TRACE(nth);
    TempDir dir;
    const bool killed = killed_at(GetParam(), nth, dir, sources.command(dir / "cache", dir / "log"), "/dev/null");
    sources.expect_whole(dir / "cache", dir / "log");
    if (!killed) break;
    ++kills;
  }
  EXPECT_GT(kills, 4);
}
class StoreKillsOfLinesAt : public ::testing::TestWithParam<const char*> {};
TEST_P(StoreKillsOfLinesAt, AnyCallOfMerges) {
  const Variable variable("PAGETUNE_WINNERS", "lines");
  const Sources sources(3, 4);
  int kills = 0;
  for (;; ++kills) {
    SCOPED_TRACE(kills);
    TempDir dir;
    const bool killed = killed_at(GetParam(), kills + 1, dir, sources.command(dir / "cache", dir / "log"), "/dev/null");
    sources.expect_whole(dir / "cache", dir / "log");
    if (!killed) break;
  }
  EXPECT_GT(kills, 2);
}
INSTANTIATE_TEST_SUITE_P(Calls, StoreKillsOfLinesAt, ::testing::Values("open", "write", "sync", "rename"), [](const auto& test) { return std::string(test.param); });
INSTANTIATE_TEST_SUITE_P(Calls, StoreKillsAt, ::testing::Values("open", "write", "sync", "unlink", "lock"), [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace pagetune
