// Places where nothing, or not everything, can be stored: the store must answer from memory and say why.
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>

#include "../store_expect.hpp"
#include "../variable.hpp"
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

// Fault: a copy, a restored backup or another machine's clock, which give files other times, costs every kernel.
TEST(StorePlaces, TimesOfFilesDoNotMatter_B148) {
  TempDir dir;
  put(*Store::open(dir.path()), sample_row());
  Store::open(dir.path())->put_binary(sample_binary("x"));
  for (const int seconds : {67, -67, 1'000'000'000, -1'700'000'000}) {
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) std::filesystem::last_write_time(entry, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(seconds));
    auto store = Store::open(dir.path());
    EXPECT_EQ(store->all_winners().size(), 1u) << seconds;
    EXPECT_TRUE(store->find_binary(sample_binary("x").key)) << seconds;
    EXPECT_TRUE(store->problems().empty()) << seconds;
  }
}

// As another user, in a child; root's tests alone can.
std::string as_user(uid_t user, const std::function<std::string()>& work) {
  return in_child([&]() -> std::string {
    if (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) return std::string("cannot be another user: ") + std::strerror(errno);
    return work();
  });
}

// Fault: two users of one directory overwrite each other's results, run code that the other can change, or one of them gets an error.
TEST(StorePlaces, TwoUsersOfOneDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "THIS TEST DID NOT RUN: only root can be two other users";
  constexpr uid_t kFirst = 4001, kSecond = 4002;
  for (const mode_t mode : {0700, 0755, 0775, 0777, 01777, 02775}) {
    SCOPED_TRACE(::testing::Message() << std::oct << mode);
    TempDir dir;
    chmod(dir.path().c_str(), 0711);
    const std::string shared = dir / "shared";
    ASSERT_EQ(mkdir(shared.c_str(), 0700), 0);
    ASSERT_EQ(chown(shared.c_str(), kFirst, kFirst), 0);
    ASSERT_EQ(chmod(shared.c_str(), mode), 0);
    const bool is_firsts = (mode & 022) == 0;
    EXPECT_EQ(as_user(kFirst, [&] { return answers(shared, is_firsts ? 0 : 1); }), "");
    if (mode == 0755)  // as with a umask that lets others read
      for (const auto& entry : std::filesystem::directory_iterator(shared)) chmod(entry.path().c_str(), 0644);
    const std::string before = is_firsts ? read_file(shared + "/winners.db") : "";
    EXPECT_EQ(as_user(kSecond, [&]() -> std::string {
                auto store = Store::open(shared);
                if (!store->all_winners().empty()) return "the other's winners are believed";
                if (store->dir() != ":memory:") return "the other's directory is used";
                store.reset();
                return answers(shared, 1);
              }),
              "");
    EXPECT_EQ(std::filesystem::is_empty(shared), !is_firsts);
    if (!is_firsts) continue;
    EXPECT_EQ(read_file(shared + "/winners.db"), before);
    EXPECT_EQ(as_user(kFirst, [&]() -> std::string { return Store::open(shared)->all_winners().size() == 1 ? answers(shared, 0) : "the first user's winners are lost"; }), "");
  }
}

// Fault: a directory that root has filled for all is refused to those whom it is for, or they get an error where they cannot write.
TEST(StorePlaces, RootsDirectoryIsReadByAll) {
  if (geteuid() != 0) GTEST_SKIP() << "THIS TEST DID NOT RUN: only root can be root and another user";
  TempDir dir;
  const Store::Row stored = sample_row({5, 5});
  put(*Store::open(dir.path()), stored);
  Store::open(dir.path())->put_binary(sample_binary("stored"));
  chmod(dir.path().c_str(), 0755);
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) chmod(entry.path().c_str(), 0644);
  EXPECT_EQ(as_user(4001, [&]() -> std::string {
              auto store = Store::open(dir.path());
              if (store->winners(stored.winner.env_key, stored.winner.spec_key) != std::vector<Winner>{stored.winner}) return "root's winner is not read";
              if (!store->find_binary(sample_binary("stored").key)) return "root's binary is not read";
              if (store->problems().size() != 2) return "not one sentence per file";
              return wrong_answers(*store);
            }),
            "");
  EXPECT_EQ(Store::open(dir.path())->all_winners().size(), 1u);
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

// Fault: a home that cannot hold a cache is an error, or the cache goes somewhere that nobody asked for: to /tmp, or where the program was started.
TEST(StorePlaces, HomesThatCannotHoldACacheMeanMemory) {
  TempDir dir;
  std::string refused;
  std::string said = on_tmpfs(
      dir.path(), "mode=0700",
      [&]() -> std::string {
        for (const char* made : {"home", "started"}) mkdir((dir / made).c_str(), 0700);
        write_file(dir / "file", "x");
        if (mount("none", dir.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return std::string("REFUSED remount: ") + std::strerror(errno);
        unsetenv("PAGETUNE_CACHE_DIR");
        unsetenv("XDG_CACHE_HOME");
        if (chdir((dir / "started").c_str()) != 0) return "chdir failed";
        for (const auto& [home, problems] : {std::pair{dir / "home", 1u}, {dir / "absent", 1u}, {dir / "file", 1u}, {std::string("/proc/self"), 1u}, {std::string(), 0u}, {std::string("relative"), 0u}}) {
          setenv("HOME", home.c_str(), 1);
          if (std::string wrong = answers("", problems); !wrong.empty()) return "HOME=" + home + ": " + wrong;
          if (Store::open()->dir() != ":memory:") return "HOME=" + home + " is " + Store::open()->dir();
        }
        return "";
      },
      refused);
  SKIP_IF_REFUSED(refused);
  EXPECT_EQ(said, "");
}

// Fault: a full disk that ends the program, leaves a partial file, or damages what was stored.
TEST(StorePlaces, AFullDiskMeansMemory) {
  TempDir dir;
  // With the words of the reason. The last one has room for the file and none for its journal.
  for (const auto& [size, words] : {std::pair{"size=4k,mode=0700", "is full"}, {"size=20k,mode=0700", "is full"}, {"size=64k,mode=0700", "is full"}, {"nr_inodes=2,mode=0700", "No space left"}, {"nr_inodes=3,mode=0700", "unable to open"}}) {
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
          if (store->problems()[0].find(words) == std::string::npos) return "not the reason: " + store->problems()[0];
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
