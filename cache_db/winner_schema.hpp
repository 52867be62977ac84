// winners.db as tables: the schema of this build, and the one before it, which is read and upgraded.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <string>

#include "cache_db/database.hpp"

namespace pagetune {

inline constexpr int kWinnersVersion = 2;

// Upgrades version 1.
Schema winners_schema();

// "SELECT … FROM …" of all winners with their texts, whichever of the two versions the file has: the columns of WinnerColumn in their order. `spec` is an alias in it, to be used by a WHERE clause.
std::string winners_query(SQLite::Database&);
enum WinnerColumn {
  kEnvKey, kSpecKey, kBatch, kLen, kConfig, kMedian, kCiLow, kCiHigh, kSamples, kDefault, kRunnerUp, kRunnerUpUs, kTied, kReason, kError, kFloor, kPolicyHash, kSpaceHash, kGeneratorHash, kSession, kDigest,
  kEnvJson, kSpecJson, kRowId,  // the texts are NULL where the row's environment or spec is missing
};
// The columns of env, spec and blocklist in which keys stand.
struct KeyColumns {
  const char *env, *spec, *blocked_env;
};
KeyColumns key_columns(SQLite::Database&);

// ", GROUP_SIZE, HEAD_DIM, …"
std::string dispatch_columns(const char* separator = ", ");

}  // namespace pagetune
