// One SQLite file of the store: opened, checked, repaired by starting anew, and taken out of use with a sentence. Nothing here throws
// for the state of the disk.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache_db/fork_safe_mutex.hpp"
#include "cache_db/problems.hpp"

namespace pagetune {

struct Schema {
  // A version that is taken over. What it held is read, and written into the tables of this version.
  struct Upgrade {
    int from = 0;  // user_version; 0: none
    std::vector<std::pair<std::string, std::string>> columns;
    struct Content {
      std::function<void(SQLite::Database&)> write;
      std::string left_behind;  // what of it is not written, for people; empty if all is
    };
    std::function<Content(SQLite::Database& old)> read;
  };

  int user_version = 0;
  std::string sql;                                           // creates all tables of an empty file
  std::vector<std::pair<std::string, std::string>> columns;  // table -> columns that it must have, comma-separated
  bool check_on_open = false;                                // PRAGMA quick_check: its cost grows with the file
  Upgrade upgrade;
  std::string if_lost = "new results are kept in memory only";  // said where the file cannot be written
};

// The age of rows is counted in days, by UTC.
int64_t days_since_1970();

// "PTUN": header field application_id, so that `file` and other programs can tell whose database this is.
constexpr int kApplicationId = 0x5054554e;

// A race between a checkpoint and a write of two connections can lose commits of a WAL database in SQLite 3.7.0 to 3.51.2; the
// releases 3.44.6 and 3.50.7 of older lines have the repair. version: sqlite3_libversion_number().
bool wal_is_safe(int version);
// The mode that follows for the SQLite of this process: "wal" or "delete".
const char* wanted_journal();

// Nothing was ever written into it: SQLite takes a file of no bytes for one too.
bool is_empty(SQLite::Database&);

// Why a file does not hold this schema's tables and nothing but tables; empty if it does. Throws SQLite::Exception for damage.
std::string refusal(SQLite::Database&, const Schema&);

// Why a file holds neither this schema's tables nor those that it upgrades; empty if it does.
std::string unreadable_as(SQLite::Database&, const Schema&);

// Makes an empty file this schema's. Within the caller's transaction.
void create_tables(SQLite::Database&, const Schema&);

class Database {
 public:
  // dir: as open_directory() gave it. With kMemory no call ever reaches a file.
  Database(std::string dir, std::string name, Schema schema, Problems& problems);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  bool usable();
  const std::string& path() const { return path_; }

  // The result of `work`, or nothing if the file cannot answer. `work` runs anew on an empty file if the first one proves corrupt.
  template <class Work>
  auto read(Work work) -> std::optional<decltype(work(std::declval<SQLite::Database&>()))> {
    std::optional<decltype(work(std::declval<SQLite::Database&>()))> result;
    run([&](SQLite::Database& db) { result = work(db); }, Access::read);
    return result;
  }
  // One transaction, begun IMMEDIATE: waiting for other writers happens at its start, never at an upgrade of the lock. False if
  // nothing was stored.
  bool write(const std::function<void(SQLite::Database&)>& work) { return run(work, Access::write); }
  // Gives free pages back to the file system. Needs the file's size once more, on disk and in memory.
  bool vacuum();

 private:
  enum class Access { read, write, vacuum };
  enum class Mode { closed, read_write, read_only, unusable };

  // What fails is tried once more. SQLite reports damage where a read failed, too: damage must show twice, in a file that can be read.
  bool run(const std::function<void(SQLite::Database&)>& work, Access);
  void ensure_open();
  void open_file();
  bool make_file();
  void configure(SQLite::Database&);
  void choose_journal(SQLite::Database&);
  bool accept_contents(SQLite::Database&);
  void upgrade(SQLite::Database&);
  void serve_upgraded_copy();
  std::string set_aside();  // why not: the file cannot be read
  void give_up(const std::string& why);

  const std::string dir_, name_, path_;
  const Schema schema_;
  Problems& problems_;
  ForkSafeMutex mutex_{LockLevel::database};
  Mode mode_ = Mode::closed;
  std::unique_ptr<SQLite::Database> connection_;
  pid_t owner_ = 0;  // the process that opened the connection
  ino_t inode_ = 0;  // of the file that it opened
};

}  // namespace pagetune
