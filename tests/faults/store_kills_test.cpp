// Processes of the store that are killed somewhere in the middle: what they said was stored is there afterwards, and nobody waits for them.
#include <map>
#include <set>

#include "../store_expect.hpp"
#include "answers.hpp"
#include "kills.hpp"

namespace pagetune {
namespace {

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
    const std::vector<std::string> after = lines_of(dir / "after"), compiled = lines_of(dir / "log2");
    EXPECT_EQ(after.size(), 40u);
    const std::string before = read_file(dir / "before");
    for (const std::string& line : lines_of(dir / "before")) {
      if (before.find(line + "\n") == std::string::npos) continue;  // half a line
      EXPECT_EQ(std::count(after.begin(), after.end(), line), 1) << line;
      EXPECT_EQ(std::count(compiled.begin(), compiled.end(), line.substr(0, line.find(' '))), 0) << line << " was compiled anew";
    }
  }
  EXPECT_GT(killed, kPoints / 2);
}

// Fault: a winner or a binary that was stored is gone after the crash, or the file cannot be used.
TEST(StoreKills, InTheMiddleOfPublishing_B139) {
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
      const std::optional<Binary> found = store->find_binary(published_binary(i).key);
      ASSERT_TRUE(found) << "a binary is lost";
      EXPECT_EQ(found->sha256, published_binary(i).sha256);
    }
    EXPECT_EQ(store->counters().corrupt, 0u);
    EXPECT_TRUE(store->problems().empty());
  }
}

// Fault: a merge that was reported is gone after the crash, or one that was not is there in parts.
TEST(StoreKills, InTheMiddleOfMerges) {
  constexpr int kSources = 12;
  constexpr size_t kRows = 20;
  TempDir from;
  std::vector<std::string> sources;
  std::map<std::string, int> source_of;  // spec
  for (int i = 0; i < kSources; ++i) {
    AttentionSpec spec;
    spec.q_heads = 8 * (i + 1);
    source_of[spec_key(spec)] = i;
    sources.push_back(from / std::to_string(i));
    for (size_t row = 0; row < kRows; ++row) put(*Store::open(sources.back()), sample_row({static_cast<int>(row) % Bucket::kBatchCells, Bucket::kMinLenLog2 + static_cast<int>(row) / Bucket::kBatchCells}, spec));
  }
  Points points(3);
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    TempDir dir;
    std::vector<std::string> command = {STORE_HELPER, "merge", dir / "cache", dir / "log"};
    command.insert(command.end(), sources.begin(), sources.end());
    killed += run_and_kill(command, dir / "log", points.next(30'000));
    std::map<int, size_t> rows;
    for (const auto& row : Store::open(dir / "cache")->all_winners()) ++rows[source_of.at(row.winner.spec_key)];
    for (const auto& [source, count] : rows) EXPECT_EQ(count, kRows) << "a part of source " << source;
    for (const std::string& line : lines_of(dir / "log")) EXPECT_EQ(rows[std::stoi(line)], kRows) << "source " << line << " is lost";
    command[3] = dir / "log2";
    expect_next_is_well(command, "/dev/null");
    EXPECT_EQ(Store::open(dir / "cache")->all_winners().size(), kRows * kSources);
    EXPECT_TRUE(Store::open(dir / "cache")->problems().empty());
  }
  EXPECT_GT(killed, kPoints / 2);
}

}  // namespace
}  // namespace pagetune
