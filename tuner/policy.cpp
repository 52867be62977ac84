#include "tuner/policy.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/sha256.hpp"

namespace pagetune {

MeasurePolicy MeasurePolicy::for_backend(Backend backend) {
  MeasurePolicy policy;
  if (backend == Backend::cpu) {
    // A CPU launch takes milliseconds and has no launch gap to average out, and a core has no clock to wake.
    policy.launches_per_sample = 4;
    policy.most_launches = 32;
    policy.rotation_l2 = 2;
    policy.warmup_ms = 0;
    policy.max_rounds = 30;
  }
  return policy;
}

int MeasurePolicy::launches_for(int sets) const { return std::max(launches_per_sample, std::min(sets + sets % 2, most_launches)); }

std::string MeasurePolicy::canonical_json() const {
  // nlohmann::json keeps an object's keys sorted.
  return nlohmann::json{{"launches_per_sample", launches_per_sample},
                        {"most_launches", most_launches},
                        {"rotation_l2", rotation_l2},
                        {"warmup_ms", warmup_ms},
                        {"first_samples", first_samples},
                        {"drop_permille", drop_permille},
                        {"min_rounds", min_rounds},
                        {"max_rounds", max_rounds},
                        {"final_rounds", final_rounds},
                        {"tie_permille", tie_permille},
                        {"gain_permille", gain_permille},
                        {"overlap", overlap}}
      .dump();
}

std::string MeasurePolicy::hash() const { return sha256_hex(canonical_json()); }

}  // namespace pagetune
