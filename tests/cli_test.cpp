// The program as a user runs it: real processes, the CPU backend, a cache directory of their own.
#include <SQLiteCpp/SQLiteCpp.h>
#include <pty.h>

#include <algorithm>
#include <csignal>

#include "cache_db/blocklist.hpp"
#include "cache_db/store.hpp"
#include "cli_support.hpp"

namespace {

using namespace cli_test;

// Fault: a wrong command line ends with success or as a failure of the work, or without saying what is allowed.
TEST_F(Cli, UsageErrorsExitWith2) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"tuna"},
      {"tune"},
      {"plan"},
      {"tune", tiny(), "--from-untuned"},
      {"plan", "--from-untuned", "--page-size", "64"},
      {"tune", tiny(), "--no-such-option"},
      {"tune", tiny(), "--device", "cpu", "--budget", "3 parsecs"},
      {"tune", tiny(), "--device", "gpu"},
      {"tune", tiny(), "--device", "cpu", "--layout", "dhn"},
      {"tune", tiny(), "--device", "cpu", "--kv-dtype", "fp7"},
      {"tune", tiny(), "--device", "cpu", "--batch", "0"},
      {"tune", (dir_ / "missing.json").string(), "--device", "cpu"},
      {"tune", "no-such-model", "--device", "cpu"},
      {"explain", tiny(), "--device", "cpu"},
      {"explain", tiny(), "--device", "cpu", "--batch", "1,2", "--len", "64"},
      {"gen", tiny(), "--target", "sm_1"},
      {"gen", tiny(), "--show", "picture"},
      {"gen", tiny(), "--target", "sm_90a", "--show", "source", "--config", R"({"VARIANT":9})"},
      {"export", "--out", (dir_ / "out").string(), "--format", "xml"},
      {"report"},
      {"report", tiny(), "--all"},
      {"report", "--all", "--store", (dir_ / "no-store").string()},
      {"ab", tiny(), "--device", "cpu", "--a", "default"},
      {"ab", tiny(), "--device", "cpu", "--a", "default", "--b", "best"},
      {"ab", tiny(), "--device", "cpu", "--a", "default", "--b", R"({"VARIANT":9})"},
      {"ab", tiny(), "--device", "cpu", "--a", R"({"VARIANT":1})", "--b", "default"},
  };
  for (const auto& arguments : wrong) {
    Result result = run(arguments);
    std::string words;
    for (const std::string& word : arguments) words += " " + word;
    EXPECT_EQ(result.code, 2) << words << "\n" << result.err;
    EXPECT_FALSE(result.err.empty()) << words;
    EXPECT_EQ(result.err.find("{}"), std::string::npos) << result.err;
  }
  EXPECT_FALSE(fs::exists(cache() / "winners.db")) << "a wrong command line must not make a store";
}

// Fault: --help is an error, or a verb has none.
TEST_F(Cli, EveryVerbHasHelpAndJson) {
  EXPECT_EQ(run({"--help"}).code, 0);
  for (const char* verb : {"info", "tune", "plan", "prewarm", "bench", "ab", "export", "merge", "import", "report", "explain", "gen", "fastdeploy", "simulate", "doctor", "stats", "verify", "gc"}) {
    Result result = run({verb, "--help"});
    EXPECT_EQ(result.code, 0) << verb;
    EXPECT_NE(result.out.find("--json"), std::string::npos) << verb;
  }
}

// Fault: a malformed config is taken for something.
TEST_F(Cli, AMalformedModelFailsNamingTheFile) {
  std::ofstream(dir_ / "tiny.json") << "{\"num_attention_heads\": ";
  Result result = run({"plan", tiny(), "--device", "cpu"});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("tiny.json"), std::string::npos) << result.err;
}

// Fault: a missing GPU looks like a failed run, or the CPU answers in its place.
TEST_F(Cli, NoDeviceExitsWith4) {
  Result result = run({"tune", tiny(), "--device", "0"}, "");
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_FALSE(result.err.empty());
}

// Fault: the cache directory moves between runs.
TEST_F(Cli, PrintsTheSameCacheDirectoryEachTime_B184) {
  for (int i = 0; i < 3; ++i) {
    Result result = run({"info", "--print-cache-dir"});
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out, cache().string() + "\n");
  }
}

