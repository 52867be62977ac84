#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache_db/binary_archive.hpp"
#include "cache_db/source.hpp"
#include "cache_db/table_source.hpp"
#include "cache_db/winner_lines.hpp"
#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/take_in.hpp"
#include "tuner/cli/verbs.hpp"
#include "tuner/cli/workset.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ImportArguments {
  std::vector<std::string> files;
  bool binaries = false;
  bool json = false;
};

bool is_database(const fs::path& path) {
  constexpr char kMagic[] = "SQLite format 3";
  char begin[sizeof kMagic] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  return path.extension() == ".db" || std::equal(std::begin(kMagic), std::end(kMagic), begin);
}

MergeSource read_whole(const fs::path& path) {
  std::error_code ignored;
  const bool directory = fs::is_directory(path, ignored);
  if (directory && !fs::exists(path / "winners.db", ignored) && line_files(path.string()).empty())
    throw Error(ErrorCode::io, fmt::format("{} is a directory without winners: to take in exported tables, name the files, for example {}/*.json", path.string(), path.string()));
  if (!directory && !is_database(path) && !is_line_file(path.string())) return read_table(path.string());
  Source source = read_source(path.string());
  if (!source.problems.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}; nothing of this file is taken in (pagetune merge takes in the rest)", fmt::join(source.problems, "; ")));
  return std::move(source.content);
}

struct Files {
  std::vector<MergeSource> contents;
  std::vector<Binary> binaries;
  Json report = Json::array();  // one entry per file of the command line
  bool complete = true;
};

Files read_files(const std::vector<std::string>& paths) {
  Files all;
  for (const std::string& path : paths) {
    try {
      if (is_binary_archive(path)) {
        std::vector<Binary> binaries = read_binary_archive(path);
        all.report.push_back({{"path", path}, {"binaries", binaries.size()}});
        std::move(binaries.begin(), binaries.end(), std::back_inserter(all.binaries));
        continue;
      }
      MergeSource content = read_whole(path);
      all.report.push_back({{"path", path}, {"winners", content.rows.size()}, {"blocked", content.blocks.size()}});
      all.contents.push_back(std::move(content));
    } catch (const Error& refused) {
      fmt::print(stderr, "{}\n", refused.what());
      all.complete = false;
      all.report.push_back({{"path", path}, {"error", refused.what()}});
    }
  }
  return all;
}

std::vector<Environment> environments_here() {
  std::vector<Environment> found;
  for (const auto& device : devices_here("winners of it count as not of this machine")) found.push_back(device->environment());
  return found;
}

std::string difference(const Environment& there, const std::vector<Environment>& here) {
  const auto like = std::find_if(here.begin(), here.end(), [&](const Environment& one) { return one.device == there.device; });
  if (like == here.end()) return "no device here has this name";
  const Json a = Json::parse(there.canonical_json()), b = Json::parse(like->canonical_json());
  std::string text;
  for (const auto& [name, value] : a.items())
    if (name != "memory_bytes" && value != b.at(name)) text += fmt::format("{}{} {}, here {}", text.empty() ? "" : ", ", name, value.dump(), b.at(name).dump());
  return "the device of this name here differs: " + text;
}

// Environments of the rows that are not of a device here, with their numbers of winners and the reason.
Json strangers(const std::vector<MergeSource>& contents, const std::vector<Environment>& here) {
  std::set<std::string> keys;
  for (const Environment& environment : here) keys.insert(environment.key());
  std::map<std::string, std::pair<Environment, int>> found;
  for (const MergeSource& source : contents)
    for (const Store::Row& row : source.rows)
      if (!keys.contains(row.winner.env_key)) ++found.try_emplace(row.winner.env_key, row.environment, 0).first->second.second;
  Json entries = Json::array();
  for (const auto& [key, entry] : found)
    entries.push_back({{"env", key}, {"environment", Json::parse(entry.first.canonical_json())}, {"winners", entry.second}, {"why", difference(entry.first, here)}});
  return entries;
}

