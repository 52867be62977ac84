// The winners of another machine or user: read without a lock or a trace, and taken as data from outside.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache_db/merge.hpp"

namespace pagetune {

inline constexpr int64_t kLargestSource = int64_t{256} << 20;  // bytes of a file
inline constexpr int64_t kMostSourceRows = 100'000;            // winners; likewise blocked configs
inline constexpr int kLongestSourceRow = 32 << 10;             // bytes of a row with its environment and spec

struct Source {
  MergeSource content;
  std::vector<std::string> problems;  // rows that were left out, one sentence for each cause
  bool damaged = false;               // some do not match their digest
};

// path: a store's directory, its winners.db or one of its files of lines (cache_db/winner_lines.hpp). spec_key: only the winners of that spec, and no integrity check of the whole file; empty: everything. Error io with a sentence if nothing of it can
// be taken: no such file, too large, in the middle of a write, damaged, or not winners of this schema.
Source read_source(const std::string& path, const std::string& spec_key = "");

// Why a row from outside is not taken, beyond what its digest says; empty if it is: a config that the space does not admit, an interval that is none, text that is not
// printable UTF-8.
std::string row_refusal(const Store::Row&);
// Of it, what no change of the space can heal: the interval and the text.
std::string form_refusal(const Winner&);

// Of the form that env_key, spec_key and a binary's key have: 64 hexadecimal digits.
bool is_key(const std::string&);

}  // namespace pagetune