TEST_F(Cli, InfoListsTheCpu) {
  Result result = run({"info", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  Json info = Json::parse(result.out);
  bool cpu = false;
  for (const Json& device : info["devices"]) cpu |= device["id"] == "cpu";
  EXPECT_TRUE(cpu) << result.out;
  EXPECT_EQ(info["store"]["dir"], cache().string());
}

// Fault: tuning stores nothing, a second run works again, and what explain, plan, prewarm, bench and export say differs from the table.
TEST_F(Cli, TuneThenEverythingElse) {
  Result first = tune();
  ASSERT_EQ(first.code, 0) << first.out << first.err;
  for (const char* part : {"1x64", "1x256", "median us", "reason", "stored in "}) EXPECT_NE(first.out.find(part), std::string::npos) << part << "\n" << first.out;

  Result second = tune();
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out.rfind("nothing was compiled or tuned: 2 winners of this device are in " + cache().string(), 0), 0u) << second.out;
  EXPECT_NE(second.out.find("1x256"), std::string::npos);

  Json again = Json::parse(tune({"--json"}).out)["devices"][0];
  EXPECT_EQ(again["stored_before"], 2);
  EXPECT_EQ(again["tuned"], 0);
  Json winner = again["works"][0]["winner"];
  EXPECT_GT(winner["median_us"].get<double>(), 0);
  EXPECT_LE(winner["ci_low_us"].get<double>(), winner["median_us"].get<double>());

  Json plan = Json::parse(run({"plan", tiny(), "--device", "cpu", "--batch", "1,4", "--len", "64,256", "--json"}).out)["devices"][0];
  EXPECT_EQ(plan["works"].size(), 4u);
  EXPECT_EQ(plan["to_tune"], 2);

  Result warm = run({"prewarm", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--json"});
  ASSERT_EQ(warm.code, 0) << warm.err;
  EXPECT_EQ(Json::parse(warm.out)["devices"][0]["compiled"], 0) << "tune has compiled the winners";

  Result explained = run({"explain", tiny(), "--device", "cpu", "--batch", "1", "--len", "250"});
  ASSERT_EQ(explained.code, 0) << explained.err;
  EXPECT_NE(explained.out.find("bucket 1x256"), std::string::npos) << explained.out;
  EXPECT_NE(explained.out.find("measured"), std::string::npos);
  Json far = Json::parse(run({"explain", tiny(), "--device", "cpu", "--batch", "512", "--len", "4096", "--json"}).out)["answers"][0];
  EXPECT_EQ(far["source"], "analytic default");
  Json near = Json::parse(run({"explain", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--json"}).out)["answers"][0];
  EXPECT_EQ(near["source"], "tuned");
  EXPECT_EQ(near["config"], winner["config"]);
  ASSERT_EQ(near["sources"].size(), 4u);
  EXPECT_EQ(near["sources"][0]["answers"], true);
  EXPECT_EQ(near["sources"][0]["row"]["median_us"], winner["median_us"]);
  EXPECT_EQ(near["sources"][3]["answers"], false);
  EXPECT_EQ(far["sources"][3]["answers"], true);
  EXPECT_NE(explained.out.find("-> tuned: yes: measured for this bucket"), std::string::npos) << explained.out;
  EXPECT_NE(explained.out.find("(layers 0-1)"), std::string::npos) << explained.out;

  const fs::path page = dir_ / "report.html";
  Result reported = run({"report", tiny(), "--device", "cpu", "-o", page.string(), "--json"});
  ASSERT_EQ(reported.code, 0) << reported.err;
  EXPECT_EQ(Json::parse(reported.out)["winners"], 2);
  EXPECT_NE(read_file(page).find("data-bucket=\"1x256\""), std::string::npos);
  EXPECT_EQ(run({"report", tiny(), "--batch", "32", "-o", page.string()}).code, 1) << "a bucket that is not there";

  Result compared = run({"ab", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--a", "default", "--b", "winner", "--budget", "1s", "--json"});
  ASSERT_TRUE(compared.code == 0 || compared.code == 3) << compared.code << compared.err;
  Json comparison = Json::parse(compared.out)["comparisons"][0];
  EXPECT_EQ(comparison["b"]["config"], winner["config"]);
  EXPECT_EQ(comparison["a"]["correct"], true);
  EXPECT_GT(comparison["ratio"].get<double>(), 0);
  EXPECT_LE(comparison["ratio_low"].get<double>(), comparison["ratio"].get<double>());
  EXPECT_FALSE(comparison["sentence"].get<std::string>().empty());

  fs::path tables = dir_ / "tables";
  ASSERT_EQ(run({"export", "--format", "json", "--out", tables.string()}).code, 0);
  ASSERT_EQ(run({"export", tiny(), "--format", "csv", "--out", tables.string()}).code, 0);
  int json_files = 0;
  for (const auto& entry : fs::directory_iterator(tables)) {
    if (entry.path().extension() != ".json") continue;
    ++json_files;
    EXPECT_TRUE(Json::parse(read_file(entry.path())).contains("_metadata"));
  }
  EXPECT_EQ(json_files, 1);
  std::string csv = read_file(tables / "winners.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3) << csv;
}

// Faults: a comparison with a winner that is not there takes another config in its place; one that is not decided in time counts as done.
TEST_F(Cli, AbNeedsItsWinnerAndSaysWhenItIsNotDecided) {
  const auto ab = [&](const std::string& b, const std::string& budget) { return run({"ab", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--a", "default", "--b", b, "--budget", budget}); };
  const Result absent = ab("winner", "1s");
  EXPECT_EQ(absent.code, 1) << absent.out;
  EXPECT_NE(absent.err.find("--b is winner, but the store"), std::string::npos) << absent.err;
  const Result short_of_time = ab("default", "0.00001s");
  EXPECT_EQ(short_of_time.code, 3) << short_of_time.out << short_of_time.err;
  for (const char* part : {"one config", "not decided within 1e-05 s"}) EXPECT_NE(short_of_time.out.find(part), std::string::npos) << part << "\n" << short_of_time.out;
  const Result repeated = run({"ab", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--a", "default", "--b", "default", "--budget", "0.00001s", "--times", "3", "--json"});
  const Json comparison = Json::parse(repeated.out)["comparisons"][0];
  EXPECT_EQ(comparison["times"], 3);
  EXPECT_EQ(comparison["verdicts"], Json({{"not decided", 3}}));
}

// Fault: a report of nothing is written over a good one.
TEST_F(Cli, AReportOfNothingFails) {
  const fs::path page = dir_ / "report.html";
  const Result result = run({"report", "--all", "-o", page.string()});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("run pagetune tune first"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(page));
}

// Fault: exporting an empty store writes an empty table over a good one.
TEST_F(Cli, ExportOfNothingFails) {
  Result result = run({"export", "--format", "csv", "--out", (dir_ / "tables").string()});
  EXPECT_EQ(result.code, 1);
  EXPECT_FALSE(fs::exists(dir_ / "tables" / "winners.csv"));
}

// Fault: layers of one kind are left out, or tuned as if they were of the other.
TEST_F(Cli, EveryKindOfLayerIsTuned) {
  Result result = run({"tune", mixed(), "--device", "cpu", "--batch", "1", "--len", "64", "--budget", "5s"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  for (const char* layers : {"(layers 0)", "(layers 1)"}) EXPECT_NE(result.out.find(layers), std::string::npos) << result.out;
}

// Faults: a verb that knows one page size where others take a list; a size named twice is worked through twice; a table of one size taken for all.
TEST_F(Cli, EveryVerbTakesSeveralPageSizes) {
  const std::vector<std::string> shape = {tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--page-size", "16,7,16"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), shape.begin(), shape.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  Result plan = run(with({"plan"}, {"--json"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(Json::parse(plan.out)["devices"][0]["to_tune"], 2);
  Result tune = run(with({"tune"}, {"--budget", "5s"}));
  ASSERT_EQ(tune.code, 0) << tune.out << tune.err;
  for (const char* page : {"page 16,", "page 7,"}) EXPECT_NE(tune.out.find(page), std::string::npos) << tune.out;
  const auto files = [&](const std::string& pages) {
    Result result = run({"export", tiny(), "--page-size", pages, "--out", (dir_ / pages).string(), "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out)["files"].size();
  };
  EXPECT_EQ(files("7"), 1U);
  EXPECT_EQ(files("7,16"), 2U);
}

// Fault: a session that left something out says that it is done, or fails although something is there.
TEST_F(Cli, ABudgetThatIsSpentIsPartlyDoneAndSaysWhatIsLeft) {
  const auto tune = [&](const std::string& lens, const std::string& budget) { return run({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", lens, "--budget", budget}); };
  ASSERT_EQ(tune("64", "5s").code, 0);
  const Result result = tune("64,2048", "0.001s");
  EXPECT_EQ(result.code, 3) << result.out << result.err;
  EXPECT_NE(result.err.find("not reached"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("1 bucket is left: the same command goes on with it"), std::string::npos) << result.err;
}

// Fault: a model that is not supported counts as done, or fails without the reason.
TEST_F(Cli, AnUnsupportedModelFailsAndGivesTheReason) {
  Result result = run({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--budget", "5s", "--kv-dtype", "fp8_e4m3"});
  EXPECT_EQ(result.code, 1) << result.out << result.err;
  EXPECT_NE(result.err.find("not supported: layers 0-1: kv_scale"), std::string::npos) << result.err;
}

// Fault: a record with other keys or in another order than readers expect; a file without its command.
TEST_F(Cli, BenchPrintsOneRecordPerCell) {
  fs::path file = dir_ / "bench.jsonl";
  Result result = run({"bench", tiny(), "--device", "cpu", "--batch", "1,3", "--len", "100", "--page-size", "16,7", "--configs", "default", "--out", file.string()});
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(read_file(file));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_NE(Json::parse(line)["command"].get<std::string>().find("bench"), std::string::npos);
  const std::vector<std::string> expected = {"bench", "device", "commit", "hq", "hkv", "dk", "dv", "page", "layout", "q_dtype", "kv_dtype", "batch", "len", "ragged", "q_len", "headwise", "window",
                                             "kv_bytes", "flops", "median_us", "min_us", "floor_us", "fraction", "tflops", "variant", "config", "tuned", "overlap", "error"};
  int count = 0;
  while (std::getline(lines, line)) {
    Json record = Json::parse(line);
    std::vector<std::string> keys;
    for (const auto& [key, value] : record.items()) keys.push_back(key);
    EXPECT_EQ(keys, expected);
    EXPECT_EQ(record["commit"], "0123abcd");
    EXPECT_EQ(record["kv_bytes"], record["batch"].get<int64_t>() * 100 * 2 * (64 + 64) * 2);
    EXPECT_GT(record["median_us"].get<double>(), 0);
    EXPECT_LE(record["min_us"].get<double>(), record["median_us"].get<double>());
    EXPECT_LT(record["error"].get<double>(), 0.01);
    EXPECT_EQ(record["tuned"], false);
    ++count;
  }
  EXPECT_EQ(count, 4);
}

// Fault: generating needs a GPU, or prints something else than the kernel for the shape.
TEST_F(Cli, GenPrintsSourceForAGpuThatIsNotHere) {
  Result result = run({"gen", tiny(), "--target", "sm_90a", "--show", "source"}, "");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("pt_decode"), std::string::npos);
  EXPECT_NE(result.out.find("head_dim"), std::string::npos);
  Json document = Json::parse(run({"gen", tiny(), "--target", "sm_80", "--show", "source", "--json"}, "").out);
  EXPECT_EQ(document["target"], "sm_80");
  EXPECT_GE(document["kernels"].size(), 1u);
}

TEST_F(Cli, GenReportsOnTheCpu) {
  Result result = run({"gen", tiny(), "--target", "cpu", "--show", "report", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json document = Json::parse(result.out);
  ASSERT_GE(document["kernels"].size(), 1u);
  for (const Json& kernel : document["kernels"]) EXPECT_EQ(kernel["facts"]["variant"], kernel["config"]["VARIANT"]);
}

// Fault: the verb that only the program itself starts is offered to users, or waits at a terminal for ever.
TEST_F(Cli, TheWorkersVerbIsNotForUsers) {
  EXPECT_EQ(run({"--help"}).out.find("\n  worker"), std::string::npos);
  EXPECT_EQ(run({"tune", "--help"}).out.find("in-process"), std::string::npos);
  Result result = run({"worker"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_NE(result.err.find("`pagetune tune` starts it"), std::string::npos) << result.err;
}

// Fault: a session with workers finds no winner where one without does, or keeps no binary.
TEST_F(Cli, TuneWorksInWorkersAndWithout) {
  for (const bool in_process : {false, true}) {
    Result result = tune(in_process ? std::vector<std::string>{"--in-process", "--retune"} : std::vector<std::string>{});
    ASSERT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_NE(result.out.find("2 buckets tuned"), std::string::npos) << result.out;
    Result warm = run({"prewarm", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--json"});
    EXPECT_EQ(Json::parse(warm.out)["devices"][0]["compiled"], 0);
  }
}

// Fault: a session whose winners no file takes ends as a success, and the next one begins anew.
TEST_F(Cli, WinnersThatCannotBeStoredAreSaid) {
  fs::create_directory(cache());
  fs::permissions(cache(), fs::perms::owner_all);
  std::ofstream(cache() / "winners.db") << std::string(4096, 'x');  // damaged: set aside, and replaced
  EXPECT_EQ(tune().code, 0);
  {
    SQLite::Database db((cache() / "winners.db").string(), SQLite::OPEN_READWRITE);
    db.exec("PRAGMA user_version=999");  // a newer pagetune's
  }
  const Result result = tune();
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.err.find("2 winners could not be stored"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("stored in"), std::string::npos) << result.out;
  EXPECT_EQ(Json::parse(tune({"--json"}).out)["devices"][0]["unstored"], 2);
}

// Fault: what a fleet's log collector reads is no JSON, leaves out a bucket, or says it before its winner is stored.
TEST_F(Cli, EventsAreLinesOfJsonWhereThereIsNoTerminal) {
  const Result result = tune();
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.err);
  int progress = 0;
  std::vector<Json> buckets;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("throttled: ")) continue;  // a sentence for people, where another program took the CPU
    const Json event = Json::parse(line, nullptr, false);
    ASSERT_TRUE(event.is_object()) << line;
    EXPECT_EQ(event["time"].get<std::string>().size(), std::string("2026-12-01T00:15:42.123Z").size()) << line;
    if (event["event"] == "bucket") buckets.push_back(event);
    if (event["event"] != "progress") continue;
    ++progress;
    EXPECT_EQ(event["works"], 2) << line;
    EXPECT_GE(event["eta_s"].get<double>(), 0) << line;
  }
  EXPECT_GE(progress, 3);
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_EQ(buckets[1]["len"], 256);
  EXPECT_EQ(buckets[1]["outcome"], "tuned");
  const Json stored = Json::parse(run({"explain", tiny(), "--device", "cpu", "--batch", "1", "--len", "256", "--json"}).out)["answers"][0];
  EXPECT_EQ(buckets[1]["winner"]["median_us"], stored["winner"]["median_us"]);
  EXPECT_TRUE(run({"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--retune", "--budget", "8s", "--json"}).err.empty());
}

// Fault: people at a terminal are shown JSON, or a new line for every step.
TEST_F(Cli, ATerminalIsShownOneLineThatIsRewritten) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("PAGETUNE_CACHE_DIR", cache().c_str(), 1);
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl(PAGETUNE_PROGRAM, PAGETUNE_PROGRAM, "tune", tiny().c_str(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--budget", "8s", nullptr);
    _exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t got; (got = read(terminal, buffer, sizeof buffer)) > 0;) shown.append(buffer, static_cast<size_t>(got));
  close(terminal);
  EXPECT_EQ(finish(child).code, 0) << shown;
  EXPECT_NE(shown.find("\r\033[K[2/2] "), std::string::npos) << shown;
  EXPECT_NE(shown.find("; done within"), std::string::npos) << shown;
  const std::string progress = shown.substr(0, shown.rfind("\r\033[K"));  // sentences may follow: another program's load counts as a device that slowed down
  EXPECT_EQ(progress.find('\n'), std::string::npos) << shown;
  EXPECT_EQ(shown.find('{'), std::string::npos) << shown;
}

// Fault: winners that were timed as graphs pass for eager ones, so that who deploys without graphs tunes nothing; or --eager measures as without it.
TEST_F(Cli, EagerWinnersAreNotThoseOfGraphs) {
  ASSERT_EQ(tune().code, 0);
  const Json plan = Json::parse(run({"plan", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--eager", "--json"}).out)["devices"][0];
  EXPECT_EQ(plan["to_tune"], 2);
  EXPECT_EQ(Json::parse(tune({"--eager", "--json"}).out)["devices"][0]["tuned"], 2);
  EXPECT_EQ(Json::parse(tune({"--eager", "--json"}).out)["devices"][0]["stored_before"], 2);
  EXPECT_EQ(Json::parse(tune({"--json"}).out)["devices"][0]["tuned"], 2);
}

// Fault: the kernel of a winner that was found wrong since is explained as the answer, shipped in tables, or never replaced.
TEST_F(Cli, ABlockedWinnerIsNotShippedAndIsTunedAgain) {
  ASSERT_EQ(tune().code, 0);
  pagetune::KernelConfig config;
  {
    const auto store = pagetune::Store::open(cache().string());
    const auto rows = store->all_winners();
    ASSERT_EQ(rows.size(), 2U);
    config = rows[0].winner.config;
    for (const auto& row : rows) store->block(row.winner.env_key, row.winner.spec_key, row.winner.config, pagetune::Blocklist::text("wrong result"));
  }
  const Json answer = Json::parse(run({"explain", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--json"}).out)["answers"][0];
  EXPECT_EQ(answer["source"], "analytic default");
  EXPECT_NE(answer["sources"][0]["why"].get<std::string>().find("blocked since it was measured: wrong result"), std::string::npos) << answer.dump(2);
  const Result exported = run({"export", "--out", (dir_ / "tables").string()});
  EXPECT_EQ(exported.code, 1);
  EXPECT_NE(exported.err.find("2 winners are left out"), std::string::npos) << exported.err;
  const Json again = Json::parse(tune({"--json"}).out)["devices"][0];
  EXPECT_EQ(again["tuned"], 2);
  EXPECT_NE(again["works"][0]["winner"]["config"].dump(), config.canonical_json());
  EXPECT_EQ(run({"export", "--out", (dir_ / "tables").string()}).code, 0);
}

// Fault: what a program called with no winner to answer is not counted, is not what the next session tunes, or is tuned again and again.
TEST_F(Cli, WhatProgramsCalledWithoutAWinnerIsTuned) {
  EXPECT_NE(run({"tune", "--from-untuned", "--device", "cpu"}).out.find("no call without a winner was counted"), std::string::npos);
  const pid_t engine = fork();
  if (engine == 0) {
    setenv("PAGETUNE_CACHE_DIR", cache().c_str(), 1);
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl(PAGETUNE_EXAMPLE, PAGETUNE_EXAMPLE, "cpu", nullptr);
    _exit(127);
  }
  ASSERT_EQ(finish(engine).code, 0);
  const Json plan = Json::parse(run({"plan", "--from-untuned", "--device", "cpu", "--json"}).out)["devices"][0];
  ASSERT_EQ(plan["works"].size(), 1u) << plan.dump(2);
  EXPECT_EQ(plan["works"][0]["len"], 2048);
  EXPECT_EQ(plan["works"][0]["hits"], 1);
  const Json tuned = Json::parse(run({"tune", "--from-untuned", "--device", "cpu", "--budget", "8s", "--json"}).out)["devices"][0];
  EXPECT_EQ(tuned["tuned"], 1) << tuned.dump(2);
  EXPECT_EQ(tuned["works"][0]["hits"], 1);
  EXPECT_EQ(Json::parse(run({"tune", "--from-untuned", "--device", "cpu", "--json"}).out)["devices"][0]["works"].size(), 0u);
  EXPECT_EQ(Json::parse(run({"plan", "--from-untuned", "--device", "cpu", "--retune", "--json"}).out)["devices"][0]["works"].size(), 1u);
}

// Fault: --device all leaves the device that is here out.
TEST_F(Cli, AllDevicesAreTuned) {
  Result result = run({"tune", tiny(), "--device", "all", "--batch", "1", "--len", "64", "--budget", "4s", "--json"}, "");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(Json::parse(result.out)["devices"].size(), 1U);
}

// Fault: Ctrl-C kills the process with what it had, or is ignored.
TEST_F(Cli, AnInterruptEndsTheSessionAndSaysHowToGoOn) {
  pid_t child = start({"tune", tiny(), "--device", "cpu", "--batch", "1,2,4", "--len", "256,1024,4096", "--budget", "10m"});
  for (int waited_ms = 0; read_file(dir_ / "err").find("\"works\":9") == std::string::npos && waited_ms < 60000; waited_ms += 20) usleep(20000);
  kill(child, SIGINT);
  Result result = finish(child);
  EXPECT_TRUE(result.code == 1 || result.code == 3) << result.code << result.err;
  EXPECT_NE(result.err.find("the same command goes on"), std::string::npos) << result.err;
}

}  // namespace
