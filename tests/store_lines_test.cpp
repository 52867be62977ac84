// Winners as lines, for network file systems: two WinnerLines of one directory stand for two processes.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "cache_db/directory.hpp"
#include "cache_db/garbage.hpp"
#include "cache_db/inspection.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/repair.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_table.hpp"
#include "store_expect.hpp"
#include "variable.hpp"

namespace pagetune {
namespace {

Store::Row slower(Store::Row row, double factor) {
  row.winner.median_us *= factor;
  row.winner.ci_low_us *= factor;
  row.winner.ci_high_us *= factor;
  return row;
}

std::vector<Store::Row> rows_of(WinnerFile&& lines) {
  std::vector<Store::Row> rows;
  for (auto& row : lines.rows({})) rows.push_back(std::move(row.value()));
  return rows;
}
std::vector<Store::Row> rows_of(WinnerFile& lines) { return rows_of(std::move(lines)); }

Store::Block block(const std::string& reason) { return {sample_environment().key(), spec_key(AttentionSpec{}), sample_row().winner.config, reason}; }

const MergeRule kAnyRule{[](const Store::Row&) { return true; }, [](const std::string&) { return true; }};

class StoreLines : public ::testing::Test {
 protected:
  std::string only_file() {
    const std::vector<std::string> files = line_files(dir_.path());
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? "" : files[0];
  }
  std::string file_named(int number) { return dir_ / ("winners-host-" + std::to_string(number) + "-0123456789abcdef.jsonl"); }
  void write_private(const std::string& path, const std::string& bytes) {
    write_file(path, bytes);
    chmod(path.c_str(), 0600);
  }

