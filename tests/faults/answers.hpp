// What a store must answer wherever it lies and whatever fails: from its files if they can be had, else from memory.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "../store_samples.hpp"

namespace pagetune {

// "" if the store keeps a winner, a block and a binary and gives them back; else what it does not do. What a file took that cannot be read any more may be missing, if something is said.
inline std::string wrong_answers(Store& store) {
  const Store::Row row = sample_row();
  put(store, row);
  store.block("e", "s", row.winner.config, "wrong");
  store.add_untuned({{row.environment, row.spec, row.winner.bucket, 1}});
  const bool in_file = store.usage().unstored == 0;
  const auto is_missing = [&](bool found) { return !found && (!in_file || store.problems().empty()); };
  const std::vector<Winner> winners = store.winners(row.winner.env_key, row.winner.spec_key);
  if (is_missing(std::count(winners.begin(), winners.end(), row.winner) == 1)) return "a winner is lost";
  const std::vector<Store::Row> all = store.all_winners();
  if (is_missing(std::any_of(all.begin(), all.end(), [&](const Store::Row& one) { return one.winner == row.winner && one.environment == row.environment && one.spec == row.spec; }))) return "a winner is not listed";
  if (is_missing(store.blocked("e", "s").size() == 1)) return "the blocklist is lost";
  int compiles = 0;
  for (int i = 0; i < 2; ++i) {
    const Binary got = store.get_or_compile(sample_binary("new").key, [&] {
      ++compiles;
      return sample_binary("new");
    });
    if (got.data != sample_binary("new").data) return "wrong code";
  }
  if (compiles > 1) return "compiled " + std::to_string(compiles) + " times";
  if (!store.find_binary(sample_binary("new").key)) return "the binary is lost";
  return "";
}

// What the helper's "publish" stores one after the other.
inline Store::Row published_row(int i) { return sample_row({i % Bucket::kBatchCells, Bucket::kMinLenLog2 + i % Bucket::kLenCells}); }
inline Binary published_binary(int i) { return sample_binary("kernel" + std::to_string(i), 50'000); }

}  // namespace pagetune
