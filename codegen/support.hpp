// The one predicate that import, plan, tune, compile and launch ask. A refusal carries its reason; it never means a fallback.
#pragma once
#include <string>

#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

struct Support {
  bool ok = true;
  std::string reason;  // one sentence: what, which value, what is allowed
  explicit operator bool() const { return ok; }
};

Support supports(const AttentionSpec&, const Target&);
// Also asks the config space: is this config one that the space admits for the spec on the target (conditions and limits)?
Support supports(const AttentionSpec&, const KernelConfig&, const Target&);
// Throws Error unsupported with the reason.
void require_support(const AttentionSpec&, const Target&);

}  // namespace pagetune
