#include "cache_db/garbage.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "cache_db/binary_table.hpp"
#include "cache_db/blocklist.hpp"
#include "cache_db/database.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/quiet_file.hpp"
#include "cache_db/untuned_table.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen/sha256.hpp"

namespace pagetune {
namespace {

// A damaged file stays as it is; one in the middle of a write is finished by whoever opens it.
bool is_tended(const FileReport& file) { return file.state == FileState::sound || file.state == FileState::unfinished; }

// Keys of binaries that this build can never load. A key stands for the bytes, so the answer holds whatever is written meanwhile.
std::set<std::string> unloadable(SQLite::Database& db, const std::function<bool(const Binary&)>& loads) {
  std::set<std::string> keys;
  SQLite::Statement select(db, "SELECT binary_key, arch, kind, sha256, data FROM blob");
  while (select.executeStep()) {
    Binary binary;
    binary.key = select.getColumn(0).getString();
    binary.arch = select.getColumn(1).getString();
    binary.kind = select.getColumn(2).getString();
    binary.sha256 = select.getColumn(3).getString();
    binary.data = select.getColumn(4).getString();
    if (sha256_hex(binary.data) == binary.sha256 && !loads(binary)) keys.insert(binary.key);
  }
  return keys;
}

std::set<std::string> find_unloadable(const FileReport& file, const GarbageRule& rule) {
  if (!rule.loads || file.state != FileState::sound || file.schema_version == 0) return {};
  try {
    return unloadable(*open_quietly(file.path), rule.loads);
  } catch (const SQLite::Exception&) {
    return {};  // written meanwhile: the next time
  }
}

// The rules by which binaries go. Reads no bytes of them.
std::vector<Garbage::DroppedBinary> drop_binaries(SQLite::Database& db, const GarbageRule& rule, const std::set<std::string>& foreign) {
  const std::vector<StoredBinary> before = read_binaries(db);
  const int64_t oldest_day = rule.idle_days ? days_since_1970() - *rule.idle_days : 0;
  const auto is_idle = [&](const StoredBinary& binary) { return rule.idle_days && binary.last_used_day < oldest_day; };
  const int64_t limit = rule.max_bytes.value_or(kMostBinaryBytes);
  for (const StoredBinary& binary : before) {
    if (!foreign.contains(binary.key) && !is_idle(binary)) continue;
    SQLite::Statement remove(db, "DELETE FROM blob WHERE binary_key=?");
    remove.bind(1, binary.key);
    remove.exec();
  }
  evict(db, "", limit);
  std::set<std::string> left;
  for (const StoredBinary& binary : read_binaries(db)) left.insert(binary.key);
  std::vector<Garbage::DroppedBinary> dropped;
  for (const StoredBinary& binary : before) {
    if (left.contains(binary.key)) continue;
    dropped.push_back({binary, foreign.contains(binary.key) ? "another generator's or compiler's, which this build cannot load"
                               : is_idle(binary)            ? fmt::format("not used for more than {} days", *rule.idle_days)
                                                            : fmt::format("beyond {} bytes, the least recently used", limit)});
  }
  return dropped;
}

// The same on a copy without bytes.
std::vector<Garbage::DroppedBinary> would_drop(const std::vector<StoredBinary>& binaries, const GarbageRule& rule, const std::set<std::string>& foreign) {
  SQLite::Database copy(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  copy.exec(kernels_schema().sql);
  SQLite::Statement insert(copy, "INSERT INTO blob VALUES (?,?,?,?,'',0,?,x'')");
  for (const StoredBinary& binary : binaries) {
    insert.bind(1, binary.key);
    insert.bind(2, binary.arch);
    insert.bind(3, binary.kind);
    insert.bind(4, binary.size);
    insert.bind(5, binary.last_used_day);
    insert.exec();
    insert.reset();
  }
  return drop_binaries(copy, rule, foreign);
}

std::vector<Store::Block> blocks_of_other_builds(std::vector<Store::Block> blocks) {
  std::erase_if(blocks, [](const Store::Block& block) { return Blocklist::is_of_this_build(block.reason); });
  return blocks;
}

std::vector<Store::Block> drop_blocks(SQLite::Database& db) {
  std::vector<Store::Block> blocks;
  for (auto& block : read_blocks(db))
    if (block) blocks.push_back(std::move(*block));
  blocks = blocks_of_other_builds(std::move(blocks));
  for (const Store::Block& block : blocks) {
    SQLite::Statement remove(db, "DELETE FROM blocklist WHERE env_key=? AND spec_key=? AND config=?");
    remove.bind(1, block.env_key);
    remove.bind(2, block.spec_key);
    remove.bind(3, block.config.canonical_json());
    remove.exec();
  }
  return blocks;
}

std::vector<Garbage::OldFile> old_files(const std::string& dir) {
  std::vector<Garbage::OldFile> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    std::optional<int64_t> time = set_aside_time(entry.path().filename().string());
    if (is_line_draft(entry.path().string())) time = info.st_mtim.tv_sec;
    if (time && *time / 86'400 < days_since_1970() - kKeptDays) files.push_back({entry.path().string(), info.st_size});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

void remove_files(const std::string& dir, Garbage& garbage, Problems& problems) {
  if (garbage.files.empty()) return;
  const DirectoryLock lock(dir);  // under which files are set aside
  std::erase_if(garbage.files, [&](const Garbage::OldFile& file) {
    if (unlink(file.path.c_str()) == 0) return false;
    problems.say(fmt::format("{} could not be removed: {}", file.path, std::strerror(errno)));
    garbage.complete = false;
    return true;
  });
}

int64_t bytes_of(const FileReport& file) {
  const std::optional<FileStamp> stamp = stamp_of(file.path);
  return stamp ? stamp->bytes : 0;
}

// Runs `work` on a file, then gives its free pages back. False if the work was not done.
bool tend(const std::string& dir, const FileReport& file, Schema schema, Garbage& garbage, Problems& problems, const std::function<void(SQLite::Database&)>& work) {
  if (!is_tended(file)) return false;
  const int64_t before = bytes_of(file);
  schema.if_lost = "nothing was removed from it";
  Database database(dir, std::filesystem::path(file.path).filename().string(), std::move(schema), problems);
  const bool done = database.write(work);
  const int64_t free_pages = done ? database.read([](SQLite::Database& db) { return db.execAndGet("PRAGMA freelist_count").getInt64(); }).value_or(0) : 0;
  const bool compact = free_pages == 0 || database.vacuum();
  garbage.complete = garbage.complete && done && compact;
  garbage.bytes += before - bytes_of(file);
  return done;
}

}  // namespace

std::optional<int64_t> set_aside_time(const std::string& name) {
  static const std::regex form(R"((?:winners|kernels|untuned)\.db\.(?:corrupt|v\d+)-(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})Z(?:-\d+)?(?:-journal|-wal|-shm)?)");
  std::smatch parts;
  if (!std::regex_match(name, parts, form)) return std::nullopt;
  const auto number = [&](int i) { return std::stoi(parts[static_cast<size_t>(i)].str()); };
  std::tm utc{};
  utc.tm_year = number(1) - 1900;
  utc.tm_mon = number(2) - 1;
  utc.tm_mday = number(3);
  utc.tm_hour = number(4);
  utc.tm_min = number(5);
  utc.tm_sec = number(6);
  return static_cast<int64_t>(timegm(&utc));
}

Garbage collect_garbage(const std::string& dir, const GarbageRule& rule, bool remove, Problems& problems) {
  const StoreReport found = inspect_store(dir);
  Garbage garbage;
  for (const FileReport* file : found.files()) {
    if (is_tended(*file) || file->state == FileState::missing) continue;
    garbage.complete = false;
    problems.say(fmt::format("{} was left as it is: {}", file->path, file->why));
  }
  const bool lines = !found.lines.empty();  // nothing is taken out of them, nor of a winners.db of which they are the continuation
  const std::set<std::string> foreign = find_unloadable(found.kernels_db, rule);
  garbage.files = old_files(dir);
  if (!remove) {
    garbage.binaries = would_drop(found.binaries, rule, foreign);
    if (!lines) garbage.blocks = blocks_of_other_builds(found.blocks);
    for (const Garbage::DroppedBinary& one : garbage.binaries) garbage.bytes += one.binary.size;
    for (const FileReport* file : found.files()) garbage.bytes += is_tended(*file) ? file->free_bytes : 0;
  } else {
    remove_files(dir, garbage, problems);
    if (!tend(dir, found.kernels_db, kernels_schema(), garbage, problems, [&](SQLite::Database& db) { garbage.binaries = drop_binaries(db, rule, foreign); })) garbage.binaries.clear();
    if (lines || !tend(dir, found.winners_db, winners_schema(), garbage, problems, [&](SQLite::Database& db) { garbage.blocks = drop_blocks(db); })) garbage.blocks.clear();
    tend(dir, found.untuned_db, untuned_schema(), garbage, problems, [](SQLite::Database&) {});
  }
  for (const Garbage::OldFile& file : garbage.files) garbage.bytes += file.bytes;
  return garbage;
}

}  // namespace pagetune
