// Many machines share a work list: each takes the pairs of one shard; and the devices of a machine what they are dealt. Pure.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/bucket.hpp"
#include "tuner/worklist.hpp"

namespace pagetune {

struct Shard {
  int index = 0, count = 1;  // 0 <= index < count
  std::string origin;        // "--shard", "Slurm array task 3 of 10"
};

// The value of an environment variable, or nullptr.
using Variables = std::function<const char*(const char* name)>;

// --shard: "3/10" is the fourth of ten; "none" is no shard; empty asks the environment: a Slurm job array or a Kubernetes indexed Job, then the MPI
// ranks within it. PAGETUNE_SHARDS, where set, is the number of array tasks or completions and their numbers then begin at 0. Error invalid_argument for any other text, and
// for an environment from which index and count do not follow.
std::optional<Shard> find_shard(const std::string& option, const Variables&);

// The shard of a pair: from a hash of both, so that it depends neither on the rest of the list nor on the machine.
int shard_of(const std::string& spec_key, Bucket, int count);

// Leaves only the shard's works in the list.
void keep_shard(WorkList&, const Shard&);

// Devices of one kind, which have one table of winners, share out their works: each pair stays in one of the lists that have it (where memory differs, not all do),
// in the one with the fewest so far; pairs that few lists have come first.
void deal_works(const std::vector<WorkList*>& alike);

}  // namespace pagetune
