// Store: winners and binaries in SQLite files of one directory. winners.db is small and precious, kernels.db large and re-creatable, untuned.db a hint.
// Nothing here throws for the state of the disk: what cannot be stored is kept in memory and said once (see problems()).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/binary.hpp"
#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/environment.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

struct MergeRule;    // cache_db/merge.hpp
struct MergeSource;
struct Merged;

struct Winner {
  std::string env_key;
  std::string spec_key;
  Bucket bucket;
  KernelConfig config;
  double median_us = 0, ci_low_us = 0, ci_high_us = 0;  // 95 % confidence interval of the median
  int samples = 0;
  double default_us = 0;              // the analytic default in the same race
  KernelConfig runner_up;             // empty if there was no other candidate
  double runner_up_us = 0;
  int tied = 0;                       // candidates inside the tie band, the winner among them
  std::string reason;                 // "12.3 % faster than the default", "no gain over the default"
  double error = 0;                   // |out - ref| / |ref| at verification
  double floor_us = 0;                // bytes that must be read / measured read bandwidth; 0 if unknown
  std::string policy_hash, space_hash, generator_hash;
  std::string session;                // who measured it
  bool operator==(const Winner&) const = default;
};

// What dispatch needs of a winner.
struct Choice {
  Bucket bucket;
  KernelConfig config;
  double median_us = 0, ci_high_us = 0;
  KernelConfig runner_up;
  double runner_up_us = 0;

  Choice() = default;
  Choice(const Winner& w) : bucket(w.bucket), config(w.config), median_us(w.median_us), ci_high_us(w.ci_high_us), runner_up(w.runner_up), runner_up_us(w.runner_up_us) {}  // NOLINT(google-explicit-constructor): a part of it
  bool operator==(const Choice&) const = default;
};

// A winner that may answer for a spec on a device, whoever measured it.
struct LayeredWinner {
  Choice winner;
  bool other_device = false;  // measured in another environment of the device's class (Environment::class_text())
  bool confirmed = true;      // by this build's kernel generator
  bool shipped = false;       // of the read-only database that comes with pagetune

  LayeredWinner(Choice chosen, bool elsewhere = false, bool by_this_generator = true, bool comes_along = false)  // NOLINT(google-explicit-constructor): a device's own winner is the usual case
      : winner(std::move(chosen)), other_device(elsewhere), confirmed(by_this_generator), shipped(comes_along) {}
  LayeredWinner(const Winner& measured, bool elsewhere = false, bool by_this_generator = true, bool comes_along = false)  // NOLINT(google-explicit-constructor): likewise
      : LayeredWinner(Choice(measured), elsewhere, by_this_generator, comes_along) {}
};
using LayeredWinners = std::map<std::string, std::vector<LayeredWinner>>;  // spec_key -> winners

class Store {
 public:
  virtual ~Store() = default;

  // dir: a directory, ":memory:", or empty for the default (PAGETUNE_CACHE_DIR, else $XDG_CACHE_HOME/pagetune, ~/.cache/pagetune,
  // memory). One Store per directory and process.
  static std::shared_ptr<Store> open(const std::string& dir = "");
  static std::string default_dir();

  virtual const std::string& dir() const = 0;           // ":memory:" if nothing is kept
  virtual std::vector<std::string> problems() const = 0; // what went wrong and was worked around, one sentence each

  // Winners. put_winner also records the environment and the spec, with its dispatch parameters as columns.
  virtual void put_winner(const Winner&, const Environment&, const AttentionSpec&) = 0;
  virtual std::vector<Winner> winners(const std::string& env_key, const std::string& spec_key) const = 0;
  // What may answer for a spec in an environment, out of this store and the shipped winners: see cache_db/layers.hpp.
  virtual std::vector<LayeredWinner> layered_winners(const Environment&, const std::string& spec_key) const = 0;
  virtual LayeredWinners layered_winners(const Environment&) const = 0;  // of every spec that has some
  struct Row { Winner winner; Environment environment; AttentionSpec spec; };
  virtual std::vector<Row> all_winners() const = 0;     // sorted by (environment, spec, bucket)
  // All that is stored for a spec, whoever measured it: this store's rows, then the shipped.
  virtual std::vector<Row> rows_of(const std::string& spec_key) const = 0;

  // Configs that must never win again: wrong or crashing.
  virtual void block(const std::string& env_key, const std::string& spec_key, const KernelConfig&, const std::string& reason) = 0;
  virtual std::vector<std::pair<KernelConfig, std::string>> blocked(const std::string& env_key, const std::string& spec_key) const = 0;
  struct Block { std::string env_key, spec_key; KernelConfig config; std::string reason; };

  // Calls in buckets that no winner answers for: hits are added to those of before. What the file does not take is lost, and what nobody calls for 90 days.
  struct Untuned { Environment environment; AttentionSpec spec; Bucket bucket; uint64_t hits = 0; };
  virtual void add_untuned(const std::vector<Untuned>&) = 0;
  virtual std::vector<Untuned> untuned() const = 0;     // sorted by (environment, spec, bucket); some may have a winner since

  // Takes in what other stores hold, all of it or nothing, in one transaction. Nothing if the file could not be written: problems() says why.
  virtual std::optional<Merged> merge(const std::vector<MergeSource>&, const MergeRule&) = 0;

  // Binaries. A stored binary whose bytes do not match its sha256 is removed, counted and reported as absent. Facts are not stored.
  virtual std::optional<Binary> find_binary(const std::string& key) = 0;
  virtual void put_binary(const Binary&) = 0;
  // Those of the file, sorted by key. Wrong ones are left out; problems() says so.
  virtual std::vector<Binary> all_binaries() = 0;
  // All of them or nothing, in one transaction; what the file has under the same key stays. How many were new: of those, the limit of bytes may have cost some. Nothing if the file could not be
  // written: problems() says why.
  virtual std::optional<int> add_binaries(const std::vector<Binary>&) = 0;
  // Single flight over threads and processes: memory, store, else `compile` once under a lock that dies with its owner. A waiter that
  // waited 30 s compiles on its own. `compile`'s exception reaches every waiting thread and is not remembered.
  virtual Binary get_or_compile(const std::string& key, const std::function<Binary()>& compile) = 0;

  struct Counters { uint64_t hits = 0, compiles = 0, corrupt = 0; };
  virtual Counters counters() const = 0;
  struct Usage { int64_t winners = 0, unstored = 0, binaries = 0, binary_bytes = 0; };  // unstored: of the winners, those that the file did not take
  virtual Usage usage() const = 0;
};

}  // namespace pagetune
