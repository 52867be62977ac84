#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "cache_db/binary_table.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/file_system.hpp"
#include "cache_db/garbage.hpp"
#include "tuner/cli/check.hpp"
#include "tuner/cli/store_summary.hpp"

namespace pagetune::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFewInodes = 16;  // the three files, their journals and what is set aside

// The directory itself, or where it would be made.
fs::path existing_part(const fs::path& dir) {
  fs::path path = dir;
  struct stat info {};
  while (stat(path.c_str(), &info) != 0 && path != path.parent_path()) path = path.parent_path();
  return path;
}

std::string owner_name(uid_t user) {
  const passwd* entry = getpwuid(user);
  return entry != nullptr ? entry->pw_name : fmt::format("user {}", user);
}

Check check_directory(const std::string& dir, const std::string& rule) {
  Check check{.what = "cache directory"};
  check.facts = {{"path", dir}, {"rule", rule}};
  if (dir == kMemory) {
    check.level = rule == "none" ? Level::warning : Level::ok;
    check.found = fmt::format("none ({}): results are kept in memory and lost with each process", rule == "none" ? "neither PAGETUNE_CACHE_DIR, XDG_CACHE_HOME nor HOME names one" : "by " + rule);
    check.remedy = rule == "none" ? "set PAGETUNE_CACHE_DIR to a directory of your own" : "";
    return check;
  }
  struct stat info {};
  const bool exists = stat(dir.c_str(), &info) == 0;
  check.facts["exists"] = exists;
  check.found = fmt::format("{} (by {}), ", dir, rule);
  if (!exists) {
    const fs::path parent = existing_part(dir);
    check.found += "not there yet";
    if (access(parent.c_str(), W_OK | X_OK) != 0) {
      check.level = Level::error;
      check.found += fmt::format(" and cannot be made in {}: {}", parent.string(), std::strerror(errno));
      check.remedy = "set PAGETUNE_CACHE_DIR to a directory of your own; until then results are kept in memory only";
    }
    return check;
  }
  check.facts["owner"] = info.st_uid;
  check.facts["mode"] = fmt::format("{:04o}", info.st_mode & 07777);
  check.found += fmt::format("of {}, mode {:04o}", owner_name(info.st_uid), info.st_mode & 07777);
  if (const std::string reason = distrust(dir, PathKind::directory); !reason.empty()) {
    check.level = Level::error;
    check.found += "; it is not used: " + reason;
    check.remedy = fmt::format("make it yours alone (chown, chmod 700 {}), or set PAGETUNE_CACHE_DIR to a directory of your own", dir);
  } else if (access(dir.c_str(), W_OK | X_OK) != 0) {
    check.level = Level::warning;
    check.found += fmt::format("; nothing can be written there ({}): what it holds is used, new results are kept in memory only", std::strerror(errno));
    check.remedy = fmt::format("chmod u+rwx {}, or set PAGETUNE_CACHE_DIR to a directory that can be written, if new results are to be kept", dir);
  }
  return check;
}

Check check_file_system(const std::string& dir, const StoreReport& report) {
  Check check{.what = "file system"};
  const std::optional<FileSystem> system = file_system_of(existing_part(dir).string());
  if (!system) {
    check.level = Level::warning;
    check.found = fmt::format("it cannot be asked: {}", std::strerror(errno));
    check.remedy = fmt::format("look at {} and at what is mounted there", dir);
    return check;
  }
  check.facts = {{"type", system->kind.name}, {"network", system->kind.network}, {"read_only", system->read_only}, {"free_bytes", system->free_bytes}};
  if (system->free_inodes) check.facts["free_inodes"] = *system->free_inodes;
  check.found = fmt::format("{}, {} free", system->kind.name, bytes_text(system->free_bytes));
  if (system->free_inodes) check.found += fmt::format(", {} inodes free", *system->free_inodes);
  if (system->kind.name == "tmpfs" || system->kind.name == "ramfs") check.found += "; it is lost when the machine or the container ends";
  std::vector<std::string> remedies;
  const auto warn = [&](const std::string& found, const std::string& remedy) {
    check.level = Level::warning;
    check.found += "; " + found;
    remedies.push_back(remedy);
  };
  if (system->kind.network)
    warn("its file locks cannot be relied on: winners are kept as lines of each process, and what is compiled may be lost", "nothing if it works well; a local disk is safer and faster: share results by pagetune merge or export");
  const int64_t to_grow = std::max<int64_t>(0, kMostBinaryBytes - report.kernels_db.bytes);
  if (system->read_only) {
    warn("it is mounted read-only: what it holds is used, new results are kept in memory only", "set PAGETUNE_CACHE_DIR to a directory that can be written, if new results are to be kept");
  } else if (system->free_bytes < to_grow) {
    warn(fmt::format("kernels.db may still grow by {}", bytes_text(to_grow)), "free some space: pagetune gc --max-bytes removes binaries that were not used for long");
  } else if (system->free_inodes && *system->free_inodes < kFewInodes) {
    warn("hardly a file can be made there", "remove files from it");
  }
  for (const std::string& remedy : remedies) check.remedy += (check.remedy.empty() ? "" : "; ") + remedy;
  return check;
}

