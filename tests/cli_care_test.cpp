// doctor, stats, verify and gc as an operator runs them: real processes on stores that are empty, full, damaged, read-only or none.
#include <SQLiteCpp/SQLiteCpp.h>
#include <sys/stat.h>

#include <functional>
#include <map>

#include "cache_db/blocklist.hpp"
#include "cli_support.hpp"
#include "store_samples.hpp"

namespace {

using namespace cli_test;
using cli_test::read_file;

class Care : public Cli {
 protected:
  struct Entry {
    std::string bytes;
    int64_t seconds = 0, nanoseconds = 0;
    mode_t mode = 0;
    bool operator==(const Entry&) const = default;
  };
  // All that a verb could change: names, bytes, times and modes of the cache and what lies beside it.
  std::map<std::string, Entry> tree() const {
    std::map<std::string, Entry> entries;
    const auto add = [&](const fs::path& path) {
      struct stat info {};
      if (lstat(path.c_str(), &info) != 0) return;
      entries[path.string()] = {S_ISREG(info.st_mode) ? read_file(path) : "", info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_mode};
    };
    add(cache());
    if (fs::exists(cache()))
      for (const auto& entry : fs::recursive_directory_iterator(cache())) add(entry.path());
    return entries;
  }

  std::shared_ptr<pagetune::Store> open() const { return pagetune::Store::open(cache().string()); }

  // Two winners that this build did not measure, three binaries, a call.
  void fill() {
    auto store = open();
    put(*store, pagetune::sample_row({3, 12}));
    put(*store, pagetune::sample_row({4, 12}));
    for (const char* name : {"a", "b", "c"}) store->put_binary(pagetune::sample_binary(name));
    store->add_untuned({{pagetune::sample_environment(), {}, {5, 12}, 7}});
  }

  void change(const char* file, const std::string& sql) { SQLite::Database((cache() / file).string(), SQLite::OPEN_READWRITE).exec(sql); }

  // Garbage over the pages behind the first.
  void damage(const char* file) {
    std::string bytes = read_file(cache() / file);
    ASSERT_GT(bytes.size(), 8192u);
    std::fill(bytes.begin() + 4096, bytes.begin() + 8192, 'x');
    pagetune::write_file((cache() / file).string(), bytes);
  }

  Json json_of(std::vector<std::string> arguments, int code) {
    arguments.push_back("--json");
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    const Json parsed = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out;
    return parsed;
  }

