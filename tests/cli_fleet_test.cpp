// Many machines share the work of tuning: shards of the program, and their stores merged.
#include <algorithm>
#include <map>
#include <set>

#include "cache_db/store.hpp"
#include "cache_db/table.hpp"
#include "cli_support.hpp"
#include "codegen/space.hpp"

namespace {

using namespace cli_test;

class Fleet : public Cli {
 protected:
  std::string store(int i) const { return (dir_ / ("store-" + std::to_string(i))).string(); }

  Json plan(const std::vector<std::string>& more, const Environ& environ = {}) {
    std::vector<std::string> arguments{"plan", mixed(), "--device", "cpu", "--batch", "1,2,4", "--len", "64,256,1024", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result result = run_with(environ, arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out);
  }
  std::multiset<std::string> pairs(const Json& plan) {
    std::multiset<std::string> found;
    for (const Json& work : plan["devices"][0]["works"]) found.insert(work["spec"].dump() + work["batch"].dump() + "x" + work["len"].dump());
    return found;
  }

  // A small tuning session with a store of its own.
  void tune_into(const std::string& store, const std::string& lens, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", lens, "--budget", "3s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result result = run_with({{"PAGETUNE_CACHE_DIR", store}}, arguments);
    ASSERT_EQ(result.code, 0) << result.out << result.err;
  }
  std::map<std::string, std::string> exported(const std::string& store) {
    std::map<std::string, std::string> files;
    const fs::path out = dir_ / "exported";
    fs::remove_all(out);
    for (const char* format : {"json", "csv"}) EXPECT_EQ(run_with({{"PAGETUNE_CACHE_DIR", store}}, {"export", "--format", format, "--out", out.string()}).code, 0);
    for (const auto& entry : fs::directory_iterator(out)) files[entry.path().filename()] = read_file(entry.path());
    return files;
  }
};

// Faults: a bucket in two shards or in none; plan and tune differ in what a shard is.
TEST_F(Fleet, ShardsPartitionThePlan) {
  const std::multiset<std::string> all = pairs(plan({"--shard", "none"}));
  EXPECT_EQ(all.size(), 18u);
  std::multiset<std::string> together;
  for (int i = 0; i < 3; ++i) {
    Json part = plan({"--shard", std::to_string(i) + "/3"});
    EXPECT_EQ(part["shard"]["index"], i);
    together.merge(pairs(part));
  }
  EXPECT_EQ(together, all);
}

// Faults: the environment is not asked, or asked against the user's word; nobody is told.
TEST_F(Fleet, TheEnvironmentNamesTheShardAndTheLineSaysWhich) {
  const Environ array = {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_MIN", "0"}, {"SLURM_ARRAY_TASK_COUNT", "3"}, {"SLURM_ARRAY_TASK_STEP", "1"}};
  EXPECT_EQ(pairs(plan({}, array)), pairs(plan({"--shard", "1/3"})));
  EXPECT_EQ(pairs(plan({"--shard", "none"}, array)).size(), 18u);
  EXPECT_NE(run_with(array, {"plan", tiny(), "--device", "cpu"}).err.find("shard 1 of 3, counted from 0: this is Slurm array task 1 of 3"), std::string::npos);
  for (const auto& [environ, shard] : std::vector<std::pair<Environ, std::string>>{{{}, "3/3"}, {{}, "one"}, {{{"JOB_COMPLETION_INDEX", "0"}}, ""}}) {
    Result result = run_with(environ, {"tune", tiny(), "--device", "cpu", "--shard", shard});
    EXPECT_EQ(result.code, 2) << shard;
    EXPECT_NE(result.err.find("--shard"), std::string::npos) << result.err;
  }
}

// Faults: a shard without work fails its job, or leaves no store, so that the merge misses one.
TEST_F(Fleet, AnEmptyShardIsASuccess) {
  int empty = 0;
  for (int i = 0; i < 3; ++i) {
    const std::string shard = std::to_string(i) + "/3";
    if (!Json::parse(run({"plan", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--shard", shard, "--json"}).out)["devices"][0]["works"].empty()) continue;
    ++empty;
    fs::remove_all(cache());
    Result result = run({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--shard", shard});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("nothing to do"), std::string::npos) << result.out;
    EXPECT_TRUE(fs::exists(cache() / "winners.db"));
    EXPECT_EQ(run({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--shard", shard, "--json"}).code, 0);
  }
  EXPECT_EQ(empty, 2);
}

// Faults: the order of the stores, or a second merge, changes what is exported; a source is changed; a winner is lost or stands twice.
TEST_F(Fleet, ShardsOfATuningMergeInAnyOrder) {
  for (int i = 0; i < 2; ++i) tune_into(store(i), "64,256,1024", {"--shard", std::to_string(i) + "/2"});
  tune_into(store(2), "64");  // measured twice
  const std::string before = read_file(fs::path(store(0)) / "winners.db");
  Result first = run({"merge", store(0), store(1), store(2), "--into", store(10), "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  Json report = Json::parse(first.out);
  EXPECT_EQ(report["winners"], 3);
  EXPECT_EQ(report["added"], 3);
  EXPECT_EQ(report["sources"].size(), 3u);
  ASSERT_EQ(run({"merge", store(2), store(1), "--into", store(11)}).code, 0);
  ASSERT_EQ(run({"merge", store(0) + "/winners.db", store(11), store(10), "--into", store(11)}).code, 0);
  EXPECT_EQ(exported(store(10)), exported(store(11)));
  Json again = Json::parse(run({"merge", store(1), store(0), "--into", store(10), "--json"}).out);
  EXPECT_EQ(again["added"], 0);
  EXPECT_EQ(again["replaced"], 0);
  EXPECT_EQ(read_file(fs::path(store(0)) / "winners.db"), before);

  // Faults: one damaged store ends the merge of all, or goes by unseen.
  fs::create_directory(store(3));
  std::ofstream(fs::path(store(3)) / "winners.db") << "not a database";
  Result partly = run({"merge", store(3), store(0), store(1), store(4), "--into", store(12), "--json"});
  EXPECT_EQ(partly.code, 3) << partly.err;
  for (int bad : {3, 4}) EXPECT_NE(partly.err.find(store(bad)), std::string::npos) << partly.err;
  report = Json::parse(partly.out);
  EXPECT_EQ(report["winners"], 3);
  EXPECT_TRUE(report["sources"][0].contains("error"));
  EXPECT_EQ(run({"merge", store(3), "--into", store(13)}).code, 1) << "nothing could be read";
  EXPECT_FALSE(fs::exists(store(13)));
  EXPECT_EQ(run({"merge", store(0), "--into", store(0) + "/winners.db"}).code, 2);
  EXPECT_EQ(run({"merge", store(0), "--into", ""}).code, 2);
}

// Faults: shards in one directory of a network file system that lose each other's winners, or leave no store; lines that merge, import or verify do not see, or that differ from a database's winners.
TEST_F(Fleet, ShardsShareADirectoryOfANetworkFileSystem) {
  const Environ lines{{"PAGETUNE_WINNERS", "lines"}};
  std::vector<pid_t> shards;
  for (const char* shard : {"0/3", "1/3", "2/3"}) shards.push_back(start({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--budget", "8s", "--shard", shard}, nullptr, lines));
  for (const pid_t shard : shards) EXPECT_EQ(finish(shard).code, 0);
  EXPECT_FALSE(fs::exists(cache() / "winners.db"));
  EXPECT_EQ(run_with(lines, {"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--json"}).code, 0);
  Json verified = Json::parse(run_with(lines, {"verify", "--json"}).out);
  EXPECT_TRUE(verified["right"]) << verified;
  EXPECT_EQ(Json::parse(run_with(lines, {"stats", "--json"}).out)["winners"].size(), 1u);
  // The way back, into another store and into the same directory.
  ASSERT_EQ(run({"merge", cache().string(), "--into", store(0)}).code, 0);
  const Result itself = run({"merge", cache().string(), "--into", cache().string(), "--json"});
  ASSERT_EQ(itself.code, 0) << itself.err;
  EXPECT_EQ(Json::parse(itself.out)["winners"], 2);
  EXPECT_EQ(exported(cache().string()), exported(store(0)));
  for (const auto& entry : fs::directory_iterator(cache()))
    if (entry.path().extension() == ".jsonl") {
      EXPECT_EQ(run({"import", entry.path().string()}).code, 0);
    }
  // A shard without work.
  fs::remove_all(cache());
  EXPECT_EQ(run_with(lines, {"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--shard", "0/3"}).code, 0);
  EXPECT_EQ(run({"merge", cache().string(), "--into", store(1)}).code, 0);
}

// Fault: two machines that exclude each other's times go by unseen, or fail the merge.
TEST_F(Fleet, AConflictIsShownAndCounted) {
  tune_into(store(0), "64");
  {
    pagetune::Store::Row row = pagetune::Store::open(store(0))->all_winners().at(0);
    for (const pagetune::KernelConfig& config : pagetune::ConfigSpace::builtin().candidates(row.spec, pagetune::target_of(row.environment), row.winner.bucket).configs)
      if (config != row.winner.config) row.winner.config = config;
    row.winner.ci_low_us = row.winner.median_us = row.winner.ci_high_us = 2 * row.winner.ci_high_us;
    pagetune::Store::open(store(1))->put_winner(row.winner, row.environment, row.spec);
  }
  for (const auto& order : {std::pair{0, 1}, {1, 0}}) {
    Result result = run({"merge", store(order.first), store(order.second), "--into", (dir_ / "merged").string(), "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    Json conflicts = Json::parse(result.out)["conflicts"];
    ASSERT_EQ(conflicts.size(), 1u) << result.out;
    EXPECT_LT(conflicts[0]["kept"]["ci_high_us"].get<double>(), conflicts[0]["other"]["ci_low_us"].get<double>());
    EXPECT_EQ(conflicts[0]["other"]["from"], store(1) + "/winners.db");
  }
  Result table = run({"merge", store(0), store(1), "--into", (dir_ / "other").string()});
  EXPECT_EQ(table.code, 0);
  for (const char* part : {"1 conflict:", "kept", "other", "1x64", "; 1 conflict\n"}) EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
}

}  // namespace
