#include "tuner/policy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/json.hpp"
#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

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
    policy.throttle_permille = 600;  // other programs disturb a CPU by more than its clock ever changes
  }
  return policy;
}

int MeasurePolicy::launches_for(int sets) const { return std::max(launches_per_sample, std::min(sets + sets % 2, most_launches)); }

const std::vector<std::pair<const char*, int MeasurePolicy::*>>& MeasurePolicy::fields() {
  static const std::vector<std::pair<const char*, int MeasurePolicy::*>> all = {{"launches_per_sample", &MeasurePolicy::launches_per_sample},
                                                                                {"most_launches", &MeasurePolicy::most_launches},
                                                                                {"rotation_l2", &MeasurePolicy::rotation_l2},
                                                                                {"warmup_ms", &MeasurePolicy::warmup_ms},
                                                                                {"first_samples", &MeasurePolicy::first_samples},
                                                                                {"drop_permille", &MeasurePolicy::drop_permille},
                                                                                {"min_rounds", &MeasurePolicy::min_rounds},
                                                                                {"max_rounds", &MeasurePolicy::max_rounds},
                                                                                {"final_rounds", &MeasurePolicy::final_rounds},
                                                                                {"tie_permille", &MeasurePolicy::tie_permille},
                                                                                {"gain_permille", &MeasurePolicy::gain_permille},
                                                                                {"throttle_permille", &MeasurePolicy::throttle_permille},
                                                                                {"eager", &MeasurePolicy::eager},
                                                                                {"overlap", &MeasurePolicy::overlap}};
  return all;
}

std::string MeasurePolicy::canonical_json() const {
  nlohmann::json json;  // keeps an object's keys sorted
  for (const auto& [name, field] : fields()) json[name] = this->*field;
  return json.dump();
}

MeasurePolicy MeasurePolicy::from_json(const std::string& text) {
  constexpr const char* kWhat = "the measure policy";
  const nlohmann::json json = parse_json(text, kWhat);
  if (!json.is_object()) throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object of integers, not {}", kWhat, json.type_name()));
  MeasurePolicy policy;
  for (const auto& [name, field] : fields()) {
    const auto found = json.find(name);
    if (found == json.end()) throw Error(ErrorCode::invalid_argument, fmt::format("the key '{}' is missing in {}; it has every field", name, kWhat));
    policy.*field = int_from_json(*found, name, kWhat);
  }
  for (const auto& [key, value] : json.items()) {
    if (std::none_of(fields().begin(), fields().end(), [&, &key = key](const auto& field) { return field.first == key; }))
      throw Error(ErrorCode::invalid_argument, fmt::format("the key '{}' is unknown in {}", key, kWhat));
  }
  return policy;
}

std::string MeasurePolicy::hash() const { return sha256_hex(canonical_json()); }

}  // namespace pagetune
