// winners.db as tables: the schema, and rows as they are written, and read and checked against their digests.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/database.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

inline constexpr const char* kEnvColumns =
    "env_id, backend, device, arch, cpu_features, processors, memory_bus_bits, memory_clock_khz, l2_bytes, clock_khz, ecc, driver, "
    "compiler, memory_bytes, json";
inline constexpr const char* kWinnerColumns =
    "env_id, spec_key, batch, len, config, median_us, ci_low_us, ci_high_us, samples, default_us, runner_up, runner_up_us, tied, reason, "
    "error, floor_us, policy_hash, space_hash, generator_hash, session, digest";
// ", GROUP_SIZE, HEAD_DIM, …"
std::string dispatch_columns(const char* separator = ", ");
Schema winners_schema();

// Nothing if the row does not match its digest. Columns as in kWinnerColumns.
std::optional<Winner> read_winner(SQLite::Statement& row);

// The winners of a spec in an environment. Nothing in the place of a row that does not match its digest.
std::vector<std::optional<Winner>> read_winners(SQLite::Database&, const std::string& env_key, const std::string& spec_key);

// The rows of a spec (empty: of all), at most `most`; -1: no limit. Nothing in the place of a row that does not match its digest, its environment or its spec.
std::vector<std::optional<Store::Row>> read_rows(SQLite::Database&, const std::string& spec_key = "", int64_t most = -1);
// The same, put behind what is there already: if damage ends the reading, all before it are in `rows`.
void append_rows(SQLite::Database&, std::vector<std::optional<Store::Row>>& rows, const std::string& spec_key = "", int64_t most = -1);
// The blocklist likewise. Nothing in the place of an entry that is not a config.
std::vector<std::optional<Store::Block>> read_blocks(SQLite::Database&, int64_t most = -1);

// Within the caller's transaction. A row with its environment and spec, in the place of an older one of its bucket.
void write_row(SQLite::Database&, const Store::Row&);
void write_block(SQLite::Database&, const Store::Block&);
// Those of the rows and blocks whose place in the file is empty.
void write_missing(SQLite::Database&, const std::vector<Store::Row>&, const std::vector<Store::Block>&);

}  // namespace pagetune
