#include "cache_db/inspection.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <tuple>

#include "cache_db/binary_table.hpp"
#include "cache_db/database.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/quiet_file.hpp"
#include "cache_db/untuned_table.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"

namespace pagetune {
namespace {

// A write of a running process takes milliseconds; what lasts longer than this is one that was killed.
constexpr int kAttempts = 20;
constexpr std::chrono::milliseconds kPause{25};

// Rows that are right; those that are not are named by the checks.
template <class Row>
std::vector<Row> right_ones(std::vector<std::optional<Row>> rows) {
  std::vector<Row> right;
  for (auto& row : rows)
    if (row) right.push_back(std::move(*row));
  return right;
}

auto place_of(const Store::Row& row) { return std::tie(row.winner.env_key, row.winner.spec_key, row.winner.bucket); }

// If damage ends the reading, the rows before it are kept.
void read_winners(SQLite::Database& db, std::vector<Store::Row>& rows) {
  std::vector<std::optional<Store::Row>> read;
  const auto keep = [&] {
    rows = right_ones(std::move(read));
    std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) { return place_of(a) < place_of(b); });
  };
  try {
    append_rows(db, read);
  } catch (const SQLite::Exception&) {
    keep();
    throw;
  }
  keep();
}

// How one of the files is read, and where its rows go.
struct Reader {
  std::function<void(SQLite::Database&)> rows;
  std::function<std::vector<WrongRow>(SQLite::Database&)> wrong;
};

// Once: false if another process wrote meanwhile.
bool read_once(const Schema& schema, const Reader& reader, FileReport& report) {
  const std::optional<FileStamp> before = stamp_of(report.path);
  if (!before) {
    report.state = FileState::refused;
    report.why = fmt::format("it cannot be looked at: {}", std::strerror(errno));
    return true;
  }
  report.bytes = before->bytes;
  if (const int64_t journal = side_bytes(report.path, "-journal"); journal > 0) {
    report.state = FileState::unfinished;
    report.why = fmt::format("{}-journal holds a write that is not finished: a process is writing, or one was killed and the next use of the store takes its write back", report.path);
    return false;
  }
  if (const int64_t wal = side_bytes(report.path, "-wal"); wal > 0)
    report.why = fmt::format("what stands in the {} bytes of {}-wal is not counted: a process has the file open, or one was killed and the next use of the store takes it in", wal, report.path);
  report.state = FileState::damaged;
  try {
    const std::unique_ptr<SQLite::Database> db = open_quietly(report.path);
    if (is_empty(*db)) {
      report.state = FileState::sound;
      return true;
    }
    report.schema_version = db->execAndGet("PRAGMA user_version").getInt();
    report.free_bytes = db->execAndGet("PRAGMA freelist_count").getInt64() * db->execAndGet("PRAGMA page_size").getInt64();
    if (std::string reason = unreadable_as(*db, schema); !reason.empty()) {
      report.state = FileState::refused;
      report.why = reason;
      return true;
    }
    const std::string verdict = db->execAndGet("PRAGMA integrity_check(1)").getString();
    if (verdict != "ok") report.why = verdict;
    reader.rows(*db);
    if (verdict == "ok") {
      report.wrong = reader.wrong(*db);
      report.state = FileState::sound;
    }
  } catch (const SQLite::Exception& error) {
    report.why = report.why.empty() ? error.what() : report.why;
  }
  return stamp_of(report.path) == before && side_bytes(report.path, "-journal") == 0;
}

FileReport read_file(const std::string& dir, const char* name, const Schema& schema, const Reader& reader) {
  FileReport report;
  report.path = dir + "/" + name;
  struct stat info {};
  if (lstat(report.path.c_str(), &info) != 0 && errno == ENOENT) return report;
  report.state = FileState::refused;
  report.why = distrust(report.path, PathKind::file);
  if (report.why.empty() && access(report.path.c_str(), R_OK) != 0) report.why = fmt::format("it cannot be read: {}", std::strerror(errno));
  if (!report.why.empty()) {
    report.bytes = info.st_size;
    return report;
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kPause);
    FileReport fresh;
    fresh.path = report.path;
    const bool steady = read_once(schema, reader, fresh);
    report = fresh;
    if (steady) return report;
  }
  if (report.state != FileState::unfinished) {
    report.state = FileState::unfinished;
    report.why = "it was written again and again while it was read";
  }
  return report;
}

// Of each process's lines; the rows and blocks become what they say together with those that are there already.
void read_lines(const std::string& dir, StoreReport& report) {
  Problems ignored;
  const bool served = wants_lines(dir, ignored);
  NewestLines newest;
  newest.take_oldest(report.rows, report.blocks);
  for (const std::string& path : line_files(dir)) {
    FileReport& file = report.lines.emplace_back();
    file.path = path;
    if (const std::optional<FileStamp> stamp = stamp_of(path)) file.bytes = stamp->bytes;
    file.state = FileState::refused;
    file.why = distrust(path, PathKind::file);
    if (!file.why.empty()) continue;
    const NewestLines::File& read = newest.read(path);
    file.why = read.refusal;
    if (!file.why.empty()) continue;
    file.state = FileState::sound;
    file.schema_version = kLineFormat;
    for (const int line : read.wrong) file.wrong.push_back({"line", line, fmt::format("{}", line), "it does not match its sha256, or another version wrote it"});
    if (!served) file.why = fmt::format("its winners are not served, since {} keeps them in winners.db; pagetune merge {} --into {} takes them in, and then it can be removed", dir, path, dir);
  }
  if (!served || report.lines.empty()) return;
  report.rows = newest.rows();
  report.blocks = newest.blocks();
}

}  // namespace

const char* name_of(FileState state) {
  switch (state) {
    case FileState::missing: return "missing";
    case FileState::sound: return "sound";
    case FileState::unfinished: return "unfinished";
    case FileState::refused: return "refused";
    case FileState::damaged: return "damaged";
  }
  return "?";
}

std::vector<StoredBinary> read_binaries(SQLite::Database& db) {
  SQLite::Statement select(db, "SELECT binary_key, arch, kind, size, last_used_day FROM blob ORDER BY last_used_day, rowid");
  std::vector<StoredBinary> binaries;
  while (select.executeStep())
    binaries.push_back({select.getColumn(0).getString(), select.getColumn(1).getString(), select.getColumn(2).getString(), select.getColumn(3).getInt64(), select.getColumn(4).getInt64()});
  return binaries;
}

StoreReport inspect_store(const std::string& dir, bool hash_binaries) {
  StoreReport report;
  report.winners_db = read_file(dir, "winners.db", winners_schema(),
                                {[&](SQLite::Database& db) {
                                   report.blocks = right_ones(read_blocks(db));
                                   read_winners(db, report.rows);
                                 },
                                 wrong_winner_rows});
  report.kernels_db = read_file(dir, "kernels.db", kernels_schema(),
                                {[&](SQLite::Database& db) { report.binaries = read_binaries(db); }, [=](SQLite::Database& db) { return wrong_binary_rows(db, hash_binaries); }});
  report.untuned_db = read_file(dir, "untuned.db", untuned_schema(),
                                {[&](SQLite::Database& db) { report.untuned = right_ones(read_untuned_rows(db)); }, wrong_untuned_rows});
  // What was read in the middle of writes belongs to no one moment.
  if (report.winners_db.state == FileState::unfinished) report.rows.clear(), report.blocks.clear();
  if (report.kernels_db.state == FileState::unfinished) report.binaries.clear();
  if (report.untuned_db.state == FileState::unfinished) report.untuned.clear();
  read_lines(dir, report);
  return report;
}

}  // namespace pagetune
