// A family's conditions and derived quantities, parsed and bound to slots of one array of values.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "codegen/bucket.hpp"
#include "codegen/expression.hpp"
#include "codegen/space.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

class FamilyRules {
 public:
  struct Rule {
    Expression expression;
    std::string reason;
    bool asks_bucket = false;  // speaks of BATCH or LEN
    size_t depth = 0;          // how many tuning parameters, in the family's order, must be known to evaluate it
  };

  // Error invalid_argument naming the family and the expression or the name that is wrong.
  explicit FamilyRules(const Family& family);

  // Slots 0 … n-1 are the tuning parameters in the family's order (left 0 here); then the dispatch values, then facts of the target and
  // the bucket.
  std::vector<int64_t> values(const AttentionSpec&, const Target&, std::optional<Bucket>) const;
  // Puts another bucket into what values() gave.
  static void set_bucket(std::vector<int64_t>& values, Bucket);

  // In the order of the file.
  const std::vector<Rule>& rules() const { return rules_; }
  const Expression* derived(const std::string& name) const;  // null if there is none
  bool asks_bucket(const Expression&) const;

 private:
  Expression::Scope scope_;
  std::vector<std::string> dispatch_names_;
  std::vector<Rule> rules_;
  size_t num_tuning_ = 0;
  size_t first_fact_ = 0;
};

// Facts that expressions can name beside dispatch values, tuning parameters and derived quantities.
inline constexpr const char* kFactNames[] = {"ELEMENT_BYTES", "SHARED_PER_BLOCK", "PROCESSORS", "TARGET_VECTOR_BITS", "COMPUTE_CAPABILITY", "ARCH_SPECIFIC", "ROWS", "HEAD_DIM_V", "BATCH", "LEN"};

}  // namespace pagetune
