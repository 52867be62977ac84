// Which winners may answer on a device: its own, those of its class, and those that come with pagetune.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "cache_db/layers.hpp"
#include "cache_db/shipped_table.hpp"
#include "codegen/generate.hpp"
#include "store_samples.hpp"

namespace pagetune {
namespace {

constexpr const char* kThis = "this generator";

Environment other_driver() {
  Environment env = sample_environment();
  env.driver = "12.8";
  return env;
}

Environment other_class() {
  Environment env = sample_environment();
  env.processors = 78;
  env.device = "NVIDIA H20";
  return env;
}

Store::Row row_of(const Environment& env, Bucket bucket, const std::string& generator, double ci_high_us) {
  Store::Row row = sample_row(bucket, {}, env);
  row.winner.generator_hash = generator;
  row.winner.ci_high_us = ci_high_us;
  return row;
}

std::vector<LayeredWinner> chosen(const std::vector<Store::Row>& user, const std::vector<Store::Row>& shipped) {
  std::vector<LayeredWinner> all;
  for (const LayeredWinners& layer : {candidates(sample_environment(), kThis, user), candidates(sample_environment(), kThis, shipped, true)})
    for (const auto& [spec, winners] : layer) all.insert(all.end(), winners.begin(), winners.end());
  return layered(all);
}

// Faults: a row of another class answers; of several rows of a bucket another than the rule's is taken; the order in which rows come decides.
TEST(Layers, OfEachBucketTheBestRowOfThisEnvironmentAndTheBestOfItsClass) {
  const Environment own = sample_environment();
  const Bucket bucket{3, 12}, other{4, 12};
  const std::vector<Store::Row> user = {row_of(own, bucket, "older", 9), row_of(other_driver(), bucket, kThis, 30), row_of(other_driver(), other, kThis, 20), row_of(other_class(), other, kThis, 1)};
  std::vector<Store::Row> shipped = {row_of(own, bucket, kThis, 40), row_of(other_driver(), bucket, kThis, 5), row_of(other_class(), bucket, kThis, 1)};
  auto found = chosen(user, shipped);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_FALSE(found[0].other_device);
  EXPECT_TRUE(found[0].shipped) << "confirmed before the user's own of an older generator";
  EXPECT_TRUE(found[0].confirmed);
  EXPECT_EQ(found[0].winner, shipped[0].winner);
  EXPECT_TRUE(found[1].other_device);
  EXPECT_FALSE(found[1].shipped) << "the user's before the shipped, though slower";
  EXPECT_EQ(found[1].winner, user[1].winner);
  EXPECT_EQ(found[2].winner, user[2].winner) << "H20 has another number of processors";

  shipped[0].winner.generator_hash = "older";
  found = chosen(user, shipped);
  EXPECT_EQ(found[0].winner, user[0].winner) << "neither is confirmed";
  EXPECT_FALSE(found[0].confirmed);

  // Of one rank: the smaller upper end, then the smaller median.
  std::vector<Store::Row> many;
  for (int i = 0; i < 6; ++i) many.push_back(row_of(own, bucket, kThis, 10 + i / 2));
  many[1].winner.median_us = many[0].winner.median_us / 2;
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<Store::Row> shuffled = many;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    found = chosen(shuffled, {});
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].winner, many[1].winner);
  }
}

class Shipped : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = Store::open(dir_.path());
    put(*store, sample_row({3, 12}));
    put(*store, sample_row({4, 12}, {}, other_driver()));
    AttentionSpec lse;
    lse.lse = true;
    put(*store, sample_row({5, 12}, lse));
    setenv("PAGETUNE_SYSTEM_DB", file().c_str(), 1);
  }
  void TearDown() override { unsetenv("PAGETUNE_SYSTEM_DB"); }
  std::string file() const { return dir_ / "winners.db"; }
  static std::vector<LayeredWinner> ask(Store& store) { return store.layered_winners(sample_environment(), spec_key(AttentionSpec{})); }

  const TempDir dir_;
};

