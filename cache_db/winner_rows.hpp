// Rows of winners.db as they are written, and read and checked against their digests.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache_db/database.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

// Nothing if the row does not match its digest. Columns as in WinnerColumn.
std::optional<Winner> read_winner(SQLite::Statement& row);

// Does the seal over what dispatch reads of a winner stand in its row? Of a file of the version before, which has none: yes.
bool is_sealed(SQLite::Database&, int64_t rowid, const Winner&);

// Which rows are read: of a spec, of an environment; empty: of all.
struct RowFilter {
  std::string spec_key, env_key;
};
// Rows of a file of either version, at most `most`; -1: no limit. Nothing in the place of a row that does not match its digest, its environment or its spec.
std::vector<std::optional<Store::Row>> read_rows(SQLite::Database&, const RowFilter& = {}, int64_t most = -1);
// The same, put behind what is there already: if damage ends the reading, all before it are in `rows`.
void append_rows(SQLite::Database&, std::vector<std::optional<Store::Row>>& rows, const RowFilter& = {}, int64_t most = -1);
// The blocklist likewise. Nothing in the place of an entry that is not a config.
std::vector<std::optional<Store::Block>> read_blocks(SQLite::Database&, const RowFilter& = {}, int64_t most = -1);

// Writes rows, each with its environment and spec and in the place of an older one of its bucket. Within the caller's transaction, of which it must not outlive the end.
class RowWriter {
 public:
  explicit RowWriter(SQLite::Database& db);
  void put(const Store::Row&);

 private:
  int64_t environment_id(const std::string& key, const Environment&);
  int64_t spec_id(const std::string& key, const AttentionSpec&);
  int64_t text_id(const std::string& value);

  SQLite::Database& db_;
  SQLite::Statement insert_;
  std::unordered_map<std::string, int64_t> environments_, specs_, texts_;
};

void write_block(SQLite::Database&, const Store::Block&);
// Those of the rows and blocks whose place in the file is empty.
void write_missing(SQLite::Database&, const std::vector<Store::Row>&, const std::vector<Store::Block>&);

// Reads all of a file of the version before; the result writes it into a database with the tables of this version. Rows that do not match their digest stay behind.
Schema::Upgrade::Content rewritten_winners(SQLite::Database& old);

}  // namespace pagetune