  TempDir dir_;
  Problems problems_;
};

// Faults: a field that is lost or rounded on its way through a line; a line that reads as another; an end of line within one.
TEST_F(StoreLines, ALineGivesBackWhatItWasMadeOf) {
  AttentionSpec other;
  other.lse = true;
  for (const WinnerLine& line : {WinnerLine{1'700'000'000'000'000, sample_row()}, WinnerLine{1, sample_row({0, 17}, other)}, WinnerLine{2, block("wrong at\nelement 7 \"µ\"")}}) {
    const std::string text = to_text(line);
    ASSERT_EQ(text.find('\n'), text.size() - 1);
    const std::optional<WinnerLine> read = winner_line(text.substr(0, text.size() - 1));
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(read->time, line.time);
    EXPECT_EQ(to_text(*read), text);
    if (const auto* row = std::get_if<Store::Row>(&line.content)) expect_same(std::get<Store::Row>(read->content), *row);
  }
}

// Faults: a process that does not see what others wrote, or that writes into another's file; a winner that another spec or environment gets.
TEST_F(StoreLines, ProcessesSeeEachOthersWinners) {
  WinnerLines a(dir_.path(), problems_), b(dir_.path(), problems_);
  AttentionSpec other;
  other.lse = true;
  EXPECT_TRUE(a.put({{sample_row({1, 10})}, {}}));
  EXPECT_TRUE(b.put({{sample_row({2, 10})}, {}}));
  EXPECT_TRUE(a.put({{sample_row({3, 10}, other)}, {}}));
  EXPECT_TRUE(a.put({{}, {block("crashed")}}));
  for (WinnerLines* one : {&a, &b}) {
    EXPECT_EQ(rows_of(*one).size(), 3u);
    EXPECT_EQ(one->count(), 3);
    EXPECT_EQ(one->rows({spec_key(other), ""}).size(), 1u);
    EXPECT_EQ(one->rows({"", std::string(64, '0')}).size(), 0u);
    ASSERT_EQ(one->blocks({}).size(), 1u);
    EXPECT_EQ(one->blocks({})[0]->reason, "crashed");
    const Choices choices = one->choices(sample_environment(), sample_row().winner.generator_hash, spec_key(other));
    ASSERT_EQ(choices.winners.size(), 1u);
    EXPECT_EQ(choices.winners.begin()->second.size(), 1u);
  }
  const std::vector<std::string> files = line_files(dir_.path());
  ASSERT_EQ(files.size(), 2u);
  for (const std::string& file : files) {
    struct stat info {};
    ASSERT_EQ(stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
  }
  EXPECT_TRUE(problems_.all().empty()) << ::testing::PrintToString(problems_.all());
}

// Fault: an older winner answers because its file comes later, because its writer's clock runs ahead, or because its time is the same.
TEST_F(StoreLines, TheNewestWinnerAnswers) {
  const int64_t ahead = 4'000'000'000'000'000;  // of a clock that is decades ahead
  write_private(file_named(9), to_text({ahead, slower(sample_row(), 3)}) + to_text({ahead, block("ahead")}));
  WinnerLines a(dir_.path(), problems_), b(dir_.path(), problems_);
  expect_same(rows_of(a), {slower(sample_row(), 3)});
  EXPECT_TRUE(a.put({{slower(sample_row(), 2)}, {block("then")}}));
  expect_same(rows_of(b), {slower(sample_row(), 2)});
  EXPECT_TRUE(b.put({{sample_row()}, {block("now")}}));
  for (WinnerLines* one : {&a, &b}) {
    expect_same(rows_of(*one), {sample_row()});
    EXPECT_EQ(one->blocks({})[0]->reason, "now");
  }
  // The order in which files are read decides nothing.
  NewestLines forwards, backwards;
  std::vector<std::string> files = line_files(dir_.path());
  for (const auto& file : files) forwards.read(file);
  std::reverse(files.begin(), files.end());
  for (const auto& file : files) backwards.read(file);
  expect_same(forwards.rows(), backwards.rows());
}

TEST_F(StoreLines, EqualTimesAreDecidedByTheFilesName) {
  write_private(file_named(1), to_text({5, sample_row()}));
  write_private(file_named(2), to_text({5, slower(sample_row(), 2)}));
  for (const auto& order : {std::vector{1, 2}, std::vector{2, 1}}) {
    NewestLines lines;
    for (const int number : order) lines.read(file_named(number));
    expect_same(lines.rows(), {slower(sample_row(), 2)});
  }
}

// Faults: half a line, of a write that goes on or whose writer was killed, that is taken in, that loses what stands before it or what comes later, or that is said to be damage.
TEST_F(StoreLines, AFileMayEndAnywhere) {
  std::string text;
  std::vector<size_t> ends;
  for (int i = 0; i < 3; ++i) {
    text += to_text({10 + i, sample_row({i, 10})});
    ends.push_back(text.size());
  }
  for (size_t size = 0; size < text.size(); size += 41) {
    SCOPED_TRACE(size);
    write_private(file_named(1), text.substr(0, size));
    WinnerLines lines(dir_.path(), problems_);
    const auto whole = std::count_if(ends.begin(), ends.end(), [&](size_t end) { return end <= size; });
    EXPECT_EQ(lines.count(), whole);
    std::ofstream(file_named(1), std::ios::binary | std::ios::app) << text.substr(size);
    EXPECT_EQ(lines.count(), 3);
    std::filesystem::remove(file_named(1));
  }
  EXPECT_TRUE(problems_.all().empty()) << ::testing::PrintToString(problems_.all());
}

// Fault: a changed byte that is served, that ends the reading of what is right, or that is not said, or again and again.
TEST_F(StoreLines, AChangedByteCostsItsLineAndIsSaidOnce) {
  std::vector<Store::Row> rows;
  std::string text;
  for (int i = 0; i < 3; ++i) {
    rows.push_back(sample_row({i, 10}));
    text += to_text({10 + i, rows.back()});
  }
  for (size_t at = 0; at + 1 < text.size(); at += 17) {
    SCOPED_TRACE(at);
    std::string bytes = text;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    write_private(file_named(1), bytes);
    Problems problems;
    WinnerLines lines(dir_.path(), problems);
    const std::vector<Store::Row> read = rows_of(lines);
    EXPECT_GE(read.size(), text[at] == '\n' ? 1u : 2u);
    EXPECT_LT(read.size(), 3u);
    for (const Store::Row& row : read) expect_same(row, rows[static_cast<size_t>(row.winner.bucket.batch_log2)]);
    lines.count();
    ASSERT_EQ(problems.all().size(), 1u);
    EXPECT_NE(problems.all()[0].find(file_named(1)), std::string::npos);
  }
}

// Lines whose sum is right and that are none: what another version or a forger would write.
TEST_F(StoreLines, WhatNoPagetuneWritesIsRefused) {
  const std::string good = to_text({7, sample_row()}), of_block = to_text({7, block("x")});
  ASSERT_TRUE(winner_line(good.substr(0, good.size() - 1)));
  const auto changed = [](const std::string& line, const std::string& from, const std::string& to) {
    std::string text = line.substr(0, line.rfind(",\"sha256\":"));
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return text + ",\"sha256\":\"" + sha256_hex(text) + "\"}";
  };
  EXPECT_TRUE(winner_line(changed(good, "\"samples\":37", "\"samples\":38")));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\"format\":1", "\"format\":2"}, {"\"format\":1", "\"format\":\"1\""}, {"\"kind\":\"winner\"", "\"kind\":\"loser\""}, {"\"time\":7", "\"time\":0"},
                                                                                  {"\"time\":7", "\"time\":-7"}, {"\"time\":7", "\"time\":7.5"}, {"\"time\":7", "\"time\":18446744073709551615"}, {"\"time\":7", "\"time\":9007199254740993"},
                                                                                  {"\"samples\":37", "\"samples\":-1"}, {"\"bucket\":\"8x4096\"", "\"bucket\":\"7x4096\""}, {"\"tied\":3", "\"tied\":3,\"more\":1"},
                                                                                  {"\"format\":1", "\"format\":1,\"format\":1"}, {"\"time\":7", "\"time\":7,\"more\":1"}, {"\"processors\":132", "\"processors\":[]"}})
    EXPECT_FALSE(winner_line(changed(good, from, to))) << from << " -> " << to;
  EXPECT_FALSE(winner_line(changed(of_block, "\"config\":{", "\"config\":{\"A\":{},")));
  EXPECT_FALSE(winner_line(changed(of_block, "\"reason\":\"x\"", "\"reason\":1")));
  EXPECT_FALSE(winner_line(""));
  EXPECT_FALSE(winner_line("{}"));
  EXPECT_FALSE(winner_line(std::string(100'000, '[')));
}

// Faults: winners from before the lines that are lost; that win over lines; that stay when the database has others.
TEST_F(StoreLines, ADatabaseFromBeforeIsTheOldest) {
  {
    WinnerTable before(dir_.path(), problems_);
    before.put(slower(sample_row({1, 10}), 2));
    before.put(sample_row({2, 10}));
    before.block(sample_environment().key(), spec_key(AttentionSpec{}), sample_row().winner.config, "before");
  }
  WinnerLines lines(dir_.path(), problems_);
  expect_same(rows_of(lines), {slower(sample_row({1, 10}), 2), sample_row({2, 10})});
  EXPECT_EQ(lines.blocks({}).size(), 1u);
  EXPECT_TRUE(lines.put({{sample_row({1, 10})}, {}}));
  expect_same(rows_of(lines), {sample_row({1, 10}), sample_row({2, 10})});
  {
    Problems ignored;
    WinnerTable again(dir_.path(), ignored);  // a process to which the directory is a local one
    again.put(slower(sample_row({2, 10}), 3));
    again.put(slower(sample_row({1, 10}), 3));
    ASSERT_EQ(ignored.all().size(), 1u);
    EXPECT_NE(ignored.all()[0].find("pagetune merge " + dir_.path()), std::string::npos) << ignored.all()[0];
  }
  expect_same(rows_of(lines), {sample_row({1, 10}), slower(sample_row({2, 10}), 3)});
  EXPECT_TRUE(problems_.all().empty()) << ::testing::PrintToString(problems_.all());
}

// Fault: a store without winners yet that a merge takes for none at all; a file for every process that only reads.
TEST_F(StoreLines, AnEmptyStoreIsOne) {
  for (int process = 0; process < 3; ++process) EXPECT_TRUE(WinnerLines(dir_.path(), problems_).usable());
  only_file();
  EXPECT_TRUE(read_source(dir_.path()).content.rows.empty());
}

// Faults: winners or blocks that gc takes out of lines, says it would, or takes out of the database that they continue.
TEST_F(StoreLines, GarbageCollectionLeavesThemAndTakesOldDrafts) {
  WinnerTable(dir_.path(), problems_).block(sample_environment().key(), spec_key(AttentionSpec{}), sample_row().winner.config, "another build's");
  const Variable variable("PAGETUNE_WINNERS", "lines");
  WinnerTable(dir_.path(), problems_).block(sample_environment().key(), spec_key(AttentionSpec{}), sample_row().winner.runner_up, "another build's");
  for (const char* age : {"old", "new"}) {
    const std::string draft = file_named(age == std::string("old") ? 1 : 2) + ".new";
    write_private(draft, "half a li");
    if (age == std::string("old")) std::filesystem::last_write_time(draft, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * (kKeptDays + 2)));
  }
  for (const bool remove : {false, true}) {
    const Garbage garbage = collect_garbage(dir_.path(), {}, remove, problems_);
    EXPECT_TRUE(garbage.blocks.empty());
    ASSERT_EQ(garbage.files.size(), 1u);
    EXPECT_EQ(garbage.files[0].path, file_named(1) + ".new");
  }
  EXPECT_FALSE(std::filesystem::exists(file_named(1) + ".new"));
  EXPECT_TRUE(std::filesystem::exists(file_named(2) + ".new"));
  EXPECT_EQ(WinnerLines(dir_.path(), problems_).blocks({}).size(), 2u);
}

// Fault: winners written into a file that somebody has removed or replaced.
TEST_F(StoreLines, ARemovedFileIsMadeAnew) {
  WinnerLines lines(dir_.path(), problems_);
  EXPECT_TRUE(lines.put({{sample_row({1, 10})}, {}}));
  std::filesystem::remove(only_file());
  EXPECT_TRUE(lines.put({{sample_row({2, 10})}, {}}));
  expect_same(rows_of(WinnerLines(dir_.path(), problems_)), {sample_row({2, 10})});
  // Or written anew under its name, as a repair does.
  ASSERT_EQ(repair_lines(only_file()), "");
  EXPECT_TRUE(lines.put({{sample_row({3, 10})}, {}}));
  expect_same(rows_of(WinnerLines(dir_.path(), problems_)), {sample_row({2, 10}), sample_row({3, 10})});
}

// Fault: a child that appends to its parent's file, whose writes the parent cannot tell from its own.
TEST_F(StoreLines, AChildWritesAFileOfItsOwn) {
  WinnerLines lines(dir_.path(), problems_);
  EXPECT_TRUE(lines.put({{sample_row({1, 10})}, {}}));
  const pid_t child = fork();
  if (child == 0) _exit(lines.put({{sample_row({2, 10})}, {}}) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(lines.put({{sample_row({3, 10})}, {}}));
  EXPECT_EQ(line_files(dir_.path()).size(), 2u);
  EXPECT_EQ(lines.count(), 3);
}

// Faults: a link or a file that others can write is read, or its refusal is not said; a pipe stops the reader.
TEST_F(StoreLines, FilesThatAreNotTheStoresAreSaidAndNotRead) {
  const std::string elsewhere = dir_ / "elsewhere";
  write_private(elsewhere, to_text({7, sample_row()}));
  std::filesystem::create_symlink(elsewhere, file_named(1));
  write_private(file_named(2), to_text({7, sample_row()}));
  chmod(file_named(2).c_str(), 0666);
  ASSERT_EQ(mkfifo(file_named(3).c_str(), 0600), 0);
  WinnerLines lines(dir_.path(), problems_);
  EXPECT_EQ(lines.count(), 0);
  EXPECT_EQ(problems_.all().size(), 3u) << ::testing::PrintToString(problems_.all());
  EXPECT_EQ(NewestLines().read(file_named(3)).refusal, "it is not a regular file");
}

// Faults: the variable that is not obeyed; a wrong word that is taken for one of them, or not said.
TEST_F(StoreLines, TheVariableDecides) {
  const auto kept_in = [&](const char* wish) {
    TempDir dir;
    const Variable variable("PAGETUNE_WINNERS", wish);
    WinnerTable(dir.path(), problems_).put(sample_row());
    return std::pair(std::filesystem::exists(dir / "winners.db"), line_files(dir.path()).size());
  };
  EXPECT_EQ(kept_in("lines"), std::pair(false, size_t{1}));
  EXPECT_EQ(kept_in("database"), std::pair(true, size_t{0}));
  EXPECT_TRUE(problems_.all().empty());
  kept_in("liens");
  ASSERT_EQ(problems_.all().size(), 1u);
  EXPECT_NE(problems_.all()[0].find("'liens'"), std::string::npos) << problems_.all()[0];
}

// Faults: a store on lines that answers otherwise than one on a database; a merge that is not idempotent, or that writes what is there.
TEST_F(StoreLines, AStoreOnLinesAnswersAsOneOnADatabase) {
  TempDir twin;
  std::vector<std::shared_ptr<Store>> stores;
  {
    const Variable variable("PAGETUNE_WINNERS", "lines");
    stores.push_back(Store::open(dir_.path()));
  }
  stores.push_back(Store::open(twin.path()));
  const std::vector<MergeSource> others{{"other", {sample_row({1, 10}), sample_row({2, 11}), slower(sample_row({3, 12}), 0.5)}, {block("b")}}};
  std::vector<Merged> merged;
  for (const auto& store : stores) {
    put(*store, sample_row({3, 12}));
    put(*store, slower(sample_row({2, 11}), 0.9));
    store->block(sample_environment().key(), spec_key(AttentionSpec{}), sample_row().winner.config, "c");
    merged.push_back(store->merge(others, kAnyRule).value());
    EXPECT_TRUE(store->problems().empty());
  }
  EXPECT_EQ(merged[0].added, merged[1].added);
  EXPECT_EQ(merged[0].replaced, merged[1].replaced);
  expect_same(stores[0]->all_winners(), stores[1]->all_winners());
  const auto key = sample_row().winner;
  EXPECT_EQ(stores[0]->winners(key.env_key, key.spec_key), stores[1]->winners(key.env_key, key.spec_key));
  EXPECT_EQ(stores[0]->blocked(key.env_key, key.spec_key), stores[1]->blocked(key.env_key, key.spec_key));
  EXPECT_EQ(stores[0]->usage().winners, stores[1]->usage().winners);
  EXPECT_EQ(stores[0]->layered_winners(sample_environment()).size(), stores[1]->layered_winners(sample_environment()).size());
  const std::vector<std::string> files = line_files(dir_.path());
  EXPECT_EQ(files.size(), 2u) << "what a merge brings is one file, so that it is there as a whole or not at all";
  const auto bytes = [&] { return read_file(files[0]) + read_file(files[1]); };
  const std::string before = bytes();
  EXPECT_EQ(stores[0]->merge(others, kAnyRule).value().added, 0);
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), std::filesystem::directory_iterator()), 3) << "the two and kernels.db";
  // What the lines hold, merged into a store on a local disk: the way back.
  TempDir local;
  const auto taken = Store::open(local.path());
  ASSERT_TRUE(taken->merge({read_source(dir_.path()).content}, kAnyRule));
  expect_same(taken->all_winners(), stores[0]->all_winners());
}

// Faults: damage that is merged in silence; rows beyond the newest; a file that is no source taken for one.
TEST_F(StoreLines, LinesAreASourceAsADatabaseIs) {
  const std::string three = to_text({5, slower(sample_row({1, 10}), 2)}) + to_text({6, sample_row({1, 10})}) + to_text({7, block("b")});
  write_private(file_named(1), three);
  Source source = read_source(dir_.path());
  expect_same(source.content.rows, {sample_row({1, 10})});
  EXPECT_EQ(source.content.blocks.size(), 1u);
  EXPECT_FALSE(source.damaged);
  EXPECT_TRUE(source.problems.empty());
  EXPECT_TRUE(read_source(dir_.path(), std::string(64, '0')).content.rows.empty());

  write_private(file_named(2), "{\"kind\":\"winner\"}\n" + to_text({8, sample_row({2, 10})}));
  source = read_source(dir_.path());
  EXPECT_EQ(source.content.rows.size(), 2u);
  EXPECT_TRUE(source.damaged);
  ASSERT_EQ(source.problems.size(), 1u);
  EXPECT_NE(source.problems[0].find("1 of the 2 lines of " + std::filesystem::canonical(file_named(2)).string()), std::string::npos) << source.problems[0];
  EXPECT_EQ(read_source(file_named(2)).content.rows.size(), 1u);

  Store::Row foreign = sample_row({4, 10});
  foreign.winner.config.set("NUM_STAGES", 77);
  write_private(file_named(1), to_text({9, foreign}));
  source = read_source(file_named(1));
  EXPECT_TRUE(source.content.rows.empty());
  EXPECT_EQ(source.problems.size(), 1u);
}

// Faults: lines that `verify`, `stats` and `doctor` do not see, or count where they are not served; a repair that takes right lines along.
TEST_F(StoreLines, AreInspectedAndRepaired) {
  const std::string right = to_text({5, sample_row({1, 10})}), also = to_text({6, sample_row({2, 10})});
  write_private(file_named(1), right + "damaged\n" + also);
  {
    const StoreReport report = inspect_store(dir_.path());
    ASSERT_EQ(report.lines.size(), 1u);
    EXPECT_TRUE(report.rows.empty());
    EXPECT_NE(report.lines[0].why.find("pagetune merge " + file_named(1)), std::string::npos) << report.lines[0].why;
  }
  const Variable variable("PAGETUNE_WINNERS", "lines");
  const StoreReport report = inspect_store(dir_.path());
  ASSERT_EQ(report.lines.size(), 1u);
  EXPECT_EQ(report.lines[0].state, FileState::sound);
  EXPECT_EQ(report.lines[0].why, "");
  ASSERT_EQ(report.lines[0].wrong.size(), 1u);
  EXPECT_EQ(report.lines[0].wrong[0].row, "2");
  expect_same(report.rows, {sample_row({1, 10}), sample_row({2, 10})});
  const std::vector<FileRepair> repairs = repair_store(dir_.path(), report, problems_);
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_TRUE(repairs[0].done);
  EXPECT_EQ(read_file(file_named(1)), right + also);
  EXPECT_TRUE(inspect_store(dir_.path()).lines[0].wrong.empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), std::filesystem::directory_iterator()), 1);
}

}  // namespace
}  // namespace pagetune