// Faults: shipped winners do not count, or count for another spec; or count before the user's.
TEST_F(Shipped, AnswerWhereTheUserHasNone) {
  const TempDir mine;
  const auto store = Store::open(mine.path());
  auto found = ask(*store);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].shipped && found[1].shipped);
  EXPECT_EQ(found[0].winner, sample_row({3, 12}).winner);
  EXPECT_FALSE(found[0].confirmed) << "the sample's generator is not this build's";
  EXPECT_TRUE(found[1].other_device);

  Store::Row own = sample_row({3, 12});
  own.winner.median_us = own.winner.ci_low_us = own.winner.ci_high_us = 50;
  own.winner.generator_hash = generator_hash();
  put(*store, own);
  found = ask(*store);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_FALSE(found[0].shipped);
  EXPECT_EQ(found[0].winner, own.winner);
  EXPECT_TRUE(found[0].confirmed);
  EXPECT_TRUE(store->problems().empty());
  EXPECT_EQ(ask(*Store::open(":memory:")).size(), 2U) << "a store in memory has the layer too";
}

// Faults: reading leaves a trace beside a file that may lie on a read-only mount; a new release's file is not seen.
TEST_F(Shipped, AreReadWithoutATrace) {
  Store::open(dir_.path()).reset();
  for (const char* beside : {"kernels.db", "winners.db-journal", "winners.db-wal", "winners.db-shm"}) std::filesystem::remove(dir_ / beside);
  const std::string bytes = read_file(file());
  const auto store = Store::open(":memory:");
  EXPECT_EQ(ask(*store).size(), 2U);
  EXPECT_EQ(read_file(file()), bytes);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) names.push_back(entry.path().filename());
  std::erase(names, "compile.lock");
  EXPECT_EQ(names, std::vector<std::string>{"winners.db"});
  std::filesystem::rename(file(), dir_ / "old.db");
  EXPECT_TRUE(ask(*store).empty());
}

// Faults: a shipped file that is absent, damaged or of another program stops a kernel, or is passed over in silence, or said at every call.
TEST_F(Shipped, ThatCannotBeReadAreSaidOnce) {
  for (const std::string& bytes : {std::string("not a database"), std::string(), read_file(file()).substr(0, 5000)}) {
    write_file(dir_ / "bad.db", bytes);
    setenv("PAGETUNE_SYSTEM_DB", (dir_ / "bad.db").c_str(), 1);
    const auto store = Store::open(":memory:");
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(ask(*store).empty());
    ASSERT_EQ(store->problems().size(), 1U);
    EXPECT_NE(store->problems()[0].find("bad.db"), std::string::npos);
    EXPECT_NE(store->problems()[0].find("PAGETUNE_SYSTEM_DB"), std::string::npos);
  }
  setenv("PAGETUNE_SYSTEM_DB", "", 1);
  const auto none = Store::open(":memory:");
  EXPECT_TRUE(ask(*none).empty());
  EXPECT_TRUE(none->problems().empty()) << "nothing was asked for";
}

// Fault: a flipped byte in a shipped winner is served.
TEST_F(Shipped, RowsThatDoNotMatchTheirDigestAreLeftOut) {
  std::string bytes = read_file(file());
  const std::string session = "host:1:2";
  for (size_t at = bytes.find(session); at != std::string::npos; at = bytes.find(session, at + 1)) bytes[at] = 'H';
  write_file(dir_ / "edited.db", bytes);
  setenv("PAGETUNE_SYSTEM_DB", (dir_ / "edited.db").c_str(), 1);
  const auto store = Store::open(":memory:");
  EXPECT_TRUE(ask(*store).empty());
  ASSERT_EQ(store->problems().size(), 1U);
  EXPECT_NE(store->problems()[0].find("digest"), std::string::npos);
}

// Fault: without the variable another place than the documented ones is read.
TEST(ShippedPlace, IsBesideTheProgramUnlessNamed) {
  unsetenv("PAGETUNE_SYSTEM_DB");
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string found = ShippedTable::default_path();
  if (!found.empty()) {
    EXPECT_TRUE(found == (program.parent_path() / "pagetune/winners.db").string() || std::filesystem::equivalent(found, program.parent_path() / "../share/pagetune/winners.db")) << found;
  }
  setenv("PAGETUNE_SYSTEM_DB", "/named/winners.db", 1);
  EXPECT_EQ(ShippedTable::default_path(), "/named/winners.db");
  unsetenv("PAGETUNE_SYSTEM_DB");
}

}  // namespace
}  // namespace pagetune
