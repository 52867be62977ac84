// Compiled kernels that leave one store as an archive and come into another one, as a user does it.
#include "cache_db/binary_archive.hpp"
#include "cache_db/export.hpp"
#include "cache_db/store.hpp"
#include "cli_support.hpp"
#include "store_samples.hpp"

namespace {

using namespace cli_test;

class Archive : public Cli {
 protected:
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  Result in(const std::string& store, const std::vector<std::string>& arguments) { return run_with({{"PAGETUNE_CACHE_DIR", store}}, arguments); }
  // How many kernels prewarming compiles, and how many there are.
  std::pair<int, int> prewarm(const std::string& store) {
    const Result result = in(store, {"prewarm", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256,4096", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const Json device = Json::parse(result.out)["devices"][0];
    return {device["compiled"].get<int>(), device["binaries"].get<int>()};
  }
  std::string archive(const std::string& name, const std::vector<pagetune::Binary>& binaries) const {
    pagetune::write_file(path(name), pagetune::binary_archive(binaries, {"nvrtc 13.0"}));
    fs::permissions(path(name), fs::perms::owner_read | fs::perms::owner_write);
    return path(name);
  }
};

// Faults: a kernel that changes on the way, or comes in under a key that nothing looks for, so that it is compiled again.
TEST_F(Archive, ExportThenImportSavesEveryCompile) {
  const auto [compiled, binaries] = prewarm(path("source"));
  ASSERT_GT(compiled, 1);
  ASSERT_EQ(compiled, binaries);
  const Result out = in(path("source"), {"export", "--format", "tar", "--out", path("kernels.tar"), "--json"});
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(Json::parse(out.out), Json({{"binaries", binaries}, {"files", {path("kernels.tar")}}}));
  fs::permissions(path("kernels.tar"), fs::perms::owner_read | fs::perms::owner_write);

  const Result taken = in(path("fresh"), {"import", "--binaries", path("kernels.tar"), "--json"});
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_EQ(Json::parse(taken.out)["added_binaries"], binaries);
  EXPECT_EQ(Json::parse(taken.out)["files"][0]["binaries"], binaries);
  EXPECT_EQ(prewarm(path("fresh")), std::pair(0, binaries));
  EXPECT_EQ(prewarm(path("other")).first, binaries) << "without the archive they are compiled";
  ASSERT_EQ(in(path("fresh"), {"export", "--format", "tar", "--out", path("again.tar")}).code, 0);
  EXPECT_TRUE(cli_test::read_file(path("again.tar")) == cli_test::read_file(path("kernels.tar")));
  const Result twice = in(path("fresh"), {"import", "--binaries", path("kernels.tar")});
  EXPECT_NE(twice.out.find("0 new"), std::string::npos) << twice.out;
  EXPECT_EQ(in(path("fresh"), {"bench", tiny(), "--device", "cpu", "--batch", "1", "--len", "64"}).code, 0);
}

// Fault: a file among others brings code in without anybody having asked for it.
TEST_F(Archive, IsTakenInWhenAskedForOnly) {
  const std::string kernels = archive("kernels", {pagetune::sample_binary("a")});  // known without its name's end
  const std::string table = path("table.json");
  pagetune::write_file(table, pagetune::export_json({pagetune::sample_row()})[0].text);
  const Result result = run({"import", table, kernels});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find(kernels + " holds compiled binaries"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("--binaries"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(cache()));

  const Result both = run({"import", "--binaries", table, kernels, "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(Json::parse(both.out)["added"], 1);
  EXPECT_EQ(Json::parse(both.out)["added_binaries"], 1);
  EXPECT_TRUE(pagetune::Store::open(cache().string())->find_binary(pagetune::sample_binary("a").key));
}

// Faults: a part of a bad archive comes in, or it takes the good one with it; a store is made for nothing.
TEST_F(Archive, ABadOneIsRefusedWholeBesideAGoodOne) {
  const std::string good = archive("good.tar", {pagetune::sample_binary("good")});
  const std::string bad = archive("bad.tar", {pagetune::sample_binary("a"), pagetune::sample_binary("b")});
  std::string bytes = cli_test::read_file(bad);
  bytes[bytes.size() - 1024 - 512] ^= 1;  // in the last block of the last binary
  pagetune::write_file(bad, bytes);
  EXPECT_EQ(run({"import", "--binaries", bad}).code, 1);
  EXPECT_FALSE(fs::exists(cache()));
  const Result partly = run({"import", "--binaries", bad, good, "--json"});
  EXPECT_EQ(partly.code, 3) << partly.err;
  EXPECT_NE(partly.err.find(bad + ": entry 3: the sha256 of binary"), std::string::npos) << partly.err;
  EXPECT_TRUE(Json::parse(partly.out)["files"][0].contains("error"));
  EXPECT_EQ(pagetune::Store::open(cache().string())->usage().binaries, 1);
}

// Faults: a model's name narrows nothing, without a word; an archive of nothing; an import into nowhere that says it is done.
TEST_F(Archive, SaysWhatItCannotDo) {
  const std::string kernels = archive("kernels.tar", {pagetune::sample_binary("a")});
  const Result of_model = run({"export", tiny(), "--format", "tar", "--out", path("out.tar")});
  EXPECT_EQ(of_model.code, 2);
  EXPECT_NE(of_model.err.find("leave the model out"), std::string::npos) << of_model.err;
  const Result empty = run({"export", "--format", "tar", "--out", path("out.tar")});
  EXPECT_EQ(empty.code, 1);
  EXPECT_NE(empty.err.find("has no binary"), std::string::npos) << empty.err;
  EXPECT_FALSE(fs::exists(path("out.tar")));
  const Result nowhere = in(":memory:", {"import", "--binaries", kernels});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("no binary was taken in"), std::string::npos) << nowhere.err;
}

}  // namespace
