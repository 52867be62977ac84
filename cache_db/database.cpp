#include "cache_db/database.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <mutex>

#include "cache_db/directory.hpp"

namespace pagetune {
namespace {

// Eight writers of one file stand in line for milliseconds; ten seconds outlast a slow disk's fsyncs.
constexpr int kBusyTimeoutMs = 10'000;
// SQLite's waiting is not fair: of many writers on a slow disk one may be out of luck for longer than one timeout.
constexpr int kBusyRounds = 3;
constexpr const char* kSideFiles[] = {"-journal", "-wal", "-shm"};

bool is_corruption(const SQLite::Exception& error) {
  int code = error.getErrorCode() & 0xff;
  return code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

bool is_busy(const SQLite::Exception& error) { return (error.getErrorCode() & 0xff) == SQLITE_BUSY; }

// Why not every byte of a file can be read; empty if it can.
std::string unreadable(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return std::strerror(errno);
  std::vector<char> piece(1 << 20);
  off_t at = 0;
  ssize_t got = 0;
  while ((got = pread(fd, piece.data(), piece.size(), at)) > 0) at += got;
  std::string why = got < 0 ? std::strerror(errno) : "";
  ::close(fd);
  return why;
}

int64_t query_int(SQLite::Database& db, const char* sql) { return db.execAndGet(sql).getInt64(); }

std::string time_suffix() {
  std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

ino_t inode_of(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

// "winners.db.corrupt-20260131T120000Z", or with "-2" and so on behind it.
std::string unused_name(const std::string& stem) {
  const std::string name = fmt::format("{}-{}", stem, time_suffix());
  std::string free = name;
  for (int n = 2; inode_of(free) != 0; ++n) free = fmt::format("{}-{}", name, n);
  return free;
}

// A connection that came through fork() must not even be closed: that would roll back or unlink what the parent is using.
void abandon(std::unique_ptr<SQLite::Database> connection) {
  static auto* abandoned = new std::vector<SQLite::Database*>;
  abandoned->push_back(connection.release());
}

}  // namespace

int64_t days_since_1970() { return static_cast<int64_t>(std::time(nullptr)) / 86'400; }

bool wal_is_safe(int version) {
  constexpr int kFixed = 3'051'003;
  int line = version / 1000, patch = version % 1000;
  return version >= kFixed || (line == 3'050 && patch >= 7) || (line == 3'044 && patch >= 6);
}

const char* wanted_journal() { return wal_is_safe(sqlite3_libversion_number()) ? "wal" : "delete"; }

bool is_empty(SQLite::Database& db) {
  return query_int(db, "PRAGMA application_id") == 0 && query_int(db, "PRAGMA user_version") == 0 && query_int(db, "SELECT count(*) FROM sqlite_master") == 0;
}

std::string refusal(SQLite::Database& db, const Schema& schema) {
  if (query_int(db, "PRAGMA application_id") != kApplicationId) return "it is not a database of pagetune";
  if (int64_t version = query_int(db, "PRAGMA user_version"); version != schema.user_version)
    return fmt::format("it has schema version {} and this build reads version {}{}", version, schema.user_version,
                       version > schema.user_version ? " (a newer pagetune wrote it)" : "");
  if (query_int(db, "SELECT count(*) FROM sqlite_master WHERE type IN ('trigger','view') OR sql LIKE 'CREATE VIRTUAL%'") != 0)
    return "it holds triggers, views or virtual tables, which pagetune never makes";
  for (const auto& [table, columns] : schema.columns) {
    try {
      SQLite::Statement probe(db, fmt::format("SELECT {} FROM {} LIMIT 0", columns, table));
    } catch (const SQLite::Exception& error) {
      if (is_corruption(error)) throw;
      return fmt::format("its tables are not those of schema version {} ({})", schema.user_version, error.what());
    }
  }
  return "";
}

std::string unreadable_as(SQLite::Database& db, const Schema& schema) {
  if (schema.upgrade.from == 0 || query_int(db, "PRAGMA user_version") != schema.upgrade.from) return refusal(db, schema);
  Schema old;
  old.user_version = schema.upgrade.from;
  old.columns = schema.upgrade.columns;
  return refusal(db, old);
}

void create_tables(SQLite::Database& db, const Schema& schema) {
  db.exec(schema.sql);
  db.exec(fmt::format("PRAGMA application_id={}", kApplicationId));
  db.exec(fmt::format("PRAGMA user_version={}", schema.user_version));
}

Database::Database(std::string dir, std::string name, Schema schema, Problems& problems)
    : dir_(std::move(dir)), name_(std::move(name)), path_(dir_ + "/" + name_), schema_(std::move(schema)), problems_(problems) {
  if (dir_ == kMemory) mode_ = Mode::unusable;
}

Database::~Database() {
  if (connection_ && owner_ != getpid()) abandon(std::move(connection_));
}

bool Database::usable() {
  std::lock_guard lock(mutex_);
  ensure_open();
  return mode_ != Mode::unusable;
}

bool Database::run(const std::function<void(SQLite::Database&)>& work, Access access) {
  std::lock_guard lock(mutex_);
  int failures = 0, busy_rounds = 0;
  while (true) {
    ensure_open();
    if (mode_ == Mode::unusable || (mode_ == Mode::read_only && access != Access::read)) return false;
    try {
      if (access != Access::write) {
        work(*connection_);
      } else {
        SQLite::Transaction transaction(*connection_, SQLite::TransactionBehavior::IMMEDIATE);
        work(*connection_);
        transaction.commit();
      }
      return true;
    } catch (const SQLite::Exception& error) {
      std::string why = error.what();
      if (is_busy(error)) {
        if (++busy_rounds < kBusyRounds) continue;
      } else if (++failures == 1) {
        continue;
      } else if (failures == 2 && is_corruption(error)) {
        std::string unread = set_aside();
        if (unread.empty()) continue;
        why = unread;
      }
      if (access == Access::vacuum) {
        problems_.say(fmt::format("{} could not be made smaller: {}; it keeps its free pages for what comes", path_, why));
      } else {
        problems_.say(fmt::format("{} could not be {}: {}; {}", path_, access == Access::read ? "read" : "written", why,
                                  access == Access::read ? "its rows count as absent" : schema_.if_lost));
      }
      return false;
    }
  }
}

bool Database::vacuum() {
  return run([](SQLite::Database& db) { db.exec("VACUUM"); }, Access::vacuum);
}

void Database::ensure_open() {
  if (connection_ && owner_ != getpid()) {
    abandon(std::move(connection_));
    mode_ = Mode::closed;
  }
  if (mode_ != Mode::closed) return;
  int failures = 0, busy_rounds = 0;
  while (mode_ == Mode::closed) {
    try {
      open_file();
    } catch (const SQLite::Exception& error) {
      connection_.reset();
      mode_ = Mode::closed;
      std::string why = error.what();
      if (is_busy(error)) {
        if (++busy_rounds < kBusyRounds) continue;
      } else if (++failures == 1) {
        continue;
      } else if (failures == 2 && is_corruption(error)) {
        why = set_aside();
      }
      if (!why.empty()) give_up(why);
    }
  }
}

// Under the directory's lock, so that no two processes create, or set aside, one file at the same time.
void Database::open_file() {
  DirectoryLock lock(dir_);
  bool made = make_file();
  if (mode_ == Mode::unusable) return;
  if (std::string reason = distrust(path_, PathKind::file); !reason.empty()) return give_up(reason);
  inode_ = inode_of(path_);
  owner_ = getpid();
  bool accepted = false;
  try {
    // SQLite takes a lock that cannot be had for one that another process holds.
    connection_ = std::make_unique<SQLite::Database>(path_, SQLite::OPEN_READWRITE | SQLite::OPEN_NOFOLLOW, lock.possible() ? kBusyTimeoutMs : 0);
    accepted = accept_contents(*connection_);
    if (accepted) connection_->setBusyTimeout(kBusyTimeoutMs);
    if (accepted && mode_ == Mode::closed) mode_ = sqlite3_db_readonly(connection_->getHandle(), "main") == 1 ? Mode::read_only : Mode::read_write;
  } catch (const SQLite::Exception& error) {
    if (made) {  // nothing could be written into it: leave no empty file behind on a full disk
      connection_.reset();
      unlink(path_.c_str());
    }
    if (!lock.possible() && is_busy(error)) return give_up("its file system gives no locks (set PAGETUNE_CACHE_DIR to a local directory)");
    throw;
  }
  if (!accepted) {
    connection_.reset();
  } else if (mode_ == Mode::read_only) {
    problems_.say(fmt::format("{} can only be read; {}", path_, schema_.if_lost));
  }
}

// With mode 0600 from the first moment: SQLite would use the process's umask. True if there was none before.
bool Database::make_file() {
  int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) {
    ::close(fd);
    return true;
  }
  int code = errno;
  struct stat info {};
  if (lstat(path_.c_str(), &info) != 0) give_up(std::strerror(code));
  return false;
}

void Database::configure(SQLite::Database& db) {
  sqlite3_db_config(db.getHandle(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  struct {
    const char* name;
    int value;
  } constexpr kSettings[] = {{"foreign_keys", 1}, {"trusted_schema", 0}, {"cell_size_check", 1}, {"synchronous", 1 /* NORMAL */},
                             {"temp_store", 2 /* MEMORY: never a file in /tmp */}};
  for (const auto& [name, value] : kSettings) {
    db.exec(fmt::format("PRAGMA {}={}", name, value));
    if (query_int(db, fmt::format("PRAGMA {}", name).c_str()) != value)
      problems_.say(fmt::format("this SQLite ({}) does not take PRAGMA {}={}; {} is used without it", sqlite3_libversion(), name, value, path_));
  }
}

void Database::choose_journal(SQLite::Database& db) {
  const char* wanted = wanted_journal();
  std::string now = db.execAndGet("PRAGMA journal_mode").getString();
  if (now == wanted || sqlite3_db_readonly(db.getHandle(), "main") == 1) return;
  try {
    now = db.execAndGet(fmt::format("PRAGMA journal_mode={}", wanted)).getString();
  } catch (const SQLite::Exception& error) {
    if (is_corruption(error)) throw;
    now += fmt::format(" ({})", error.what());
  }
  if (now != wanted) problems_.say(fmt::format("{} keeps journal mode {} where {} was wanted", path_, now, wanted));
}

// True if the file is ours to use. Another program's file, or another version's, is left as it is.
bool Database::accept_contents(SQLite::Database& db) {
  configure(db);
  const bool empty = is_empty(db);
  std::string reason = empty ? "" : unreadable_as(db, schema_);
  if (reason.empty()) choose_journal(db);
  if (empty) {
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    // Without the directory's lock another process may have been quicker.
    if (query_int(db, "SELECT count(*) FROM sqlite_master") == 0) create_tables(db, schema_);
    transaction.commit();
    reason = refusal(db, schema_);
  }
  if (!reason.empty()) {
    give_up(reason + "; the file is left as it is, move it away to start a new one");
    return false;
  }
  if (schema_.check_on_open) {
    std::string verdict = db.execAndGet("PRAGMA quick_check(1)").getString();
    if (verdict != "ok") throw SQLite::Exception(verdict, SQLITE_CORRUPT);
  }
  if (query_int(db, "PRAGMA user_version") == schema_.upgrade.from) upgrade(db);
  return true;
}

// A copy first: what the old version had, its programs can have again.
void Database::upgrade(SQLite::Database& db) {
  if (sqlite3_db_readonly(db.getHandle(), "main") == 1) return serve_upgraded_copy();
  const std::string copy = unused_name(fmt::format("{}.v{}", path_, schema_.upgrade.from));
  try {
    const int fd = ::open(copy.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) throw SQLite::Exception(fmt::format("{}: {}", copy, std::strerror(errno)), SQLITE_CANTOPEN);
    ::close(fd);
    SQLite::Statement vacuum(db, "VACUUM INTO ?");
    vacuum.bind(1, copy);
    vacuum.exec();
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    if (query_int(db, "PRAGMA user_version") != schema_.upgrade.from) {  // without the directory's lock another process may have been quicker
      unlink(copy.c_str());
      return;
    }
    const Schema::Upgrade::Content content = schema_.upgrade.read(db);
    // Tables that others refer to last.
    for (auto table = schema_.upgrade.columns.rbegin(); table != schema_.upgrade.columns.rend(); ++table) db.exec("DROP TABLE " + table->first);
    create_tables(db, schema_);
    content.write(db);
    transaction.commit();
    if (!content.left_behind.empty()) problems_.say(fmt::format("{} was upgraded to schema version {}: {} stay behind in {}", path_, schema_.user_version, content.left_behind, copy));
  } catch (const SQLite::Exception& error) {
    unlink(copy.c_str());
    if (is_corruption(error) || is_busy(error)) throw;
    problems_.say(fmt::format("{} has schema version {} and could not be upgraded to {}: {}", path_, schema_.upgrade.from, schema_.user_version, error.what()));
    serve_upgraded_copy();
  }
}

// The rows of a file that stays as it is.
void Database::serve_upgraded_copy() {
  auto copy = std::make_unique<SQLite::Database>(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  configure(*copy);
  const Schema::Upgrade::Content content = schema_.upgrade.read(*connection_);
  SQLite::Transaction transaction(*copy);
  create_tables(*copy, schema_);
  content.write(*copy);
  transaction.commit();
  connection_ = std::move(copy);
  mode_ = Mode::read_only;
}

std::string Database::set_aside() {
  connection_.reset();
  mode_ = Mode::closed;
  DirectoryLock lock(dir_);
  if (inode_of(path_) != inode_) return "";  // another process was quicker
  if (std::string why = unreadable(path_); !why.empty()) return why;
  const std::string aside = unused_name(path_ + ".corrupt");
  // Its journal first: the new file must not be "recovered" from it.
  for (const char* side : kSideFiles) rename((path_ + side).c_str(), (aside + side).c_str());
  if (rename(path_.c_str(), aside.c_str()) != 0) {
    give_up(fmt::format("it is damaged and cannot be renamed: {}", std::strerror(errno)));
  } else {
    problems_.say(fmt::format("{} was damaged; it is now {} and a new one was started", path_, aside));
  }
  return "";
}

void Database::give_up(const std::string& why) {
  connection_.reset();
  mode_ = Mode::unusable;
  problems_.say(fmt::format("{} is not used: {}; {}", path_, why, schema_.if_lost));
}

}  // namespace pagetune
