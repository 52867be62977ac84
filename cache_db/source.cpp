#include "cache_db/source.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "cache_db/quiet_file.hpp"
#include "cache_db/table.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_json.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) { throw Error(ErrorCode::io, fmt::format("{} cannot be read as winners: {}", path, why)); }

FileStamp required_stamp(const std::string& path) {
  std::optional<FileStamp> stamp = stamp_of(path);
  if (!stamp) fail(path, std::strerror(errno));
  return *stamp;
}

// SQLite would replay such a file into the database, and follow names that stand in it.
void require_no_unfinished_write(const std::string& path) {
  for (const char* side : {"-journal", "-wal"})
    if (side_bytes(path, side) > 0)
      fail(path, fmt::format("{}{} holds a write that is not finished. Wait until its tuning has ended; if that was killed, run PAGETUNE_CACHE_DIR={} pagetune info once", path, side,
                             std::filesystem::path(path).parent_path().string()));
}

bool is_printable(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

template <class Row>
std::vector<std::optional<Row>> few_enough(const std::string& path, std::vector<std::optional<Row>> rows, const char* what) {
  if (static_cast<int64_t>(rows.size()) > kMostSourceRows) fail(path, fmt::format("it holds more than {} {}", kMostSourceRows, what));
  return rows;
}

void take_rows(std::vector<std::optional<Store::Row>> rows, const std::string& path, Source& source) {
  int damaged = 0;
  std::map<std::string, int> refused;
  for (auto& row : few_enough(path, std::move(rows), "winners")) {
    if (!row) {
      ++damaged;
    } else if (std::string reason = row_refusal(*row); !reason.empty()) {
      ++refused[reason];
    } else {
      source.content.rows.push_back(std::move(*row));
    }
  }
  source.damaged = damaged > 0;
  if (damaged > 0) source.problems.push_back(fmt::format("{} of the winners in {} do not match their digest (damaged or edited by hand) and were left out; tune their buckets again", damaged, path));
  for (const auto& [reason, count] : refused) source.problems.push_back(fmt::format("{} of the winners in {} were left out: {}", count, path, reason));
}

void take_blocks(std::vector<std::optional<Store::Block>> blocks, const std::string& path, Source& source) {
  int wrong = 0;
  for (auto& block : few_enough(path, std::move(blocks), "blocked configs")) {
    if (block && is_key(block->env_key) && is_key(block->spec_key))
      source.content.blocks.push_back(std::move(*block));
    else
      ++wrong;
  }
  if (wrong > 0) source.problems.push_back(fmt::format("{} of the blocked configs in {} are not of a known form and were left out", wrong, path));
}

Source read_database(const std::string& path, const std::string& spec_key) {
  const FileStamp before = required_stamp(path);
  if (!before.regular) fail(path, "it is not a regular file");
  if (before.bytes > kLargestSource) fail(path, fmt::format("it has {} bytes; {} are allowed", before.bytes, kLargestSource));
  require_no_unfinished_write(path);
  Source source;
  source.content.name = path;
  try {
    const std::unique_ptr<SQLite::Database> opened = open_quietly(path);
    SQLite::Database& db = *opened;
    sqlite3_limit(db.getHandle(), SQLITE_LIMIT_LENGTH, kLongestSourceRow);
    if (std::string reason = unreadable_as(db, winners_schema()); !reason.empty()) fail(path, reason);
    if (spec_key.empty()) {
      if (std::string verdict = db.execAndGet("PRAGMA integrity_check(1)").getString(); verdict != "ok") fail(path, "it is damaged: " + verdict);
      take_blocks(read_blocks(db, {}, kMostSourceRows + 1), path, source);
    }
    take_rows(read_rows(db, {spec_key, ""}, kMostSourceRows + 1), path, source);
  } catch (const SQLite::Exception& failure) {
    fail(path, failure.what());
  }
  require_no_unfinished_write(path);
  if (required_stamp(path) != before) fail(path, "it was written while it was read; try again when its tuning has ended");
  return source;
}

// Lines, and what stood in the database before there were any.
Source read_lines(const std::string& name, const std::vector<std::string>& files, const std::string& spec_key, const Source& before) {
  Source source;
  source.content.name = name;
  source.problems = before.problems;
  NewestLines newest;
  newest.take_oldest(before.content.rows, before.content.blocks);
  size_t wrong = 0;
  for (const std::string& path : files) {
    const NewestLines::File& file = newest.read(path);
    if (!file.refusal.empty()) fail(path, file.refusal);
    wrong += file.wrong.size();
    if (!file.wrong.empty()) source.problems.push_back(fmt::format("{} of the {} lines of {} do not match their sha256 (damaged or edited by hand) and were left out; tune their buckets again", file.wrong.size(), file.lines, path));
  }
  const std::vector<Store::Row> rows = newest.rows({spec_key, ""});
  take_rows({rows.begin(), rows.end()}, name, source);
  if (spec_key.empty()) {
    const std::vector<Store::Block> blocks = newest.blocks();
    take_blocks({blocks.begin(), blocks.end()}, name, source);
  }
  source.damaged = before.damaged || wrong > 0;
  return source;
}

}  // namespace

bool is_key(const std::string& text) { return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos; }

std::string form_refusal(const Winner& w) {
  if (!(w.median_us > 0 && w.ci_low_us > 0 && w.ci_low_us <= w.ci_high_us)) return "the 95 % interval is none: it must lie above 0 and its lower end not above its upper";
  try {
    winner_to_json(w).dump();  // throws for text that is not UTF-8
    for (const std::string* text : {&w.reason, &w.policy_hash, &w.space_hash, &w.generator_hash, &w.session})
      if (!is_printable(*text)) return "the text holds control characters";
  } catch (const nlohmann::json::exception&) {
    return "the text is not UTF-8";
  }
  return "";
}

std::string row_refusal(const Store::Row& row) {
  if (std::string reason = form_refusal(row.winner); !reason.empty()) return reason;
  try {
    return supports(row.spec, row.winner.config, target_of(row.environment)).reason;
  } catch (const Error& error) {
    return error.what();
  }
}

Source read_source(const std::string& wanted, const std::string& spec_key) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::canonical(wanted, error);
  if (error) fail(wanted, error.message());
  if (!std::filesystem::is_directory(found, error)) return is_line_file(found.string()) ? read_lines(found.string(), {found.string()}, spec_key, {}) : read_database(found.string(), spec_key);
  const std::vector<std::string> lines = line_files(found.string());
  const std::filesystem::path database = std::filesystem::canonical(found / "winners.db", error);
  if (error && lines.empty()) fail(wanted, fmt::format("it holds no winners.db ({})", error.message()));
  const Source before = error ? Source{} : read_database(database.string(), spec_key);
  return lines.empty() ? before : read_lines(found.string(), lines, spec_key, before);
}

}  // namespace pagetune