// Buckets of the files in which a row that the store held before is the better one.
int kept_buckets(const std::vector<MergeSource>& contents, const Merged& merged) {
  using Key = std::tuple<std::string, std::string, Bucket>;
  const auto key_of = [](const Winner& w) { return Key{w.env_key, w.spec_key, w.bucket}; };
  std::map<Key, const Winner*> standing;
  for (const Store::Row& row : merged.rows) standing[key_of(row.winner)] = &row.winner;
  std::map<Key, bool> taken;
  for (const MergeSource& source : contents)
    for (const Store::Row& row : source.rows) taken[key_of(row.winner)] |= *standing.at(key_of(row.winner)) == row.winner;
  return static_cast<int>(std::count_if(taken.begin(), taken.end(), [](const auto& entry) { return !entry.second; }));
}

void require_leave_for_code(const ImportArguments& arguments) {
  for (const std::string& path : arguments.files)
    if (!arguments.binaries && is_binary_archive(path))
      throw UsageError(fmt::format("{} holds compiled binaries, which your programs will run: who wrote it decides what they do. If you trust it, say --binaries; nothing was taken in", path));
}

// How many were new.
int add_binaries(Store& store, const std::vector<Binary>& binaries) {
  const std::optional<int> added = store.add_binaries(binaries);
  print_problems(store);
  if (!added) throw Error(ErrorCode::io, fmt::format("the store '{}' could not be written: no binary was taken in", store.dir()));
  return *added;
}

// Says which winners answer nothing here.
void print_strangers(const Json& elsewhere) {
  for (const Json& one : elsewhere) {
    const Json& environment = one["environment"];
    fmt::print(stderr, "not of this machine, and kept: {} of {} ({}, driver {}, {}), for {}\n", counted(one["winners"].get<size_t>(), "winner"), environment["device"].dump(), environment["arch"].dump(),
               environment["driver"].dump(), environment["compiler"].dump(), one["why"].get<std::string>());
  }
}

int run_import(const ImportArguments& arguments) {
  require_leave_for_code(arguments);
  const Files files = read_files(arguments.files);
  if (files.contents.empty() && files.binaries.empty()) throw Error(ErrorCode::invalid_argument, "no file could be taken in");
  const auto store = Store::open();
  const int added = files.binaries.empty() ? 0 : add_binaries(*store, files.binaries);
  TakenIn taken{store->dir(), {}, 0};
  if (!files.contents.empty()) taken = take_in("", files.contents);
  const Json elsewhere = files.contents.empty() ? Json::array() : strangers(files.contents, environments_here());
  const int kept = kept_buckets(files.contents, taken.merged);
  print_strangers(elsewhere);
  if (arguments.json) {
    Json document{{"store", taken.store}, {"files", files.report}, {"not_here", elsewhere}, {"kept_buckets", kept}, {"added_binaries", added}};
    document.update(taken_json(taken));
    fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_conflicts(taken.merged.conflicts);
    if (!files.contents.empty())
      fmt::print("{} taken into {}: {} new and {} replaced; in {} the store's own is the better one; {}\n", counted(files.contents.size(), "file"), taken.store, counted(static_cast<size_t>(taken.merged.added), "winner"),
                 taken.merged.replaced, counted(static_cast<size_t>(kept), "bucket"), counted(taken.merged.conflicts.size(), "conflict"));
    if (!files.binaries.empty())
      fmt::print("{} read for {}: {} new, {} there before\n", counted(static_cast<int64_t>(files.binaries.size()), "binary", "binaries"), taken.store, added, files.binaries.size() - static_cast<size_t>(added));
  }
  return files.complete ? kDone : kPartly;
}

}  // namespace

void add_import(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* verb = app.add_subcommand("import", "Take winners into the store: exported JSON tables, and winners.db files or directories; with --binaries also compiled binaries. Of each file all or nothing");
  verb->add_option("files", arguments->files, "Tables, winners.db and archives of binaries as pagetune export writes them, or directories of stores")->required();
  verb->add_flag("--binaries", arguments->binaries, "Take in archives of compiled binaries too. They are code, which your programs will run: only of whom you trust");
  verb->add_flag("--json", arguments->json, "Print one JSON document");
  verb->callback([=, &run] { run = [=] { return run_import(*arguments); }; });
}

}  // namespace pagetune::cli
