// A winner's measured part as JSON: the body of an exported bucket, and what the digest of a stored row covers.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "cache_db/store.hpp"

namespace pagetune {

// Everything but env_key, spec_key and bucket. Doubles are written so that reading gives back the same bits.
nlohmann::ordered_json winner_to_json(const Winner&);

// Inverse. `where` names file and bucket in messages. Error invalid_argument: an unknown or missing key, a wrong type, a number that is
// not finite or negative.
Winner winner_from_json(const nlohmann::json&, const std::string& where);

// sha256 over the keys, the bucket and the measured part: a row with a flipped bit is told from a good one.
std::string winner_digest(const Winner&);

// Error invalid_argument unless every number is finite and the bucket lies on the grid.
void check_winner(const Winner&, const std::string& where);

// The bucket of a stored batch and length, which are those of a cell of the grid; nothing for any others.
std::optional<Bucket> bucket_of_sizes(int64_t batch, int64_t len);

// "4x1024" as Bucket::text() writes it; nothing for any other text.
std::optional<Bucket> bucket_from_text(const std::string&);

}  // namespace pagetune
