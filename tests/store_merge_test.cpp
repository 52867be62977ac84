#include <SQLiteCpp/SQLiteCpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <random>

#include "cache_db/export.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/source.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

namespace fs = std::filesystem;

// "now" is the policy and the generator of this build.
MergeRule rule() {
  return {[](const Store::Row& row) { return row.winner.policy_hash == "now"; }, [](const std::string& reason) { return reason.starts_with("now"); }};
}

Store::Row row_with(double ci_low, double ci_high, const std::string& policy = "now", int splits = 8) {
  Store::Row row = sample_row();
  row.winner.median_us = (ci_low + ci_high) / 2;
  row.winner.ci_low_us = ci_low;
  row.winner.ci_high_us = ci_high;
  row.winner.policy_hash = policy;
  row.winner.config.set("NUM_SPLITS", splits);
  return row;
}

Winner kept(const Store::Row& a, const Store::Row& b) {
  Merged one = merged({{"a", {a}, {}}, {"b", {b}, {}}}, rule()), other = merged({{"b", {b}, {}}, {"a", {a}, {}}}, rule());
  EXPECT_EQ(one.rows.size(), 1u);
  EXPECT_EQ(one.rows[0].winner, other.rows[0].winner) << "depends on the order";
  return one.rows[0].winner;
}

// Faults: a stale measurement wins by its time; the median or the lower end decides; equal intervals are decided by the order.
TEST(Merge, KeepsCurrentThenSmallestUpperEndThenSmallestBytes) {
  EXPECT_EQ(kept(row_with(9, 10), row_with(1, 2, "old")), row_with(9, 10).winner);
  EXPECT_EQ(kept(row_with(5, 9), row_with(1, 10)), row_with(5, 9).winner);
  EXPECT_EQ(kept(row_with(5, 9, "old"), row_with(1, 10, "older")), row_with(5, 9, "old").winner);
  EXPECT_EQ(kept(row_with(5, 9, "now", 16), row_with(5, 9, "now", 8)), row_with(5, 9, "now", 16).winner) << "\"16\" stands before \"8\" in bytes";
}

// Fault: rows of two devices, specs or buckets take each other's place.
TEST(Merge, KeepsEnvironmentsSpecsAndBucketsApart) {
  Environment other = sample_environment();
  other.driver = "13.1";
  AttentionSpec lse;
  lse.lse = true;
  Merged all = merged({{"a", {sample_row({1, 4}), sample_row({2, 4})}, {}}, {"b", {sample_row({1, 4}, lse), sample_row({1, 4}, {}, other)}, {}}}, rule());
  EXPECT_EQ(all.rows.size(), 4u);
  EXPECT_TRUE(all.conflicts.empty());
}

// Fault: the memory size of a device, which is recorded and not keyed, comes from whichever store was written last.
TEST(Merge, KeepsTheLargestMemorySizeOfAnEnvironment) {
  Store::Row a = sample_row({1, 4}), b = sample_row({2, 4}), c = sample_row({2, 4});
  a.environment.memory_bytes = 2;
  b.environment.memory_bytes = 3;  // of a row that is not kept
  c.environment.memory_bytes = 1;
  c.winner.ci_high_us /= 2;
  for (const auto& order : {std::vector{a, b, c}, {c, b, a}, {b, a, c}})
    for (const Store::Row& row : merged({{"x", order, {}}}, rule()).rows) EXPECT_EQ(row.environment.memory_bytes, 3);
}

// Faults: overlapping intervals, equal configs or a stale rival count as a conflict; a conflict that two stores report counts twice; a real one is lost.
TEST(Merge, ReportsConflictsOnce) {
  Store::Row fast = row_with(1, 2), slow = row_with(3, 4, "now", 2);
  Merged all = merged({{"z", {slow}, {}}, {"y", {slow}, {}}, {"a", {fast}, {}}}, rule());
  ASSERT_EQ(all.conflicts.size(), 1u);
  expect_same(all.conflicts[0].kept, fast);
  expect_same(all.conflicts[0].other, slow);
  EXPECT_EQ(all.conflicts[0].kept_from, "a");
  EXPECT_EQ(all.conflicts[0].other_from, "y") << "of several sources the smallest name, whatever the order";
  for (const Store::Row& harmless : {row_with(2, 4, "now", 2), row_with(3, 4), row_with(3, 4, "old", 2)})
    EXPECT_TRUE(merged({{"a", {fast}, {}}, {"b", {harmless}, {}}}, rule()).conflicts.empty());
}

