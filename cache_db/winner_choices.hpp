// What dispatch reads of winners.db: thousands of winners in milliseconds.
#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cache_db/store.hpp"

namespace pagetune {

// Covers what is read here of a row, as the digest covers all of it: a row with a flipped bit is told from a good one. XXH3 of the hashes of its texts and of its numbers. Against damage, not against forgery.
struct Sealed {
  uint64_t env_key, spec_key, config, runner_up, generator_hash;  // hash_of_text()
  int64_t batch, len;
  double median_us, ci_high_us, runner_up_us;
};
int64_t seal_of(const Sealed&);
uint64_t hash_of_text(std::string_view);

struct Choices {
  LayeredWinners winners;  // of each spec: several of one bucket where several environments of the class have it
  int damaged = 0;         // rows that do not match their seal or name what is not there
};
// spec_key: empty for all.
Choices read_choices(SQLite::Database&, const Environment& own, const std::string& generator, const std::string& spec_key = "");

}  // namespace pagetune
