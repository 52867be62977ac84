#include "cache_db/repair.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <filesystem>
#include <functional>

#include "cache_db/binary_table.hpp"
#include "cache_db/database.hpp"
#include "cache_db/quiet_file.hpp"
#include "cache_db/untuned_table.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "cache_db/winner_table.hpp"

namespace pagetune {
namespace {

bool wants_repair(const FileReport& file) { return file.state == FileState::damaged || file.state == FileState::unfinished || !file.wrong.empty(); }

struct Plan {
  Schema schema;
  std::function<std::vector<WrongRow>(SQLite::Database&)> wrong;
  std::function<void(SQLite::Database&)> bring_back = [](SQLite::Database&) {};  // what a new file gets of the old one
};

FileRepair repair_file(const std::string& dir, const FileReport& file, const Plan& plan, Problems& problems) {
  FileRepair repair;
  repair.path = file.path;
  const std::optional<FileStamp> before = stamp_of(file.path);
  Database database(dir, std::filesystem::path(file.path).filename().string(), plan.schema, problems);
  repair.done = database.write([&](SQLite::Database& db) {
    // A Database sets aside a file in which its work finds damage, and runs the work anew on an empty one.
    if (const std::string verdict = db.execAndGet("PRAGMA integrity_check(1)").getString(); verdict != "ok") throw SQLite::Exception(verdict, SQLITE_CORRUPT);
    repair.removed = plan.wrong(db);
    remove_rows(db, repair.removed);
    plan.bring_back(db);
  });
  if (!repair.done) repair.removed.clear();
  const std::optional<FileStamp> after = stamp_of(file.path);
  repair.renewed = before && after && before->inode != after->inode;
  return repair;
}

}  // namespace

std::vector<FileRepair> repair_store(const std::string& dir, const StoreReport& found, Problems& problems) {
  std::vector<FileRepair> repairs;
  const auto add = [&](const FileReport& file, const Plan& plan) {
    if (wants_repair(file)) repairs.push_back(repair_file(dir, file, plan, problems));
  };
  Plan winners{winners_schema(), wrong_winner_rows};
  if (found.winners_db.state == FileState::damaged) winners.bring_back = [&](SQLite::Database& db) { write_missing(db, found.rows, found.blocks); };
  add(found.winners_db, winners);
  add(found.kernels_db, {kernels_schema(), [](SQLite::Database& db) { return wrong_binary_rows(db, true); }});
  add(found.untuned_db, {untuned_schema(), wrong_untuned_rows});
  for (const FileReport& file : found.lines) {
    if (file.wrong.empty()) continue;
    const std::string why = repair_lines(file.path);
    if (!why.empty()) problems.say(fmt::format("{} could not be written anew without its wrong lines: {}", file.path, why));
    repairs.push_back({.path = file.path, .done = why.empty(), .removed = why.empty() ? file.wrong : std::vector<WrongRow>{}});
  }
  return repairs;
}

}  // namespace pagetune
