// What the files of a store hold, found without opening the store: nothing is made, repaired, replayed or set aside.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <SQLiteCpp/SQLiteCpp.h>

#include "cache_db/store.hpp"
#include "cache_db/wrong_rows.hpp"

namespace pagetune {

enum class FileState : unsigned char {
  missing,     // made when there is something to store
  sound,
  unfinished,  // in the middle of a write, of a running process or of one that was killed: its rows cannot be told
  refused,     // not the store's to use: a link, another owner's, another program's, another schema version's
  damaged,
};
const char* name_of(FileState);

struct FileReport {
  std::string path;
  FileState state = FileState::missing;
  std::string why;             // one sentence: of sound ones, what is not counted; empty if nothing
  int64_t bytes = 0;
  int64_t free_bytes = 0;      // of them, in pages that nothing uses
  int schema_version = 0;      // 0 if it could not be read
  std::vector<WrongRow> wrong; // of sound ones
};

struct StoredBinary {
  std::string key, arch, kind;
  int64_t size = 0, last_used_day = 0;  // bytes; days since 1970
  bool operator==(const StoredBinary&) const = default;
};
std::vector<StoredBinary> read_binaries(SQLite::Database&);  // sorted by last use

struct StoreReport {
  FileReport winners_db, kernels_db, untuned_db;
  std::vector<FileReport> lines;       // see cache_db/winner_lines.hpp
  std::vector<Store::Row> rows;        // those that are right and that the store serves, sorted by (environment, spec, bucket); of a damaged file, what could be read of them
  std::vector<Store::Block> blocks;    // likewise
  std::vector<StoredBinary> binaries;
  std::vector<Store::Untuned> untuned;
  std::vector<const FileReport*> files() const {
    std::vector<const FileReport*> all{&winners_db, &kernels_db, &untuned_db};
    for (const FileReport& file : lines) all.push_back(&file);
    return all;
  }
};

// dir: of a store, which need not be there. `hash_binaries`: also compare the bytes of every binary with their sha256.
StoreReport inspect_store(const std::string& dir, bool hash_binaries = false);

}  // namespace pagetune