Check check_file(const FileReport& file) {
  Check check{.what = fs::path(file.path).filename().string(), .facts = file_json(file)};
  switch (file.state) {
    case FileState::missing:
      check.found = "not there yet: the first result makes it";
      break;
    case FileState::sound:
      check.found = fmt::format("schema {}, {}", file.schema_version, bytes_text(file.bytes));
      if (!file.wrong.empty()) {
        check.level = Level::error;
        check.found += fmt::format("; {} wrong and not used, the first: {} {}: {}", file.wrong.size() == 1 ? "1 row is" : fmt::format("{} rows are", file.wrong.size()), file.wrong.front().table, file.wrong.front().row,
                                   file.wrong.front().reason);
        check.remedy = "pagetune verify lists them, pagetune verify --repair removes them";
      } else if (!file.why.empty()) {
        check.level = Level::warning;
        check.found += "; " + file.why;
        check.remedy = "nothing: look again when no process uses the store";
      }
      break;
    case FileState::unfinished:
      check.level = Level::warning;
      check.found = file.why;
      check.remedy = "nothing: look again when no process uses the store";
      break;
    case FileState::refused:
      check.level = Level::error;
      check.found = "it is not used: " + file.why;
      check.remedy = fmt::format("move {} away, or take away what is said of it; until then results are kept in memory only", file.path);
      break;
    case FileState::damaged:
      check.level = Level::error;
      check.found = fmt::format("damaged: {}", file.why);
      check.remedy = "pagetune verify --repair sets it aside and keeps the winners that can be read";
      break;
  }
  return check;
}

bool is_key_of(const std::string& key, const std::vector<Environment>& devices) {
  return std::any_of(devices.begin(), devices.end(), [&](const Environment& device) { return device.key() == key; });
}

// The devices of this machine that have no winners of their own and are of the same kind as those of an environment that is not here.
bool is_like_here(const Environment& elsewhere, const std::map<std::string, WinnerCount>& counts, const std::vector<Environment>& devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const Environment& device) { return device.device == elsewhere.device && device.arch == elsewhere.arch && !counts.contains(device.key()); });
}

Check check_winners(const WinnerCount& count, bool here, bool like_here) {
  Check check{.what = "winners"};
  check.facts = {{"environment", count.env_key}, {"device", count.environment.device}, {"here", here}, {"winners", count.winners}, {"current", count.current}, {"other_generator", count.generator},
                 {"other_space", count.space}, {"other_policy", count.policy}, {"blocked", count.blocked}};
  check.found = fmt::format("{} of {}, {}", counted(count.winners, "winner"), count.environment.text(), here ? "which is this machine's" : "which is not here");
  const auto warn = [&](const std::string& found, const char* remedy) {
    check.level = Level::warning;
    check.found += "; " + found;
    check.remedy = remedy;
  };
  if (here && count.current < count.winners)
    warn(fmt::format("{} were measured with another kernel generator ({}), config space ({}) or measuring policy ({}): unconfirmed, but used", count.winners - count.current, count.generator, count.space,
                     count.policy),
         "pagetune tune on the same models measures them again");
  if (here && count.blocked > 0)
    warn(fmt::format("{} name kernels that were found wrong or crashing since and do not answer", count.blocked), "pagetune tune on the same models finds others");
  if (like_here)
    warn("a device of this machine is of that kind, but its driver, compiler or clocks differ, so that they do not answer", "pagetune tune on the same models measures them for this machine");
  return check;
}

std::vector<Check> check_all_winners(const StoreReport& report, const std::vector<Environment>& devices) {
  std::map<std::string, WinnerCount> counts;  // by environment
  for (const WinnerCount& count : count_winners(report)) {
    const auto [at, is_new] = counts.emplace(count.env_key, count);
    if (!is_new) at->second += count;
  }
  std::vector<Check> checks;
  for (const auto& [key, count] : counts) {
    const bool here = is_key_of(key, devices);
    checks.push_back(check_winners(count, here, !here && is_like_here(count.environment, counts, devices)));
  }
  if (checks.empty()) checks.push_back({.what = "winners", .found = "none", .remedy = "pagetune tune finds them; until then analytic defaults answer"});
  return checks;
}

// What was damaged before and has been replaced.
void check_set_aside(const std::string& dir, std::vector<Check>& checks) {
  int files = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) files += set_aside_time(entry.path().filename().string()) ? 1 : 0;
  if (files == 0) return;
  checks.push_back({Level::warning, "damage before", fmt::format("{} set aside as damaged lie in {}", counted(files, "file"), dir),
                    fmt::format("look at the disk if this happens again; pagetune gc removes them after {} days", kKeptDays), {{"files", files}}});
}

Check check_untuned(const StoreReport& report, const std::vector<Environment>& devices) {
  Check check{.what = "untuned calls"};
  const std::vector<Store::Untuned> waiting = waiting_calls(report);
  const auto here = std::count_if(waiting.begin(), waiting.end(), [&](const Store::Untuned& call) { return is_key_of(call.environment.key(), devices); });
  check.facts = {{"buckets", waiting.size()}, {"here", here}};
  check.found = waiting.empty() ? "none wait" : fmt::format("{} called without a current winner, {} of them on this machine's devices", counted(std::ssize(waiting), "bucket"), here);
  if (here > 0) {
    check.level = Level::warning;
    check.remedy = "pagetune tune --from-untuned tunes them";
  }
  return check;
}

}  // namespace

std::vector<Check> store_checks(const std::string& dir, const std::string& rule, const std::vector<Environment>& devices) {
  std::vector<Check> checks{check_directory(dir, rule)};
  if (dir == kMemory) return checks;
  const StoreReport report = inspect_store(dir);
  checks.push_back(check_file_system(dir, report));
  for (const FileReport* file : report.files()) checks.push_back(check_file(*file));
  check_set_aside(dir, checks);
  for (Check& check : check_all_winners(report, devices)) checks.push_back(std::move(check));
  checks.push_back(check_untuned(report, devices));
  return checks;
}

}  // namespace pagetune::cli
