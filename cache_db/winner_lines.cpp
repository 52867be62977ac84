#include "cache_db/winner_lines.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <regex>
#include <utility>

#include "cache_db/directory.hpp"
#include "cache_db/file_system.hpp"
#include "cache_db/layers.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_json.hpp"
#include "codegen/generate.hpp"
#include "codegen/json.hpp"
#include "codegen/json_fields.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int64_t kLatestTime = int64_t{1} << 53;  // what every reader of JSON can hold
// The end of a line: the sha256 of all before it.
constexpr std::string_view kSumKey = R"(,"sha256":")", kLineEnd = "\"}\n";
constexpr size_t kSumDigits = 64;
constexpr const char* kDraft = ".new";  // behind the name that a file is to get

int64_t now_us() { return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count(); }

nlohmann::json json_of(const Store::Row& row) {
  return {{"kind", "winner"}, {"environment", nlohmann::json::parse(row.environment.canonical_json())}, {"spec", nlohmann::json::parse(canonical_json(row.spec))}, {"bucket", row.winner.bucket.text()},
          {"winner", winner_to_json(row.winner)}};
}

nlohmann::json json_of(const Store::Block& block) {
  return {{"kind", "block"}, {"env_key", block.env_key}, {"spec_key", block.spec_key}, {"config", block.config.values()}, {"reason", block.reason}};
}

Store::Row row_from(const JsonFields& fields, const nlohmann::json& json) {
  fields.check_keys(json, "the whole", {"format", "kind", "time", "environment", "spec", "bucket", "winner", "sha256"});
  const std::optional<Bucket> bucket = bucket_from_text(fields.text(json.at("bucket"), "bucket"));
  if (!bucket) fields.fail("bucket", "it is none");
  Store::Row row{winner_from_json(json.at("winner"), "the line"), Environment::from_json(canonical_text(json.at("environment"))), spec_from_json(canonical_text(json.at("spec")))};
  row.winner.bucket = *bucket;
  row.winner.env_key = row.environment.key();
  row.winner.spec_key = spec_key(row.spec);
  return row;
}

Store::Block block_from(const JsonFields& fields, const nlohmann::json& json) {
  fields.check_keys(json, "the whole", {"format", "kind", "time", "env_key", "spec_key", "config", "reason", "sha256"});
  return {fields.text(json.at("env_key"), "env_key"), fields.text(json.at("spec_key"), "spec_key"), KernelConfig::from_json(canonical_text(json.at("config"))), fields.text(json.at("reason"), "reason")};
}

// Part of a file's name: what stands in no name of a host becomes '_'.
std::string host_name() {
  char name[65] = "unknown";
  gethostname(name, sizeof name - 1);
  std::string host = name;
  for (char& c : host)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '_';
  return host;
}

// What a file has gained behind its first `seen` bytes, or all of it if it is not the file that it was.
struct Text {
  Text(const std::string& path, ino_t known, int64_t seen) {
    int file = -1;
    for (int attempt = 0; attempt < 2 && file < 0; ++attempt) {  // a network file system may know the name by a handle that is stale
      file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      if (file < 0 && errno != ESTALE) break;
    }
    struct stat info {};
    if (file < 0 || fstat(file, &info) != 0) {
      refusal = std::strerror(errno);
    } else if (!S_ISREG(info.st_mode)) {
      refusal = "it is not a regular file";
    } else if (info.st_size > kLargestSource) {
      refusal = fmt::format("it has {} bytes; {} are allowed", info.st_size, kLargestSource);
    } else {
      inode = info.st_ino;
      anew = inode != known || info.st_size < seen;
      read(file, anew ? 0 : seen, info.st_size);
    }
    if (file >= 0) close(file);
  }

  std::string bytes, refusal;
  ino_t inode = 0;
  bool anew = false;

 private:
  void read(int file, int64_t from, int64_t to) {
    bytes.resize(static_cast<size_t>(to - from));
    size_t got = 0;
    while (got < bytes.size()) {
      const ssize_t count = pread(file, bytes.data() + got, bytes.size() - got, from + static_cast<int64_t>(got));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refusal = std::strerror(errno);
      if (count <= 0) break;
      got += static_cast<size_t>(count);
    }
    bytes.resize(got);
  }
};