// Fault: the reason that makes a block count for this build gives way to an old one, and a wrong kernel is a candidate again.
TEST(Merge, UnitesBlocklistsAndPrefersTheReasonOfThisBuild) {
  const KernelConfig a({{"VARIANT", 1}}), b({{"VARIANT", 2}});
  Merged all = merged({{"x", {}, {{"e", "s", a, "an older build: wrong"}, {"e", "s", b, "z"}}}, {"y", {}, {{"e", "s", a, "now wrong"}, {"e", "t", a, "w"}, {"e", "s", b, "y"}}}}, rule());
  ASSERT_EQ(all.blocks.size(), 3u);
  EXPECT_EQ(all.blocks[0].reason, "now wrong");
  EXPECT_EQ(all.blocks[1].reason, "y");
  EXPECT_EQ(all.blocks[2].spec_key, "t");
}

std::string fill(const std::string& dir, std::mt19937& random) {
  auto store = Store::open(dir);
  Environment small = sample_environment(), driver = sample_environment();
  small.memory_bytes = static_cast<int64_t>(1 + random() % 3) << 30;  // recorded, not keyed: the same device to every key
  driver.driver = "13.1";
  AttentionSpec lse;
  lse.lse = true;
  const std::array environments{sample_environment(), small, driver};
  for (int i = 0; i < 8; ++i) {
    Store::Row row = sample_row({static_cast<int>(random() % 2), 10}, random() % 2 ? lse : AttentionSpec{}, environments[random() % 3]);
    row.winner.ci_high_us = row.winner.median_us * (1 + 0.01 * static_cast<double>(random() % 3));  // many ties
    row.winner.samples = static_cast<int>(random() % 4);
    row.winner.policy_hash = random() % 3 ? "now" : "old";
    put(*store, row);
    store->block(row.winner.env_key, row.winner.spec_key, KernelConfig({{"VARIANT", static_cast<int>(random() % 3)}}), (random() % 2 ? "now " : "old ") + std::to_string(random() % 3));
  }
  return dir;
}

std::string everything(const std::string& dir) {
  auto store = Store::open(dir);
  std::vector<Store::Row> rows = store->all_winners();
  std::string text = export_csv(rows);
  for (const ExportedFile& file : export_json(rows)) text += file.name + "\n" + file.text;
  for (const Store::Row& row : rows)
    for (const auto& [config, reason] : store->blocked(row.winner.env_key, row.winner.spec_key)) text += row.winner.spec_key + config.canonical_json() + reason + "\n";
  return text;
}

void merge_into(const std::string& into, const std::vector<std::string>& from) {
  std::vector<MergeSource> sources;
  for (const std::string& dir : from) sources.push_back(read_source(dir).content);
  ASSERT_TRUE(Store::open(into)->merge(sources, rule()).has_value()) << into;
}

// Fault: the result depends on the order of the stores, on how they are grouped into steps, or on how often one takes part.
TEST(Merge, IsCommutativeAssociativeAndIdempotentDownToTheExportedBytes) {
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): the same cases each time
  for (int round = 0; round < 6; ++round) {
    TempDir dir;
    std::vector<std::string> stores;
    for (int i = 0; i < 5; ++i) stores.push_back(fill(dir / ("store-" + std::to_string(i)), random));
    merge_into(dir / "at-once", stores);
    const std::string expected = everything(dir / "at-once");
    EXPECT_GT(expected.size(), 5000u);
    for (int shuffle = 0; shuffle < 3; ++shuffle) {
      std::shuffle(stores.begin(), stores.end(), random);
      const std::string name = dir / ("shuffle-" + std::to_string(shuffle));
      const auto cut = static_cast<std::ptrdiff_t>(1 + random() % 4);
      merge_into(name + "-left", {stores.begin(), stores.begin() + cut});
      merge_into(name + "-right", {stores.begin() + cut, stores.end()});
      merge_into(name, {name + "-right", name + "-left", stores[random() % 5]});
      EXPECT_EQ(everything(name), expected) << round << " " << shuffle;
    }
    Merged again = Store::open(dir / "at-once")->merge({read_source(stores[0]).content, read_source(dir / "at-once").content}, rule()).value();
    EXPECT_EQ(again.added + again.replaced, 0);
    EXPECT_EQ(everything(dir / "at-once"), expected);
  }
}

