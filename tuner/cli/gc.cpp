#include <fmt/format.h>

#include "cache_db/binary_table.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/garbage.hpp"
#include "runtime/build.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostLimit = uint64_t{1} << 50;

struct GcArguments {
  CareOptions care;
  uint64_t max_bytes = kMostBinaryBytes;
  int64_t older_than = -1;
  bool dry_run = false;
};

Json garbage_json(const std::string& dir, const GcArguments& arguments, const Garbage& garbage, const std::vector<std::string>& problems) {
  Json binaries = Json::array(), blocks = Json::array(), files = Json::array();
  for (const auto& [binary, reason] : garbage.binaries)
    binaries.push_back({{"key", binary.key}, {"arch", binary.arch}, {"kind", binary.kind}, {"bytes", binary.size}, {"last_used", date_text(binary.last_used_day)}, {"reason", reason}});
  for (const Store::Block& block : garbage.blocks) blocks.push_back({{"environment", block.env_key}, {"spec", block.spec_key}, {"config", Json::parse(block.config.canonical_json())}});
  for (const Garbage::OldFile& file : garbage.files) files.push_back({{"path", file.path}, {"bytes", file.bytes}});
  return {{"store", dir},         {"dry_run", arguments.dry_run}, {"complete", garbage.complete}, {"bytes", garbage.bytes}, {"binaries", binaries}, {"blocks", blocks}, {"files", files},
          {"problems", problems}};
}

void print(const GcArguments& arguments, const Garbage& garbage) {
  for (const auto& [binary, reason] : garbage.binaries)
    fmt::print("binary {} for {}, {}, last used {}: {}\n", binary.key.substr(0, 12), binary.arch, bytes_text(binary.size), date_text(binary.last_used_day), reason);
  for (const Store::Block& block : garbage.blocks) fmt::print("blocked config {} of spec {}: another build's kernel\n", block.config.canonical_json(), block.spec_key.substr(0, 12));
  for (const Garbage::OldFile& file : garbage.files) fmt::print("file {}, {}: set aside as damaged more than {} days ago\n", file.path, bytes_text(file.bytes), kKeptDays);
  int64_t bytes = 0;
  for (const auto& dropped : garbage.binaries) bytes += dropped.binary.size;
  fmt::print("{}{} of {}, {}, {}; {} of disk {}\n", arguments.dry_run ? "would remove " : "removed ", counted(std::ssize(garbage.binaries), "binary", "binaries"), bytes_text(bytes),
             counted(std::ssize(garbage.blocks), "blocked config"), counted(std::ssize(garbage.files), "old file"), bytes_text(garbage.bytes), arguments.dry_run ? "would be free, or about so" : "are free again");
}

int run_gc(const GcArguments& arguments) {
  const std::string dir = store_directory(arguments.care.store);
  GarbageRule rule;
  rule.max_bytes = static_cast<int64_t>(arguments.max_bytes);
  if (arguments.older_than >= 0) rule.idle_days = arguments.older_than;
  rule.loads = may_load;
  Problems problems;
  const Garbage garbage = dir == kMemory ? Garbage{} : collect_garbage(dir, rule, !arguments.dry_run, problems);
  for (const std::string& problem : problems.all()) fmt::print(stderr, "store: {}\n", problem);
  if (arguments.care.json) {
    fmt::print("{}\n", document_text(garbage_json(dir, arguments, garbage, problems.all())));
  } else if (dir == kMemory) {
    fmt::print("nothing is kept: there is no store to clean\n");
  } else {
    print(arguments, garbage);
  }
  if (garbage.complete) return kDone;
  return garbage.binaries.empty() && garbage.blocks.empty() && garbage.files.empty() ? kFailed : kPartly;
}

}  // namespace

void add_gc(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<GcArguments>();
  CLI::App* verb = app.add_subcommand("gc", "Remove what nobody needs from the store: old binaries, other builds' code and blocklist entries, damaged files set aside long ago");
  verb->add_option("--max-bytes", arguments->max_bytes, "Binaries may have so many bytes in all, 512M; those that were not used for longest go first")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{0}, kMostLimit))  // after the transformation, which takes -1 for 2^64 - 1
      ->capture_default_str();
  verb->add_option("--older-than", arguments->older_than, "Remove binaries that were not used for so many DAYS")->check(CLI::Range(int64_t{0}, int64_t{36'500}))->type_name("DAYS");
  verb->add_flag("--dry-run", arguments->dry_run, "Only say what would be removed; changes nothing");
  add_care_options(*verb, arguments->care);
  verb->callback([=, &run] { run = [=] { return run_gc(*arguments); }; });
}

}  // namespace pagetune::cli