// Calls with each whole line; returns where the last of them ends.
size_t for_each_line(const std::string& text, const std::function<void(const std::string& line)>& visit) {
  size_t start = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; start = end + 1, end = text.find('\n', start)) visit(text.substr(start, end - start));
  return start;
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return fsync(file) == 0;
}

// So that a file's name lasts.
void sync_directory(const std::string& path) {
  const int dir = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return;
  fsync(dir);
  close(dir);
}

}  // namespace

bool wants_lines(const std::string& dir, Problems& problems) {
  const char* set = std::getenv("PAGETUNE_WINNERS");
  const std::string wish = set == nullptr ? "" : set;
  if (wish == "lines" || wish == "database") return wish == "lines";
  if (!wish.empty()) problems.say(fmt::format("PAGETUNE_WINNERS is '{}', which is ignored: 'lines' and 'database' are known, and without it the file system decides", wish));
  const std::optional<FileSystem> system = file_system_of(dir);
  return system && system->kind.network;
}

std::string to_text(const WinnerLine& line) {
  nlohmann::json json = std::visit([](const auto& content) { return json_of(content); }, line.content);
  json["format"] = kLineFormat;
  json["time"] = line.time;
  std::string text = canonical_text(json);
  text.pop_back();  // the brace
  const std::string sum = sha256_hex(text);
  return text.append(kSumKey).append(sum).append(kLineEnd);
}