  static Json check_of(const Json& report, const std::string& what) {
    for (const Json& check : report["checks"])
      if (check["what"] == what) return check;
    ADD_FAILURE() << "no check of " << what << "\n" << report.dump(1);
    return Json::object({{"level", ""}, {"found", ""}, {"remedy", ""}, {"facts", Json::object()}});
  }
};

// Faults: a verb that only looks makes the directory or files in it; an empty store counts as a broken one.
TEST_F(Care, AStoreThatIsNotThereIsNoFaultAndIsNotMade) {
  for (const char* verb : {"doctor", "stats", "verify", "gc"}) {
    const Result result = run({verb});
    EXPECT_EQ(result.code, 0) << verb << result.out << result.err;
    EXPECT_FALSE(fs::exists(cache())) << verb;
  }
  const Json doctor = json_of({"doctor"}, 0);
  EXPECT_EQ(doctor["errors"], 0);
  EXPECT_EQ(check_of(doctor, "cache directory")["facts"]["rule"], "PAGETUNE_CACHE_DIR");
  EXPECT_EQ(check_of(doctor, "cache directory")["facts"]["exists"], false);
  EXPECT_EQ(json_of({"stats"}, 0)["winners"], Json::array());
  EXPECT_EQ(json_of({"verify"}, 0)["files"][0]["state"], "missing");
  EXPECT_EQ(json_of({"gc"}, 0)["bytes"], 0);
  EXPECT_FALSE(fs::exists(cache()));
}

// Faults: memory by wish taken for a directory of that name, or for a fault.
TEST_F(Care, MemoryIsNoStore) {
  for (const char* verb : {"doctor", "stats", "verify", "gc"}) {
    for (const bool as_json : {false, true}) {
      const Result result = run_with({{"PAGETUNE_CACHE_DIR", ":memory:"}}, as_json ? std::vector<std::string>{verb, "--json"} : std::vector<std::string>{verb});
      EXPECT_EQ(result.code, 0) << verb << result.out << result.err;
      EXPECT_NE(result.out.find(as_json ? ":memory:" : std::string(verb) == "doctor" ? "kept in memory" : "nothing is kept"), std::string::npos) << result.out;
    }
  }
}

// Fault: the rule that chose the directory is guessed and not the one that Store follows.
TEST_F(Care, DoctorSaysWhichRuleChoseTheDirectory) {
  const std::vector<std::tuple<Environ, std::string, std::string>> cases = {
      {{{"PAGETUNE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", dir_.string()}}, "XDG_CACHE_HOME", (dir_ / "pagetune").string()},
      {{{"PAGETUNE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", ""}, {"HOME", dir_.string()}}, "HOME", (dir_ / ".cache/pagetune").string()},
      {{{"PAGETUNE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "relative"}, {"HOME", ""}}, "none", ":memory:"},
  };
  for (const auto& [environ, rule, path] : cases) {
    const Result result = run_with(environ, {"doctor", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const Json check = check_of(Json::parse(result.out), "cache directory");
    EXPECT_EQ(check["facts"]["rule"], rule);
    EXPECT_EQ(check["facts"]["path"], path);
    EXPECT_EQ(check["level"], rule == "none" ? "warning" : "ok");
  }
}

// Faults: a machine on which no kernel can run passes; or a part that it can do without fails it.
TEST_F(Care, DoctorWantsOneDevice) {
  const Environ no_gpu{{"CUDA_VISIBLE_DEVICES", ""}, {"PAGETUNE_NVRTC", "/nowhere/libnvrtc.so"}};
  const Result without_gpu = run_with(no_gpu, {"doctor", "--json"});
  EXPECT_EQ(without_gpu.code, 0) << without_gpu.out;
  EXPECT_EQ(check_of(Json::parse(without_gpu.out), "NVRTC")["level"], "warning");
  Environ none = no_gpu;
  none.emplace_back("PAGETUNE_CPU_BACKEND", "/nowhere/libpagetune_cpu.so");
  const Result without_any = run_with(none, {"doctor", "--json"});
  EXPECT_EQ(without_any.code, 1) << without_any.out;
  EXPECT_EQ(check_of(Json::parse(without_any.out), "CPU backend")["level"], "error");
  EXPECT_NE(run_with(none, {"doctor"}).out.find("1 error, "), std::string::npos);
}

// Faults: a count that misses rows or calls stale winners current; the machine's checks missing.
TEST_F(Care, DoctorAndStatsCountWhatIsThere) {
  fill();
  const auto before = tree();
  const Json doctor = json_of({"doctor"}, 0);
  for (const char* what : {"NVIDIA driver", "NVRTC", "CPU backend", "SQLite", "file system", "winners.db", "kernels.db", "untuned.db"}) EXPECT_FALSE(check_of(doctor, what)["found"].get<std::string>().empty()) << what;
  EXPECT_EQ(check_of(doctor, "CPU backend")["level"], "ok");
  EXPECT_EQ(check_of(doctor, "SQLite")["facts"]["journal"], check_of(doctor, "SQLite")["facts"]["wal_reset_fault"] == true ? "delete" : "wal");
  EXPECT_EQ(check_of(doctor, "winners")["facts"]["winners"], 2);
  EXPECT_EQ(check_of(doctor, "winners")["facts"]["current"], 0);
  EXPECT_EQ(check_of(doctor, "winners")["facts"]["here"], false);
  EXPECT_EQ(check_of(doctor, "untuned calls")["facts"]["buckets"], 1);
  EXPECT_EQ(check_of(doctor, "file system")["facts"]["network"], false);

  const Json stats = json_of({"stats"}, 0);
  ASSERT_EQ(stats["winners"].size(), 1u);
  for (const auto& [key, value] : std::map<std::string, int>{{"winners", 2}, {"unconfirmed", 2}, {"other_generator", 2}, {"other_space", 2}, {"other_policy", 2}, {"blocked", 0}}) EXPECT_EQ(stats["winners"][0][key], value) << key;
  EXPECT_EQ(stats["binaries"][0]["binaries"], 3);
  EXPECT_EQ(stats["binaries"][0]["bytes"], 15'000);
  EXPECT_EQ(stats["untuned"]["most_called"][0]["calls"], 7);
  const Result text = run({"stats"});
  for (const char* part : {"NVIDIA H200 (sm_90a, driver 13.0, nvrtc 13.0)", "32/8 heads", "cubin", "32x4096", "winners.db"}) EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  EXPECT_EQ(json_of({"verify"}, 0)["right"], true);
  EXPECT_EQ(tree(), before) << "a verb that only looks has changed something";
}

// Faults: what this build has just tuned counts as unconfirmed or as another machine's; a blocked winner as one that answers.
TEST_F(Care, WinnersOfThisMachineAreCurrentUntilTheyAreBlocked) {
  ASSERT_EQ(tune().code, 0);
  Json winners = check_of(json_of({"doctor"}, 0), "winners");
  EXPECT_EQ(winners["level"], "ok") << winners.dump(1);
  EXPECT_EQ(winners["facts"]["here"], true);
  EXPECT_EQ(winners["facts"]["current"], 2);
  {
    const pagetune::Store::Row row = open()->all_winners().at(0);
    open()->block(row.winner.env_key, row.winner.spec_key, row.winner.config, pagetune::Blocklist::text("wrong"));
  }
  winners = check_of(json_of({"doctor"}, 0), "winners");
  EXPECT_EQ(winners["level"], "warning");
  EXPECT_GE(winners["facts"]["blocked"].get<int>(), 1);
  EXPECT_EQ(json_of({"verify"}, 0)["right"], true);
  // A binary that this build can load stays, whatever its age within the limit.
  EXPECT_EQ(json_of({"gc"}, 0)["binaries"], Json::array());
  EXPECT_GT(json_of({"stats"}, 0)["binaries"][0]["binaries"].get<int>(), 0);
  EXPECT_EQ(json_of({"gc", "--max-bytes", "1"}, 0)["complete"], true);
  EXPECT_EQ(json_of({"stats"}, 0)["binaries"], Json::array());
}

// Faults: damage goes by unseen; looking at it sets the file aside; repair loses winners that could be read, or does not heal.
TEST_F(Care, ADamagedFileIsReportedAndOnlyRepairChangesIt) {
  fill();
  damage("kernels.db");
  auto before = tree();
  const Json doctor = json_of({"doctor"}, 1);
  EXPECT_EQ(check_of(doctor, "kernels.db")["level"], "error");
  EXPECT_NE(check_of(doctor, "kernels.db")["remedy"].get<std::string>().find("verify --repair"), std::string::npos);
  EXPECT_EQ(check_of(doctor, "winners.db")["level"], "ok");
  EXPECT_EQ(json_of({"verify"}, 1)["right"], false);
  EXPECT_EQ(json_of({"stats"}, 0)["files"][1]["state"], "damaged");
  EXPECT_EQ(json_of({"gc"}, 1)["complete"], false) << "what is damaged is not gc's to change";
  EXPECT_EQ(tree(), before);

  const Json repaired = json_of({"verify", "--repair"}, 0);
  EXPECT_EQ(repaired["files"][1]["repair"]["renewed"], true);
  EXPECT_EQ(json_of({"verify"}, 0)["right"], true);
  EXPECT_EQ(open()->all_winners().size(), 2u);
  EXPECT_EQ(check_of(json_of({"doctor"}, 0), "damage before")["level"], "warning");
}

// Fault: one damaged index page of the precious file costs every winner.
TEST_F(Care, RepairOfWinnersKeepsWhatCanBeRead) {
  fill();
  SQLite::Database db((cache() / "winners.db").string(), SQLite::OPEN_READWRITE);
  const int page = db.execAndGet("SELECT rootpage FROM sqlite_master WHERE name='sqlite_autoindex_meta_1'").getInt();
  std::string bytes = read_file(cache() / "winners.db");
  const size_t page_size = static_cast<size_t>(db.execAndGet("PRAGMA page_size").getInt());
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(page_size * static_cast<size_t>(page - 1)), page_size, 'x');
  pagetune::write_file((cache() / "winners.db").string(), bytes);
  const Json before = json_of({"verify"}, 1);
  EXPECT_EQ(before["files"][0]["state"], "damaged");
  EXPECT_EQ(json_of({"verify", "--repair"}, 0)["files"][0]["repair"]["renewed"], true);
  EXPECT_EQ(open()->all_winners().size(), 2u);
}

// Faults: a flipped byte in code or in a row goes by unseen; repair removes rows that are right; a dry look removes one.
TEST_F(Care, WrongRowsAreNamedAndOnlyTheyAreRemoved) {
  fill();
  change("kernels.db", "UPDATE blob SET data=CAST(substr(data,1,100)||x'00'||substr(data,102) AS BLOB) WHERE rowid=2");
  change("winners.db", "UPDATE winner SET median_us=1 WHERE batch=8");
  change("untuned.db", "UPDATE untuned SET batch=3");
  const auto before = tree();
  const Json found = json_of({"verify"}, 1);
  ASSERT_EQ(found["files"][0]["wrong"].size(), 1u);
  EXPECT_NE(found["files"][0]["wrong"][0]["row"].get<std::string>().find("8x4096"), std::string::npos);
  ASSERT_EQ(found["files"][1]["wrong"].size(), 1u);
  EXPECT_EQ(found["files"][1]["wrong"][0]["reason"], "its bytes do not match their sha256");
  EXPECT_EQ(found["files"][2]["wrong"].size(), 1u);
  EXPECT_NE(run({"verify"}).out.find("its values do not match its digest"), std::string::npos);
  EXPECT_EQ(check_of(json_of({"doctor"}, 1), "winners.db")["level"], "error");
  EXPECT_EQ(tree(), before);

  const Json repaired = json_of({"verify", "--repair"}, 0);
  for (int file : {0, 1, 2}) EXPECT_EQ(repaired["files"][file]["repair"]["removed_rows"], 1) << file;
  EXPECT_EQ(json_of({"verify"}, 0)["right"], true);
  EXPECT_EQ(open()->all_winners().size(), 1u);
  EXPECT_EQ(open()->usage().binaries, 2);
}

// Faults: repair says it is done where it could do a part only; a file of another program is changed.
TEST_F(Care, WhatIsNotTheStoresIsLeftAndSaid) {
  fill();
  change("kernels.db", "UPDATE blob SET size=1 WHERE rowid=1");
  change("untuned.db", "PRAGMA user_version=99");
  EXPECT_EQ(check_of(json_of({"doctor"}, 1), "untuned.db")["level"], "error");
  const std::string foreign = read_file(cache() / "untuned.db");
  EXPECT_EQ(run({"verify", "--repair"}).code, 3);
  EXPECT_EQ(run({"verify", "--repair"}).code, 1) << "nothing is left that could be repaired";
  EXPECT_EQ(json_of({"gc"}, 3)["complete"], false) << "kernels.db was tended";
  EXPECT_EQ(json_of({"gc"}, 1)["complete"], false);
  EXPECT_EQ(read_file(cache() / "untuned.db"), foreign);
}

// Fault: a directory that others can write, and that the store therefore does not use, passes.
TEST_F(Care, ADirectoryThatOthersCanWriteIsAnError) {
  fill();
  fs::permissions(cache(), fs::perms(0777));
  const Json check = check_of(json_of({"doctor"}, 1), "cache directory");
  EXPECT_EQ(check["level"], "error");
  EXPECT_EQ(check["facts"]["mode"], "0777");
}

// Faults: a directory that cannot be written fails what only looks; gc says it is done, or removes a part and says so of another.
TEST_F(Care, AReadOnlyDirectoryIsLookedAtAndLeft) {
  fill();
  change("kernels.db", "UPDATE blob SET size=1 WHERE rowid=1");
  fs::permissions(cache(), fs::perms(0500));
  obeys_modes_ = true;
  const Result probe = run({"stats"});
  if (probe.code == kNoSuchProcess) GTEST_SKIP() << "THIS TEST DID NOT RUN: root cannot give up its right to write everywhere here";
  const auto before = tree();
  EXPECT_EQ(check_of(json_of({"doctor"}, 1), "cache directory")["level"], "warning");
  EXPECT_EQ(json_of({"stats"}, 0)["winners"].size(), 1u);
  EXPECT_EQ(json_of({"verify"}, 1)["files"][1]["wrong"].size(), 1u);
  EXPECT_EQ(json_of({"verify", "--repair"}, 1)["files"][1]["repair"]["done"], false);
  const Json collected = json_of({"gc", "--max-bytes", "1"}, 1);
  EXPECT_EQ(collected["complete"], false);
  EXPECT_EQ(collected["binaries"], Json::array());
  EXPECT_FALSE(collected["problems"].empty());
  EXPECT_EQ(tree(), before);
  fs::permissions(cache(), fs::perms(0700));
}

// Faults: a write in progress is taken for damage, or its journal is replayed by looking.
TEST_F(Care, AnUnfinishedWriteIsNotTouched) {
  fill();
  pagetune::write_file((cache() / "winners.db-journal").string(), std::string(600, 'j'));
  const auto before = tree();
  EXPECT_EQ(check_of(json_of({"doctor"}, 0), "winners.db")["level"], "warning");
  const Json file = json_of({"verify"}, 1)["files"][0];
  EXPECT_EQ(file["state"], "unfinished");
  EXPECT_NE(file["remark"].get<std::string>().find("winners.db-journal"), std::string::npos) << file;
  EXPECT_EQ(tree(), before);
}

// Faults: dry-run removes; gc removes something else than dry-run said, leaves the file as large, or takes new files.
TEST_F(Care, GcRemovesWhatDryRunSaid) {
  fill();
  {
    const pagetune::Store::Row row = pagetune::sample_row();
    open()->block(row.winner.env_key, row.winner.spec_key, row.winner.config, "wrong (generator 000000000000)");
    open()->block(row.winner.env_key, row.winner.spec_key, row.winner.runner_up, pagetune::Blocklist::text("wrong"));
  }
  pagetune::write_file((cache() / "winners.db.corrupt-20200102T030405Z").string(), "old");
  pagetune::write_file((cache() / "winners.db.corrupt-29990102T030405Z").string(), "new");
  pagetune::write_file((cache() / "notes.corrupt-20200102T030405Z").string(), "mine");
  const auto before = tree();
  const Json planned = json_of({"gc", "--dry-run"}, 0);
  EXPECT_EQ(tree(), before);
  EXPECT_EQ(planned["binaries"].size(), 3u) << "they are no cubins, which no build can load";
  EXPECT_EQ(planned["blocks"].size(), 1u);
  ASSERT_EQ(planned["files"].size(), 1u);
  Json done = json_of({"gc"}, 0);
  for (const char* part : {"binaries", "blocks", "files"}) EXPECT_EQ(done[part], planned[part]) << part;
  EXPECT_GT(done["bytes"].get<int64_t>(), 10'000);
  EXPECT_LT(fs::file_size(cache() / "kernels.db"), before.at((cache() / "kernels.db").string()).bytes.size());
  EXPECT_FALSE(fs::exists(cache() / "winners.db.corrupt-20200102T030405Z"));
  EXPECT_TRUE(fs::exists(cache() / "winners.db.corrupt-29990102T030405Z"));
  EXPECT_TRUE(fs::exists(cache() / "notes.corrupt-20200102T030405Z"));
  EXPECT_EQ(open()->all_winners().size(), 2u);
  done = json_of({"gc"}, 0);
  EXPECT_EQ(done["bytes"], 0) << "the second time there is nothing to do";
}

// Faults: a size or an age that is none is taken for 0, which would remove everything.
TEST_F(Care, WrongLimitsAreUsageErrors) {
  fill();
  const auto before = tree();
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"gc", "--max-bytes", "many"}, {"gc", "--max-bytes", "-1"}, {"gc", "--older-than", "-3"}, {"gc", "--older-than", "x"}, {"verify", "--dry-run"}, {"stats", "x"}})
    EXPECT_EQ(run(wrong).code, 2) << wrong.back();
  EXPECT_EQ(tree(), before);
}

}  // namespace
