// The config space: which kernels exist, their domains and tuning parameters, read from configs/template_config.json.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

// A parameter's allowed values: a list, or {"min","max","step"}.
struct Domain {
  std::vector<int> values;  // used if not empty
  int min = 0, max = 0, step = 1;
  bool contains(int value) const;
  std::string text() const;  // "one of 1, 2, 4" or "8 to 256 in steps of 8"
};

// A quantity that conditions speak of by name, e.g. SHARED_BYTES. It may use the ones before it.
struct Derived {
  std::string name;
  std::string expression;
};

// A condition that prunes before anything is compiled, e.g. "VARIANT == 2 || NUM_SPLITS == 1".
struct Condition {
  std::string expression;
  std::string reason;
};

// One kernel family: one entry of template_config.json. The first six keys have FastDeploy's meaning.
struct Family {
  std::string name;
  std::string function_name;
  std::string impl_file;
  std::vector<std::string> template_params;
  std::map<std::string, Domain> dispatch_params;
  std::vector<std::vector<std::string>> data_types;  // [in, out, suffix]
  std::map<std::string, std::vector<int>> tuning_params;
  std::vector<Derived> derived;
  std::vector<Condition> conditions;
};

class FamilyRules;

class ConfigSpace {
 public:
  // Parses and checks the whole file; an unknown key, a wrong type or an expression that does not parse is an Error naming it.
  static ConfigSpace parse(const std::string& json_text);
  // The file embedded in this build.
  static const ConfigSpace& builtin();

  const std::vector<Family>& families() const { return families_; }
  const Family& family(Kind, Backend) const;  // Error unsupported if there is none
  // sha256 over canonical JSON of the family's tuning_params, derived quantities and conditions.
  std::string hash(const Family&) const;

  struct Candidates {
    std::vector<KernelConfig> configs;                    // sorted by canonical JSON
    int total = 0;                                        // before pruning
    std::vector<std::pair<std::string, int>> pruned;      // reason -> how many
  };
  // All configs that the conditions and the target's limits admit for the spec. With a bucket, also those conditions that speak of BATCH or LEN,
  // unless the spec is batch-invariant: one config then has to serve every bucket. Error unsupported if the spec is outside the family's domains.
  Candidates candidates(const AttentionSpec&, const Target&) const;
  Candidates candidates(const AttentionSpec&, const Target&, Bucket) const;

  // Why the domains do not hold the spec's dispatch values or types; empty if they do. Error unsupported if there is no family.
  std::string refusal(const AttentionSpec&, Backend) const;
  // Why the config is not a candidate; empty if it is one. The spec must be inside the domains.
  std::string refusal(const AttentionSpec&, const KernelConfig&, const Target&, std::optional<Bucket> = {}) const;
  // The value of one of the family's derived quantities. Error internal if it has none of that name or if it speaks of BATCH or LEN.
  int64_t derived(const std::string& name, const AttentionSpec&, const KernelConfig&, const Target&) const;

 private:
  size_t index_of(Kind, Backend) const;
  Candidates enumerate(const AttentionSpec&, const Target&, std::optional<Bucket>) const;

  friend class Admission;
  std::vector<Family> families_;
  std::vector<std::shared_ptr<const FamilyRules>> rules_;  // of the family at the same index
};

// One spec on one target, asked about many configs and buckets: whether ConfigSpace::refusal() is empty, without the work of putting the reason
// into words. What no config changes is prepared once; what no bucket changes need be asked only once for each config.
class Admission {
 public:
  // All that conditions read of the spec, the target, a config and a bucket.
  using Values = std::vector<int64_t>;

  // Error unsupported if there is no family. The space must outlive it.
  Admission(const ConfigSpace&, const AttentionSpec&, const Target&);

  // The config's values if it is admitted as long as no bucket is given.
  std::optional<Values> without_bucket(const KernelConfig&) const;
  // Whether a config with these values, which without_bucket() gave, is admitted in the bucket too. Leaves the bucket in the values.
  bool in_bucket(Values&, Bucket) const;

 private:
  bool hold(const Values&, bool that_ask_bucket) const;

  const Family& family_;
  const FamilyRules& rules_;
  bool batch_invariant_;
  Values values_;  // of the spec and the target
};

// The spec in template_config.json's words: GROUP_SIZE, HEAD_DIM, BLOCK_SIZE, CAUSAL, IsFP8, IsDynamicC8, BLOCK_SHAPE_Q, KV_HEADS, HEADWISE, …
// The winners table has one column for each.
std::map<std::string, int> dispatch_values(const AttentionSpec&);

}  // namespace pagetune
