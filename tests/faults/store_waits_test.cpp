// Processes that others wait for: stopped in the middle, busy for long, and locks that never come.
#include <SQLiteCpp/SQLiteCpp.h>
#include <signal.h>

#include <cerrno>

#include "../store_expect.hpp"
#include "answers.hpp"
#include "calls.hpp"

namespace pagetune {
namespace {

// Compiles one kernel; its binary has the process's id in it.
std::vector<std::string> compile(const TempDir& dir, const std::string& cache) { return {STORE_HELPER, "compile", cache, dir / "log", "1", "0"}; }

// A process that is stopped at its nth write to the store.
class Stopped {
 public:
  Stopped(const TempDir& dir, const std::string& cache, int nth) {
    Herd herd;
    pid_ = herd.start(with_failure({"write", -SIGSTOP}, nth, cache, dir / "mark", compile(dir, cache)), dir / "first");
    herd.go();
    EXPECT_EQ(waitpid(pid_, &status_, WUNTRACED), pid_);
  }
  bool stopped() const { return WIFSTOPPED(status_); }
  // Its status at the end, which it is let go on to.
  int end() {
    if (!stopped()) return status_;
    kill(pid_, SIGCONT);
    return wait_for(pid_);
  }
  void end_here() {
    kill(pid_, SIGKILL);
    wait_for(pid_);
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
};

// Fault: what a process has written half is read, or is taken for damage, or its kernel is compiled a second time.
TEST(StoreWaits, ForAWriterThatIsStoppedAtAnyWrite_B139) {
  int stops = 0;
  for (int nth = 1;; ++nth, ++stops) {
    SCOPED_TRACE(nth);
    const TempDir dir;
    const std::string cache = real_path(dir / "cache");
    Stopped writer(dir, cache, nth);
    if (!writer.stopped()) {
      EXPECT_EQ(writer.end(), 0);
      break;
    }
    Herd herd;
    const pid_t reader = herd.start(compile(dir, cache), dir / "second");
    herd.go();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(writer.end(), 0);
    EXPECT_EQ(wait_for(reader), 0);
    EXPECT_EQ(lines_of(dir / "log").size(), 1u) << "compiled twice";
    EXPECT_EQ(lines_of(dir / "first").size(), 1u);
    EXPECT_EQ(read_file(dir / "second"), read_file(dir / "first"));
    EXPECT_TRUE(Store::open(cache)->problems().empty());
  }
  EXPECT_GT(stops, 20);
}

// Fault: a process that is stopped for good, as in a debugger, holds up everybody else for good, or is read half. While it writes the journal others can read; while it writes the pages they
// cannot.
TEST(StoreWaits, NotForEverForAWriterThatStaysStopped_B139_B142) {
  struct Case {
    int writes_after_compile;
    TempDir dir;
    std::string cache = real_path(dir / "cache");
    std::unique_ptr<Stopped> writer;
    pid_t reader = 0;
  } cases[2] = {{4}, {24}};
  for (Case& one : cases) {
    for (int nth = 1, after = 0; after < one.writes_after_compile; ++nth) {
      if (one.writer) one.writer->end_here();
      for (const char* left : {"log", "first", "cache"}) std::filesystem::remove_all(one.dir / left);
      one.writer = std::make_unique<Stopped>(one.dir, one.cache, nth);
      ASSERT_TRUE(one.writer->stopped()) << "fewer writes than that";
      after += lines_of(one.dir / "log").empty() ? 0 : 1;
    }
    Herd herd;
    one.reader = herd.start(compile(one.dir, one.cache), one.dir / "second");
    herd.go();
  }
  for (Case& one : cases) {
    SCOPED_TRACE(one.writes_after_compile);
    const int status = wait_for(one.reader);  // of somebody who waits for ever, CTest's limit
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status << ": that it could not be stored has to be said";
    ASSERT_EQ(lines_of(one.dir / "second").size(), 1u);
    EXPECT_EQ(one.writer->end(), 0);
    EXPECT_NE(read_file(one.dir / "second"), read_file(one.dir / "first")) << "what was not there yet was read";
    auto store = Store::open(one.cache);
    EXPECT_EQ("kernel0 " + store->find_binary(sha256_hex("kernel0")).value_or(Binary()).sha256, lines_of(one.dir / "first").at(0));
    EXPECT_TRUE(store->problems().empty());
  }
}

// Fault: who meets a file that is locked for longer than one time-out, at its first look or later, does without it from then on.
TEST(StoreWaits, ForAWriterThatIsBusyForElevenSeconds_B152) {
  TempDir dir;
  const auto early = Store::open(dir.path());
  put(*early, sample_row({0, 4}));
  SQLite::Database busy(dir / "winners.db", SQLite::OPEN_READWRITE);
  busy.exec("BEGIN EXCLUSIVE");
  Herd herd;
  const pid_t late = herd.start({STORE_HELPER, "write", dir.path(), "1", "5"});
  herd.go();
  std::thread writer([&] { put(*early, sample_row({1, 4})); });
  std::this_thread::sleep_for(std::chrono::seconds(11));
  busy.exec("COMMIT");
  writer.join();
  EXPECT_EQ(wait_for(late), 0);
  EXPECT_EQ(early->all_winners().size(), 7u);
  EXPECT_TRUE(early->problems().empty()) << early->problems()[0];
}

// Fault: where a file system gives no locks each call waits for one, the answers are wrong, or nobody is told.
TEST(StoreWaits, NotAtAllWhereThereAreNoLocks_B152) {
  for (const int code : {ENOLCK, EOPNOTSUPP}) {
    SCOPED_TRACE(strerrorname_np(code));
    TempDir dir;
    const std::string cache = real_path(dir / "cache");
    const auto begin = std::chrono::steady_clock::now();
    Herd herd;
    const pid_t pid = herd.start(with_failure({"lock", code, true}, 1, cache, dir / "mark", {STORE_HELPER, "answers", cache}), dir / "said");
    herd.go();
    EXPECT_EQ(wait_for(pid), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8)) << "it waited for a lock that cannot come";
    const std::vector<std::string> said = lines_of(dir / "said");
    EXPECT_GE(said.size(), 1u);
    EXPECT_LE(said.size(), 3u) << "more than a sentence for each file: " << ::testing::PrintToString(said);
    EXPECT_EQ(wrong_answers(*Store::open(cache)), "");
    EXPECT_TRUE(Store::open(cache)->problems().empty()) << "something that cannot be used was left";
  }
}

}  // namespace
}  // namespace pagetune
