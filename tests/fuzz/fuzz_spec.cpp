#include "codegen/config.hpp"
#include "codegen/environment.hpp"
#include "one.hpp"
#include "pagetune/spec.hpp"
#include "tuner/policy.hpp"

using namespace pagetune;

// The first byte says which of the small texts this is.
void fuzz_one(const std::string& input) {
  if (input.empty()) return;
  const std::string text = input.substr(1);
  fuzz::refuses_with_a_sentence([&] {
    switch (input[0] % 5) {
      case 0: {
        const std::string made = canonical_json(spec_from_json(text));
        fuzz::require(canonical_json(spec_from_json(made)) == made, "a spec's canonical text gives the spec");
        break;
      }
      case 1: spec_key(spec_from_partial_json(text)); break;
      case 2: {
        const KernelConfig config = KernelConfig::from_json(text);
        fuzz::require(KernelConfig::from_json(config.canonical_json()) == config, "a config's canonical text gives the config");
        break;
      }
      case 3: {
        const Environment environment = Environment::from_json(text);
        fuzz::require(Environment::from_json(environment.canonical_json()) == environment, "an environment's canonical text gives the environment");
        fuzz::require(environment.file_name().find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos, "a file name is of harmless characters");
        break;
      }
      default: {
        const MeasurePolicy policy = MeasurePolicy::from_json(text);
        fuzz::require(MeasurePolicy::from_json(policy.canonical_json()) == policy, "a policy's canonical text gives the policy");
        break;
      }
    }
  });
}