std::optional<WinnerLine> winner_line(const std::string& text) {
  const size_t tail = kSumKey.size() + kSumDigits + kLineEnd.size() - 1;
  if (text.size() < tail) return std::nullopt;
  const size_t body = text.size() - tail;
  if (text.compare(body, kSumKey.size(), kSumKey) != 0 || text.compare(body + kSumKey.size(), kSumDigits, sha256_hex(text.substr(0, body))) != 0) return std::nullopt;
  const JsonFields fields("a line of winners");
  try {
    const nlohmann::json json = fields.object(parse_json(text, "a line of winners"), "the whole");
    if (!json.contains("format") || json["format"] != kLineFormat || !json.contains("kind") || !json.contains("time") || !json["time"].is_number_integer()) return std::nullopt;
    WinnerLine line;
    line.time = json["time"].get<int64_t>();
    if (line.time < 1 || line.time > kLatestTime) return std::nullopt;
    if (json["kind"] == "winner")
      line.content = row_from(fields, json);
    else if (json["kind"] == "block")
      line.content = block_from(fields, json);
    else
      return std::nullopt;
    return line;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string repair_lines(const std::string& path) {
  const Text text(path, 0, 0);
  if (!text.refusal.empty()) return text.refusal;
  std::string right;
  for_each_line(text.bytes, [&](const std::string& line) {
    if (winner_line(line)) right += line + "\n";
  });
  const std::string fresh = path + kDraft;
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return std::strerror(errno);
  const bool done = write_all(file, right) && rename(fresh.c_str(), path.c_str()) == 0;
  const std::string why = done ? "" : std::strerror(errno);
  close(file);
  if (!done) unlink(fresh.c_str());
  return why;
}

bool is_line_file(const std::string& path) {
  static const std::regex form(R"(winners-[A-Za-z0-9._]{1,64}-\d{1,10}-[0-9a-f]{16}\.jsonl)");
  return std::regex_match(std::filesystem::path(path).filename().string(), form);
}

bool is_line_draft(const std::string& path) { return path.ends_with(kDraft) && is_line_file(path.substr(0, path.size() - std::strlen(kDraft))); }

std::vector<std::string> line_files(const std::string& dir) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(dir, ignored), end; !ignored && entry != end; entry.increment(ignored))
    if (is_line_file(entry->path().string())) files.push_back(entry->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

const NewestLines::File& NewestLines::read(const std::string& path) {
  File& known = files_[path];
  const Text text(path, known.inode, known.bytes);
  known.refusal = text.refusal;
  if (!known.refusal.empty()) return known;
  if (text.anew) known = {.inode = text.inode};
  const size_t whole = for_each_line(text.bytes, [&](const std::string& one) {
    ++known.lines;
    if (std::optional<WinnerLine> line = winner_line(one))
      take(path, std::move(*line));
    else
      known.wrong.push_back(known.lines);
  });
  known.bytes += static_cast<int64_t>(whole);  // what follows is being written, or its writer was killed
  return known;
}

void NewestLines::take(const std::string& path, WinnerLine line) {
  newest_ = std::max(newest_, line.time);
  const auto keep = [&](auto& known, auto key, auto value) {
    const std::pair time(line.time, path);
    auto [at, is_new] = known.try_emplace(std::move(key));
    if (is_new || at->second.time <= time) at->second = {time, std::move(value)};
  };
  if (auto* row = std::get_if<Store::Row>(&line.content)) {
    Key key{row->winner.env_key, row->winner.spec_key, row->winner.bucket};
    keep(rows_, std::move(key), std::move(*row));
  } else {
    auto& block = std::get<Store::Block>(line.content);
    BlockKey key{block.env_key, block.spec_key, block.config.canonical_json()};
    keep(blocks_, std::move(key), std::move(block));
  }
}

void NewestLines::take_oldest(const std::vector<Store::Row>& rows, const std::vector<Store::Block>& blocks) {
  std::erase_if(rows_, [](const auto& one) { return one.second.time.first == 0; });
  std::erase_if(blocks_, [](const auto& one) { return one.second.time.first == 0; });
  for (const Store::Row& row : rows) rows_.try_emplace({row.winner.env_key, row.winner.spec_key, row.winner.bucket}, Timed<Store::Row>{{}, row});
  for (const Store::Block& block : blocks) blocks_.try_emplace({block.env_key, block.spec_key, block.config.canonical_json()}, Timed<Store::Block>{{}, block});
}

namespace {

bool admits(const RowFilter& filter, const std::string& env_key, const std::string& spec_key) {
  return (filter.env_key.empty() || filter.env_key == env_key) && (filter.spec_key.empty() || filter.spec_key == spec_key);
}

}  // namespace

std::vector<Store::Row> NewestLines::rows(const RowFilter& filter) const {
  std::vector<Store::Row> found;
  for (const auto& [key, one] : rows_)
    if (admits(filter, std::get<0>(key), std::get<1>(key))) found.push_back(one.value);
  return found;
}

std::vector<Store::Block> NewestLines::blocks(const RowFilter& filter) const {
  std::vector<Store::Block> found;
  for (const auto& [key, one] : blocks_)
    if (admits(filter, std::get<0>(key), std::get<1>(key))) found.push_back(one.value);
  return found;
}

WinnerLines::WinnerLines(std::string dir, Problems& problems) : dir_(std::move(dir)), problems_(problems) {}
WinnerLines::~WinnerLines() { close_own(); }

// As a database is made when it is opened: whoever merges a directory sees that it is a store, also of a session that had nothing to store.
bool WinnerLines::usable() {
  std::lock_guard lock(mutex_);
  if (line_files(dir_).empty() && open_own("").empty()) sync_directory(dir_);
  return access(dir_.c_str(), R_OK | X_OK) == 0;
}

std::vector<std::optional<Store::Row>> WinnerLines::rows(const RowFilter& filter) {
  std::lock_guard lock(mutex_);
  refresh();
  const std::vector<Store::Row> found = newest_.rows(filter);
  return {found.begin(), found.end()};
}

std::vector<std::optional<Store::Block>> WinnerLines::blocks(const RowFilter& filter) {
  std::lock_guard lock(mutex_);
  refresh();
  const std::vector<Store::Block> found = newest_.blocks(filter);
  return {found.begin(), found.end()};
}

Choices WinnerLines::choices(const Environment& own, const std::string& generator, const std::string& spec_key) {
  std::lock_guard lock(mutex_);
  refresh();
  return {candidates(own, generator, newest_.rows({spec_key, ""})), 0};
}

int64_t WinnerLines::count() {
  std::lock_guard lock(mutex_);
  refresh();
  return newest_.count();
}

bool WinnerLines::put(const Content& content) {
  std::lock_guard lock(mutex_);
  refresh();
  return append(content);
}

bool WinnerLines::change(const std::function<Content(const Content& held)>& change) {
  std::lock_guard lock(mutex_);
  refresh();
  return append(change({newest_.rows(), newest_.blocks()}));
}

// What other processes wrote since the last call.
void WinnerLines::refresh() {
  const std::string database = dir_ + "/winners.db";
  if (const std::optional<FileStamp> stamp = stamp_of(database); stamp && stamp != database_) {
    database_ = stamp;
    try {
      const Source source = read_source(database);
      newest_.take_oldest(source.content.rows, source.content.blocks);
      for (const std::string& problem : source.problems) problems_.say(problem);
    } catch (const Error& error) {
      problems_.say(error.what());
    }
  }
  for (const std::string& path : line_files(dir_)) {
    std::string refusal = distrust(path, PathKind::file);
    bool damaged = false;
    if (refusal.empty()) {
      const NewestLines::File& file = newest_.read(path);
      refusal = file.refusal;
      damaged = !file.wrong.empty();
    }
    if (!refusal.empty()) problems_.say(fmt::format("{} is not read: {}", path, refusal));
    if (damaged) problems_.say(fmt::format("{} holds lines that do not match their sha256 (damaged, edited by hand or of another version); they are ignored, tune those buckets again or import them from an exported table", path));
  }
}

bool WinnerLines::append(const Content& content) {
  std::vector<WinnerLine> lines;
  const int64_t time = std::max(now_us(), newest_.newest() + 1);
  for (const Store::Row& row : content.rows) lines.push_back({time, row});
  for (const Store::Block& block : content.blocks) lines.push_back({time, block});
  if (lines.empty()) return true;
  std::string text;
  for (const WinnerLine& line : lines) text += to_text(line);
  if (const std::string why = write(text, lines.size() > 1); !why.empty()) {
    problems_.say(fmt::format("{} takes no winners: {}; new results are kept in memory only", dir_, why));
    return false;
  }
  for (WinnerLine& line : lines) newest_.take(own_path_, std::move(line));  // it may be that the file cannot be read again
  return true;
}

// Several lines come as a file that gets its name when they are written: all of them or none. A file whose write failed is not written again, since what was lost of it cannot be known; one more
// attempt goes to a new one.
std::string WinnerLines::write(const std::string& text, bool several) {
  std::string why;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (several) close_own();
    const std::string draft = several ? kDraft : "";
    why = open_own(draft);
    struct stat before {};
    if (!why.empty() || fstat(file_, &before) != 0) continue;
    if (write_all(file_, text) && (draft.empty() || rename((own_path_ + draft).c_str(), own_path_.c_str()) == 0)) {
      if (before.st_size == 0) sync_directory(dir_);
      return "";
    }
    why = std::strerror(errno);
    if (!draft.empty()) unlink((own_path_ + draft).c_str());
    else if (ftruncate(file_, before.st_size) != 0) why += fmt::format(", and {} ends in the middle of a line", own_path_);
    close_own();
  }
  return why;
}

std::string WinnerLines::open_own(const std::string& draft) {
  struct stat info {};
  if (file_ >= 0 && owner_ == getpid() && stat(own_path_.c_str(), &info) == 0 && info.st_ino == own_inode_) return "";
  close_own();
  std::random_device random;
  own_path_ = fmt::format("{}/winners-{}-{}-{:08x}{:08x}.jsonl", dir_, host_name(), getpid(), random(), random());
  file_ = open((own_path_ + draft).c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file_ < 0 || fstat(file_, &info) != 0) return std::strerror(errno);
  own_inode_ = info.st_ino;
  owner_ = getpid();
  return "";
}

void WinnerLines::close_own() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

}  // namespace pagetune