std::string traces(const std::string& dir) {
  std::string text;
  for (const auto& entry : fs::directory_iterator(dir))
    text += entry.path().filename().string() + " " + std::to_string(fs::last_write_time(entry.path()).time_since_epoch().count()) + " " + std::to_string(fs::file_size(entry.path())) + "\n";
  return text;
}

std::string refused(const std::string& path) {
  try {
    read_source(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    return error.what();
  }
  return "";
}

// Faults: a source is repaired, renamed or locked, or gets files beside it; a path to its file is not understood.
TEST(Source, IsReadWithoutATrace) {
  TempDir dir;
  const std::string store = dir / "a ?#%store";  // characters with a meaning in a URI
  put(*Store::open(store), sample_row());
  Store::open(store)->block(sample_row().winner.env_key, sample_row().winner.spec_key, KernelConfig({{"VARIANT", 1}}), "r");
  const std::string before = traces(store);
  for (const std::string& path : {store, store + "/winners.db"}) {
    Source source = read_source(path);
    ASSERT_EQ(source.content.rows.size(), 1u);
    expect_same(source.content.rows[0], sample_row());
    EXPECT_EQ(source.content.blocks.size(), 1u);
    EXPECT_TRUE(source.problems.empty());
  }
  EXPECT_EQ(traces(store), before);
  SQLite::Database(store + "/winners.db", SQLite::OPEN_READWRITE).exec("PRAGMA journal_mode=wal");  // as newer SQLite has it
  const std::string wal = traces(store);
  EXPECT_EQ(read_source(store).content.rows.size(), 1u);
  EXPECT_EQ(traces(store), wal);
  write_file(store + "/winners.db", "SQLite format 3, or so it says");
  const std::string damaged = traces(store);
  EXPECT_NE(refused(store), "");
  EXPECT_EQ(traces(store), damaged) << "a damaged source was set aside";
}

// Fault: a file that is cut off, foreign, damaged, in the middle of a write, or that holds code of its own is taken for a store.
TEST(Source, IsRefusedWithASentence) {
  TempDir dir;
  const std::string path = dir / "winners.db";
  const auto fresh = [&] {
    for (const auto& entry : fs::directory_iterator(dir.path())) fs::remove(entry.path());
    put(*Store::open(dir.path()), sample_row());
  };
  const auto change = [&](const std::string& sql) {
    fresh();
    SQLite::Database(path, SQLite::OPEN_READWRITE).exec(sql);
  };
  EXPECT_NE(refused(dir / "none").find("No such file"), std::string::npos);
  fresh();
  fs::remove(path);
  EXPECT_NE(refused(dir.path()).find("it holds no winners.db"), std::string::npos);
  fresh();
  fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_NE(refused(path), "") << "cut off";
  fresh();
  fs::resize_file(path, kLargestSource + 1);
  EXPECT_NE(refused(path).find("are allowed"), std::string::npos);
  fresh();
  write_file(path + "-journal", "x");
  EXPECT_NE(refused(path).find("a write that is not finished"), std::string::npos);
  change("PRAGMA application_id=1");
  EXPECT_NE(refused(path).find("not a database of pagetune"), std::string::npos);
  change("PRAGMA user_version=1000");
  EXPECT_NE(refused(path).find("a newer pagetune"), std::string::npos);
  change("CREATE TRIGGER t AFTER INSERT ON winner BEGIN DELETE FROM winner; END");
  EXPECT_NE(refused(path).find("triggers"), std::string::npos);
  change("CREATE VIRTUAL TABLE v USING fts5(x)");
  EXPECT_NE(refused(path).find("virtual tables"), std::string::npos);
  change("DROP TABLE blocklist");
  EXPECT_NE(refused(path).find("its tables are not those"), std::string::npos);
  change("UPDATE spec SET json=printf('%.*c', 40000, ' ')");
  EXPECT_NE(refused(path).find("too big"), std::string::npos) << refused(path);
  fresh();
  std::string bytes = read_file(path);
  std::fill(bytes.begin() + 4096, bytes.begin() + 8192, '\x5a');
  write_file(path, bytes);
  EXPECT_NE(refused(path), "") << "a page of noise";
}

// Faults: a row that no reader would accept becomes a winner here; one bad row takes the good ones with it.
TEST(Source, LeavesOutRowsThatAreWrongAndSaysSo) {
  const auto read_with = [](const std::function<void(Winner&)>& spoil, const std::string& sql = "") {
    TempDir dir;
    put(*Store::open(dir.path()), sample_row());
    Store::Row bad = sample_row({2, 10});
    spoil(bad.winner);
    put(*Store::open(dir.path()), bad);
    if (!sql.empty()) SQLite::Database(dir / "winners.db", SQLite::OPEN_READWRITE).exec(sql);
    Source source = read_source(dir.path());
    EXPECT_EQ(source.content.rows.size(), 1u) << sql;
    EXPECT_EQ(source.problems.size(), 1u) << sql;
    EXPECT_EQ(source.damaged, !sql.empty());
  };
  read_with([](Winner& w) { w.config.set("NUM_WARPS", 77); });
  read_with([](Winner& w) { w.ci_low_us = 2 * w.ci_high_us; });
  read_with([](Winner& w) { w.median_us = w.ci_low_us = w.ci_high_us = 0; });
  read_with([](Winner& w) { w.reason = "\x1b[2J"; });
  read_with([](Winner& w) { w.session = "\xff"; });
  read_with([](Winner&) {}, "UPDATE winner SET median_us=1 WHERE batch=4");
}

// Faults: the store that takes rows in loses its better ones; a memory size or a block that is new does not reach the disk.
TEST(Merge, TheStoreThatTakesRowsInIsOneMoreSource) {
  TempDir dir;
  const KernelConfig a({{"VARIANT", 1}}), b({{"VARIANT", 2}});
  Store::Row own = sample_row({1, 4}), worse = own, other = sample_row({2, 4});
  own.environment.memory_bytes = 1;
  worse.winner.ci_high_us *= 2;
  worse.environment.memory_bytes = other.environment.memory_bytes = 3;
  put(*Store::open(dir.path()), own);
  Store::open(dir.path())->block(own.winner.env_key, own.winner.spec_key, a, "old");
  std::optional<Merged> first = Store::open(dir.path())->merge({{"s", {worse, other}, {{own.winner.env_key, own.winner.spec_key, b, "now"}, {own.winner.env_key, own.winner.spec_key, a, "now"}}}}, rule());
  EXPECT_EQ(std::pair(first->added, first->replaced), std::pair(1, 0));
  own.environment.memory_bytes = 3;
  expect_same(Store::open(dir.path())->all_winners(), {own, other});
  EXPECT_EQ(Store::open(dir.path())->blocked(own.winner.env_key, own.winner.spec_key), (std::vector<std::pair<KernelConfig, std::string>>{{a, "now"}, {b, "now"}}));
  own.winner.ci_high_us = own.winner.median_us;
  Merged second = Store::open(dir.path())->merge({{"s", {own}, {}}}, rule()).value();
  EXPECT_EQ(std::pair(second.added, second.replaced), std::pair(0, 1));
  expect_same(Store::open(dir.path())->all_winners(), {own, other});
  worse.environment.memory_bytes = own.environment.memory_bytes = other.environment.memory_bytes = 4;
  Store::open(dir.path())->merge({{"s", {worse}, {}}}, rule());
  expect_same(Store::open(dir.path())->all_winners(), {own, other});
}

// Fault: a store on a disk that cannot be written says that it took the winners in.
TEST(Merge, IntoAStoreThatCannotBeWrittenGivesNothing) {
  EXPECT_FALSE(Store::open(":memory:")->merge({{"a", {sample_row()}, {}}}, rule()).has_value());
}

}  // namespace
}  // namespace pagetune
