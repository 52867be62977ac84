// What writer and reader of exported tables share.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

inline constexpr int kTableFormat = 1;
inline constexpr const char* kMetadataKey = "_metadata";
// Fields of a winner that are mostly the same in a whole table: they stand in _metadata, and in a bucket only where it differs.
inline constexpr const char* kSharedFields[] = {"policy_hash", "space_hash", "generator_hash", "session"};

// sha256 over environment, spec and winners, not over how the file is laid out. rows: of one environment and spec, sorted by bucket.
std::string table_digest(const std::vector<Store::Row>& rows);

}  // namespace pagetune
