// Places where nothing, or not everything, can be stored: the store must answer from memory and say why.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>

#include "../store_expect.hpp"
#include "answers.hpp"
#include "processes.hpp"

namespace pagetune {
namespace {

// "" if the store gives right answers from `dir` and says that many problems; else what it does not do.
std::string answers(const std::string& dir, size_t problems) {
  auto store = Store::open(dir);
  if (std::string wrong = wrong_answers(*store); !wrong.empty()) return wrong;
  if (store->problems().size() == problems) return "";
  std::string said = std::to_string(store->problems().size()) + " problems:";
  for (const auto& problem : store->problems()) said += " [" + problem + "]";
  return said;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Fault: another order of the variables than documented; a relative XDG path taken; /tmp used when nothing is set.
TEST(StorePlaces, DefaultDirectoryFollowsTheVariables) {
  Variable cache("PAGETUNE_CACHE_DIR", "/a"), xdg("XDG_CACHE_HOME", "/b"), home("HOME", "/c");
  EXPECT_EQ(Store::default_dir(), "/a");
  unsetenv("PAGETUNE_CACHE_DIR");
  EXPECT_EQ(Store::default_dir(), "/b/pagetune");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(Store::default_dir(), "/c/.cache/pagetune");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(Store::default_dir(), ":memory:");
  EXPECT_EQ(answers("", 0), "");
  EXPECT_EQ(Store::open()->dir(), ":memory:");
}

// Fault: a choice to keep nothing that is reported as a fault, or creates files.
TEST(StorePlaces, MemoryAndDevNullKeepNothing) {
  for (const char* place : {":memory:", "/dev/null"}) {
    EXPECT_EQ(answers(place, 0), "") << place;
    EXPECT_EQ(Store::open(place)->dir(), ":memory:");
    EXPECT_TRUE(Store::open(place)->all_winners().empty());
  }
  EXPECT_FALSE(std::filesystem::exists(":memory:"));
}

// Fault: an exception, or no word, where the directory cannot be made or must not be trusted.
TEST(StorePlaces, UnusableDirectoriesMeanMemory) {
  TempDir dir;
  write_file(dir / "file", "x");
  mkdir((dir / "open").c_str(), 0700);
  chmod((dir / "open").c_str(), 0770);
  mkdir((dir / "sticky").c_str(), 0700);
  chmod((dir / "sticky").c_str(), 01777);  // like /tmp
  for (const std::string& place : {dir / "file", dir / "file/cache", dir / "open", dir / "sticky", std::string("/proc/nothing/cache"), dir / std::string(300, 'n')}) {
    EXPECT_EQ(answers(place, 1), "") << place;
    auto store = Store::open(place);
    EXPECT_EQ(store->dir(), ":memory:");
    EXPECT_NE(store->problems()[0].find("PAGETUNE_CACHE_DIR"), std::string::npos) << "no remedy: " << store->problems()[0];
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir / "open"));
}

// Fault: opening a planted link, a FIFO (hangs), or a file that others can write.
TEST(StorePlaces, UntrustedFilesAreNotOpened) {
  for (const char* kind : {"link", "fifo", "writable", "directory"}) {
    TempDir dir;
    std::string path = dir / "winners.db";
    put(*Store::open(dir / "elsewhere"), sample_row());
    if (kind == std::string("link")) std::filesystem::create_symlink(dir / "elsewhere/winners.db", path);
    if (kind == std::string("fifo")) {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    }
    if (kind == std::string("directory")) std::filesystem::create_directory(path);
    if (kind == std::string("writable")) {
      std::filesystem::copy(dir / "elsewhere/winners.db", path);
      chmod(path.c_str(), 0666);
    }
    {
      auto store = Store::open(dir.path());
      EXPECT_TRUE(store->all_winners().empty()) << kind;
    }
    EXPECT_EQ(answers(dir.path(), 1), "") << kind;
  }
}

// A mount of our own, in a child with its own mount namespace; `why_not` is set where this machine refuses it.
std::string on_tmpfs(const std::string& where, const char* options, const std::function<std::string()>& work, std::string& why_not) {
  std::string said = in_child([&]() -> std::string {
    int flags = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
    if (unshare(flags) != 0) return std::string("REFUSED unshare: ") + std::strerror(errno);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return std::string("REFUSED private mounts: ") + std::strerror(errno);
    if (mount("none", where.c_str(), "tmpfs", 0, options) != 0) return std::string("REFUSED tmpfs: ") + std::strerror(errno);
    chmod(where.c_str(), 0700);
    return work();
  });
  if (said.starts_with("REFUSED")) why_not = said;
  return said;
}

#define SKIP_IF_REFUSED(why) \
  if (!why.empty()) GTEST_SKIP() << "THIS TEST DID NOT RUN: mounting a tmpfs is refused here (" << why << "); run it as root or with user namespaces"

// Fault: an error, or lost answers, on a read-only image; what is stored there must still be read.
TEST(StorePlaces, AReadOnlyStoreIsReadAndNewResultsStayInMemory) {
  TempDir dir;
  std::string refused;
  std::string said = on_tmpfs(
      dir.path(), "mode=0700",
      [&]() -> std::string {
        Store::Row stored = sample_row({5, 5});
        put(*Store::open(dir / "full"), stored);
        Store::open(dir / "full")->put_binary(sample_binary("stored"));
        if (mount("none", dir.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return std::string("REFUSED remount: ") + std::strerror(errno);
        auto store = Store::open(dir / "full");
        if (store->winners(stored.winner.env_key, stored.winner.spec_key) != std::vector<Winner>{stored.winner}) return "a stored winner is not read";
        if (!store->find_binary(sample_binary("stored").key)) return "a stored binary is not read";
        if (store->dir() != dir / "full") return "dir() is " + store->dir();
        put(*store, sample_row({6, 6}));
        if (store->all_winners().size() != 2) return "memory and file are not read together";
        if (store->usage().winners != 2) return "usage() counts wrongly";
        if (store->problems().size() != 2) return "not one sentence per file";
        return answers(dir / "absent", 1);
      },
      refused);
  SKIP_IF_REFUSED(refused);
  EXPECT_EQ(said, "");
}

// Fault: a full disk that ends the program, leaves a partial file, or damages what was stored.
TEST(StorePlaces, AFullDiskMeansMemory) {
  TempDir dir;
  for (const char* size : {"size=4k,mode=0700", "size=20k,mode=0700", "size=64k,mode=0700", "nr_inodes=2,mode=0700", "nr_inodes=3,mode=0700"}) {
    std::string refused;
    std::string said = on_tmpfs(
        dir.path(), size,
        [&]() -> std::string {
          auto store = Store::open(dir / "cache");
          put(*store, sample_row());
          if (store->all_winners().size() != 1) return "a winner is lost";
          Binary big = sample_binary("big", 300'000);
          if (store->get_or_compile(big.key, [&] { return big; }).data != big.data) return "wrong code";
          if (!store->find_binary(big.key)) return "the binary is lost";
          if (store->problems().empty()) return "not a word";
          size_t before = store->problems().size();
          put(*store, sample_row({1, 4}));
          if (store->all_winners().size() != 2) return "a second winner is lost";
          store->problems();
          if (store->problems().size() > before + 1) return "said more than once per file";
          store.reset();
          for (const char* name : {"winners.db", "kernels.db"}) {
            std::error_code absent;
            auto bytes = std::filesystem::file_size(dir / "cache/" + name, absent);
            if (!absent && bytes == 0) return std::string("an empty ") + name + " is left";
          }
          return "";
        },
        refused);
    SKIP_IF_REFUSED(refused);
    EXPECT_EQ(said, "") << size;
  }
}

// Fault: what was stored before the disk filled is damaged by the write that failed.
TEST(StorePlaces, ADiskThatFillsUpKeepsWhatItHas) {
  TempDir dir;
  std::string refused;
  std::string said = on_tmpfs(
      dir.path(), "size=1m,mode=0700",
      [&]() -> std::string {
        auto store = Store::open(dir / "cache");
        for (int i = 0; i < 20; ++i) {
          store->put_binary(sample_binary(std::to_string(i), 100'000));
          put(*store, sample_row({0, 4 + i % 18}));
        }
        if (store->problems().empty()) return "1 MiB holds 2 MB";
        for (int i = 0; i < 20; ++i) {
          if (!store->find_binary(sample_binary(std::to_string(i), 100'000).key)) return "binary " + std::to_string(i) + " is lost in this process";
        }
        if (store->all_winners().size() != 18) return "winners are lost in this process";
        store.reset();
        store = Store::open(dir / "cache");
        if (!store->find_binary(sample_binary("0", 100'000).key)) return "the first binary is lost";
        if (store->counters().corrupt != 0) return "the failed write damaged a binary";
        return store->all_winners().empty() ? "all winners are lost" : "";
      },
      refused);
  SKIP_IF_REFUSED(refused);
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace pagetune
