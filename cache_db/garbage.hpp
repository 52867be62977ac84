// What a store holds and nobody needs: how it is found, and how it is taken out.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/inspection.hpp"
#include "cache_db/problems.hpp"

namespace pagetune {

struct GarbageRule {
  std::optional<int64_t> max_bytes;   // of binaries; nothing: kMostBinaryBytes
  std::optional<int64_t> idle_days;   // binaries that nobody used for longer go
  // Binaries of which this is false go: this build can never load them. May be empty. Not asked about damaged ones.
  std::function<bool(const Binary&)> loads;
};

struct Garbage {
  struct DroppedBinary {
    StoredBinary binary;
    std::string reason;
  };
  std::vector<DroppedBinary> binaries;
  std::vector<Store::Block> blocks;     // of other builds' kernels
  struct OldFile {
    std::string path;
    int64_t bytes = 0;
  };
  std::vector<OldFile> files;           // set aside as damaged longer ago than kKeptDays
  int64_t bytes = 0;                    // of disk, that were freed; in a dry run, of the binaries, old files and free pages
  bool complete = true;                 // all of it was taken out; if not, `problems` says why
};

inline constexpr int kKeptDays = 30;

// `remove` false: only says what would go; nothing on disk changes. Files that are damaged or not the store's are not touched.
Garbage collect_garbage(const std::string& dir, const GarbageRule&, bool remove, Problems&);

// When a file was set aside, by its name ("kernels.db.corrupt-20260102T030405Z", also with "-2" or "-journal" after it), in seconds since 1970. Nothing for any other name.
std::optional<int64_t> set_aside_time(const std::string& name);

}  // namespace pagetune
