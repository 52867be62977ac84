// Rows that no build of pagetune writes: damaged, edited by hand, or forged. Each file's rows are checked by what stands in them alone.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pagetune {

struct WrongRow {
  std::string table;
  int64_t rowid = 0;
  std::string row;     // for people: "8x4096 of spec 0123456789ab on environment …"
  std::string reason;  // one sentence
};

// Winners that do not match their digest, their environment or their spec, whose interval or text cannot be, or whose config this build's space does not admit although they were measured in it
// (another space's are merely not served); environments and specs whose text does not fit their key; blocklist entries that are none.
std::vector<WrongRow> wrong_winner_rows(SQLite::Database&);
// Binaries whose key or kind is of no known form or whose size is wrong; with `bytes`, also those whose bytes do not match their sha256.
std::vector<WrongRow> wrong_binary_rows(SQLite::Database&, bool bytes);
// Calls whose keys do not fit their texts.
std::vector<WrongRow> wrong_untuned_rows(SQLite::Database&);

void remove_rows(SQLite::Database&, const std::vector<WrongRow>&);

}  // namespace pagetune
