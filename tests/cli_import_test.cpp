// Winners that leave one store as files and come into another one, as a user does it.
#include <array>

#include "cache_db/export.hpp"
#include "cache_db/store.hpp"
#include "cli_support.hpp"
#include "store_samples.hpp"

namespace {

using namespace cli_test;
using pagetune::Store;

constexpr const char* kShipped = PAGETUNE_SOURCE_DIR "/configs/tuned/nvidia-h200/head=128,gqa=4,kv_heads=8,page=16,dtype=bf16,layout=nhd,device_name=NVIDIA_H200.json";

class Import : public Cli {
 protected:
  std::string store(const std::string& name) const { return (dir_ / name).string(); }
  Result import_into(const std::string& store, std::vector<std::string> files) {
    files.insert(files.begin(), "import");
    files.emplace_back("--json");
    return run_with({{"PAGETUNE_CACHE_DIR", store}}, files);
  }
  std::vector<std::string> export_from(const std::string& store, const std::string& format, const std::string& out) {
    const Result result = run_with({{"PAGETUNE_CACHE_DIR", store}}, {"export", "--format", format, "--out", out, "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out)["files"].get<std::vector<std::string>>();
  }
  std::string table(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return (dir_ / name).string();
  }
  static std::string good() { return pagetune::export_json({pagetune::sample_row({0, 4}), pagetune::sample_row({3, 12})})[0].text; }
};

// Fault: a table of this very machine that does not match it when it comes back, so that nothing of it is ever used; a winner that changes on the way.
TEST_F(Import, ExportThenImportOnTheSameMachineGivesTheSameWinners_B191) {
  ASSERT_EQ(tune().code, 0);
  const std::vector<std::string> tables = export_from(cache().string(), "json", store("tables"));
  const std::vector<std::string> db = export_from(cache().string(), "db", store("db"));
  ASSERT_EQ(tables.size(), 1u);
  ASSERT_EQ(db.size(), 1u);
  int number = 0;
  for (const std::string& file : {tables[0], db[0], store("db"), cache().string()}) {
    const std::string into = store("fresh-" + std::to_string(number++));
    const Result result = import_into(into, {file});
    ASSERT_EQ(result.code, 0) << file << result.err;
    const Json report = Json::parse(result.out);
    EXPECT_EQ(report["added"], 2);
    EXPECT_EQ(report["files"][0]["winners"], 2);
    EXPECT_TRUE(report["not_here"].empty()) << result.out;
    EXPECT_EQ(result.err, "");
    const std::vector<std::string> again = export_from(into, "json", into + "-tables");
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(fs::path(again[0]).filename(), fs::path(tables[0]).filename());
    EXPECT_EQ(read_file(again[0]), read_file(tables[0])) << file;
    EXPECT_EQ(read_file(export_from(into, "db", into + "-db").at(0)), read_file(db[0])) << file;
    const Result tuned = run_with({{"PAGETUNE_CACHE_DIR", into}}, {"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256"});
    EXPECT_EQ(tuned.out.rfind("nothing was compiled or tuned: 2 winners of this device", 0), 0u) << tuned.out << tuned.err;
    const Json second = Json::parse(import_into(into, {file}).out);
    EXPECT_EQ(second["added"], 0);
    EXPECT_EQ(second["replaced"], 0);
    EXPECT_EQ(second["kept_buckets"], 0);
  }
}

// Faults: rows of another machine are dropped, or kept without a word, so that nobody learns why they answer nothing.
TEST_F(Import, RowsOfOtherDevicesAreKeptAndSaid) {
  Result result = import_into(cache().string(), {kShipped});
  ASSERT_EQ(result.code, 0) << result.err;
  Json report = Json::parse(result.out);
  const size_t count = report["files"][0]["winners"].get<size_t>();
  EXPECT_GT(count, 1u);
  EXPECT_EQ(report["added"], count);
  ASSERT_EQ(report["not_here"].size(), 1u);
  EXPECT_EQ(report["not_here"][0]["winners"], count);
  EXPECT_EQ(report["not_here"][0]["environment"]["device"], "NVIDIA H200");
  EXPECT_NE(result.err.find("not of this machine, and kept: " + std::to_string(count) + " winners of \"NVIDIA H200\""), std::string::npos) << result.err;
  EXPECT_EQ(Store::open(cache().string())->all_winners().size(), count);

  // One of this machine, but of a compiler that it does not have.
  ASSERT_EQ(run_with({{"PAGETUNE_CACHE_DIR", store("own")}}, {"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64", "--budget", "2s"}).code, 0);
  Store::Row row = Store::open(store("own"))->all_winners().at(0);
  row.environment.compiler = "llvm 9.9";
  row.winner.env_key = row.environment.key();
  result = import_into(cache().string(), {table("old.json", pagetune::export_json({row})[0].text)});
  ASSERT_EQ(result.code, 0) << result.err;
  report = Json::parse(result.out);
  ASSERT_EQ(report["not_here"].size(), 1u);
  EXPECT_NE(report["not_here"][0]["why"].get<std::string>().find("differs: compiler \"llvm 9.9\", here \"llvm "), std::string::npos) << result.out;
}

// Faults: a malformed file brings in a part of itself, takes the good files with it, or is refused without its place.
TEST_F(Import, AMalformedFileIsRefusedWholeWithItsPlace_B193) {
  const std::string no_interval = [] {
    Json json = Json::parse(good());
    json["_metadata"].erase("digest");
    json["8x4096"]["ci_low_us"] = json["8x4096"]["ci_high_us"].get<double>() + 1;
    return json.dump();
  }();
  const auto spoilt = [](const std::string& what, const std::string& with) {
    std::string text = good();
    return text.replace(text.find(what), what.size(), with);
  };
  const std::vector<std::array<std::string, 3>> bad = {
      {"cut.json", good().substr(0, good().size() / 2), "line"},
      {"comma.json", spoilt("\n  }\n}", "\n  },\n}"), "line"},
      {"bom.json", "\xEF\xBB\xBF" + good(), "line 1, column 1"},
      {"key.json", spoilt("\"8x4096\"", "16"), "line"},
      {"bucket.json", spoilt("\"8x4096\"", "\"16\""), "'16' is not a bucket"},
      {"tile.json", spoilt("\"NUM_WARPS\": 4", "\"NUM_WARPS\": 0"), "NUM_WARPS = 0"},
      {"field.json", spoilt("\"tied\": 3", "\"tied\": 3, \"tide\": 3"), "'tide' is not a known key"},
      {"twice.json", spoilt("\"tied\": 3", "\"tied\": 3, \"tied\": 3"), "twice"},
      {"nan.json", spoilt("\"tied\": 3", "\"tied\": NaN"), "line"},
      {"large.json", good() + std::string(5 << 20, ' '), "more than 4194304 bytes"},
      {"digest.json", spoilt("\"tied\": 3", "\"tied\": 4"), "'digest'"},
      {"interval.json", no_interval, "bucket 8x4096: the 95 % interval is none"},
      {"winners.csv", pagetune::export_csv({pagetune::sample_row()}), "line 1"},
      {"noise.db", std::string(9000, 'n'), "cannot be read as winners"},
      {"empty.json", "", "line 1"},
  };
  int number = 0;
  for (const auto& [name, text, words] : bad) {
    const std::string path = table(name, text), into = store("into-" + std::to_string(number++));
    const Result partly = import_into(into, {path, kShipped});
    EXPECT_EQ(partly.code, 3) << name << partly.err;
    EXPECT_NE(partly.err.find(path), std::string::npos) << partly.err;
    EXPECT_NE(partly.err.find(words), std::string::npos) << name << ": " << partly.err;
    const Json report = Json::parse(partly.out);
    EXPECT_TRUE(report["files"][0].contains("error")) << name;
    EXPECT_EQ(report["added"], report["files"][1]["winners"]) << name;
    EXPECT_EQ(report["not_here"].size(), 1u) << name << ": something of the bad file came in";
    if (number > 3) continue;  // alone: the same for all
    EXPECT_EQ(import_into(store("alone"), {path}).code, 1) << name;
    EXPECT_FALSE(fs::exists(store("alone"))) << name;
  }
  EXPECT_EQ(import_into(store("crlf"), {table("crlf.json", [] {
                          std::string text;
                          for (const char c : good()) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
                          return text;
                        }())}).code,
            0)
      << "line ends are no fault";
}

// Faults: of a database with one bad row the others come in, unlike of a table; a directory of tables, or a path that is none, is an empty success.
TEST_F(Import, OfADatabaseAllOrNothingToo) {
  {
    const auto source = Store::open(store("source"));
    put(*source, pagetune::sample_row({0, 4}));
    Store::Row bad = pagetune::sample_row({3, 12});
    bad.winner.ci_low_us = 2 * bad.winner.ci_high_us;
    put(*source, bad);
  }
  Result result = import_into(cache().string(), {store("source")});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("nothing of this file is taken in"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(cache()));
  fs::create_directory(store("tables"));
  EXPECT_NE(import_into(cache().string(), {store("tables")}).err.find("/*.json"), std::string::npos);
  EXPECT_EQ(import_into(cache().string(), {store("no-such-file")}).code, 1);
  EXPECT_EQ(run({"import"}).code, 2);
}

// Fault: a row from outside takes the place of one that is better by the rule of merging.
TEST_F(Import, TheStoresOwnBetterWinnerStays) {
  Store::Row own = pagetune::sample_row(), worse = own;
  worse.winner.ci_high_us *= 2;
  put(*Store::open(cache().string()), own);
  const std::string file = table("worse.json", pagetune::export_json({worse, pagetune::sample_row({1, 4})})[0].text);
  const Json report = Json::parse(import_into(cache().string(), {file}).out);
  EXPECT_EQ(report["added"], 1);
  EXPECT_EQ(report["replaced"], 0);
  EXPECT_EQ(report["kept_buckets"], 1);
  const Result text = run({"import", file});
  EXPECT_NE(text.out.find("1 file taken into " + cache().string() + ": 0 winners new and 0 replaced; in 1 bucket the store's own is the better one"), std::string::npos) << text.out;
}

// Fault: a database to ship is written over the store that it comes from, which loses its blocked configs and all that was not chosen.
TEST_F(Import, ADatabaseIsNotExportedOverAStore) {
  put(*Store::open(cache().string()), pagetune::sample_row());
  const std::string before = read_file(cache() / "winners.db");
  const Result result = run({"export", "--format", "db", "--out", cache().string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("the directory of a store"), std::string::npos) << result.err;
  EXPECT_EQ(read_file(cache() / "winners.db"), before);
}

// Fault: the header of the program's own command is not the one that tests of its parts are about, or misses a winner.
TEST_F(Import, TheHeaderIsExportedFromImportedWinners) {
  ASSERT_EQ(import_into(cache().string(), {kShipped}).code, 0);
  const std::string header = read_file(export_from(cache().string(), "header", store("header")).at(0));
  EXPECT_EQ(header.find("// Tuned attention kernels"), 0u);
  EXPECT_NE(header.find("{\"NVIDIA H200\", "), std::string::npos);
  for (const Store::Row& row : Store::open(cache().string())->all_winners()) EXPECT_NE(header.find(" {" + std::to_string(row.winner.bucket.index()) + ", "), std::string::npos) << row.winner.bucket.text();
}

}  // namespace
