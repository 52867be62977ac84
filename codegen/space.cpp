#include "codegen/space.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/family_rules.hpp"
#include "codegen/generate.hpp"
#include "codegen/json.hpp"
#include "codegen/sha256.hpp"
#include "codegen/space_file.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Counts of pruned configs by reason, in the order in which reasons were met.
void count(std::vector<std::pair<std::string, int>>& pruned, const std::string& reason, int configs) {
  auto found = std::find_if(pruned.begin(), pruned.end(), [&](const auto& entry) { return entry.first == reason; });
  if (found == pruned.end()) {
    pruned.emplace_back(reason, configs);
  } else {
    found->second += configs;
  }
}

// Nested loops over the tuning parameters; a rule is asked at the first depth where all its parameters are known, so that it cuts the
// whole subtree below.
class Enumeration {
 public:
  Enumeration(const Family& family, const FamilyRules& rules, std::vector<int64_t> values, bool with_bucket)
      : rules_(rules), values_(std::move(values)), with_bucket_(with_bucket), params_(family.tuning_params.begin(), family.tuning_params.end()) {}

  ConfigSpace::Candidates run() && {
    result_.total = configs_below(0);
    descend(0);
    std::sort(result_.configs.begin(), result_.configs.end(),
              [](const KernelConfig& a, const KernelConfig& b) { return a.canonical_json() < b.canonical_json(); });
    return std::move(result_);
  }

 private:
  int configs_below(size_t depth) const {
    int configs = 1;
    for (; depth < params_.size(); ++depth) configs *= static_cast<int>(params_[depth].second.size());
    return configs;
  }

  void descend(size_t depth) {
    for (const FamilyRules::Rule& rule : rules_.rules()) {
      if (rule.depth != depth || (rule.asks_bucket && !with_bucket_)) continue;
      if (rule.expression.evaluate(values_) == 0) {
        count(result_.pruned, rule.reason, configs_below(depth));
        return;
      }
    }
    if (depth == params_.size()) {
      KernelConfig config;
      for (size_t i = 0; i < params_.size(); ++i) config.set(params_[i].first, static_cast<int>(values_[i]));
      result_.configs.push_back(std::move(config));
      return;
    }
    for (int value : params_[depth].second) {
      values_[depth] = value;
      descend(depth + 1);
    }
  }

  const FamilyRules& rules_;
  std::vector<int64_t> values_;
  bool with_bucket_;
  std::vector<std::pair<std::string, std::vector<int>>> params_;
  ConfigSpace::Candidates result_;
};

// The spec's field behind a dispatch parameter, for messages.
std::string field_text(const std::string& param, const AttentionSpec& spec, int value) {
  if (param == "HEAD_DIM") return fmt::format("head_dim_k {}", value);
  if (param == "BLOCK_SIZE") return fmt::format("page_size {}", value);
  if (param == "KV_HEADS") return fmt::format("kv_heads {}", value);
  if (param == "GROUP_SIZE") return fmt::format("group size {} (q_heads {} / kv_heads {})", value, spec.q_heads, spec.kv_heads);
  return fmt::format("{} {}", param, value);
}

}  // namespace

bool Domain::contains(int value) const {
  if (!values.empty()) return std::find(values.begin(), values.end(), value) != values.end();
  return value >= min && value <= max && (int64_t{value} - min) % step == 0;
}

std::string Domain::text() const {
  if (values.size() == 1) return fmt::format("only {}", values[0]);
  if (!values.empty()) return fmt::format("one of {}", fmt::join(values, ", "));
  return step == 1 ? fmt::format("{} to {}", min, max) : fmt::format("{} to {} in steps of {}", min, max, step);
}

ConfigSpace ConfigSpace::parse(const std::string& json_text) {
  ConfigSpace space;
  space.families_ = read_families(json_text);
  for (const Family& family : space.families_) {
    // Enumeration counts in int, and a tuner could not search more.
    constexpr int64_t kMaxConfigs = 1'000'000;
    int64_t total = 1;
    for (const auto& [name, values] : family.tuning_params) {
      total *= static_cast<int64_t>(values.size());
      if (total > kMaxConfigs) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the config space's family '{}' has more than {} configs; name fewer tuning values", family.name, kMaxConfigs));
      }
    }
    space.rules_.push_back(std::make_shared<const FamilyRules>(family));
  }
  return space;
}

const ConfigSpace& ConfigSpace::builtin() {
  static const ConfigSpace space = parse(embedded_file("configs/template_config.json"));
  return space;
}

size_t ConfigSpace::index_of(Kind kind, Backend backend) const {
  const std::string name = fmt::format("{}_{}", name_of(kind), name_of(backend));
  for (size_t i = 0; i < families_.size(); ++i) {
    if (families_[i].name == name) return i;
  }
  std::vector<std::string> known;
  for (const Family& family : families_) known.push_back(family.name);
  throw Error(ErrorCode::unsupported, fmt::format("kind {} is not implemented on {} yet; there are the kernel families {}", name_of(kind),
                                                  name_of(backend), fmt::join(known, ", ")));
}

const Family& ConfigSpace::family(Kind kind, Backend backend) const { return families_[index_of(kind, backend)]; }

std::string ConfigSpace::hash(const Family& family) const {
  nlohmann::json conditions = nlohmann::json::array();
  for (const Condition& condition : family.conditions) conditions.push_back({condition.expression, condition.reason});
  nlohmann::json derived = nlohmann::json::array();
  for (const Derived& quantity : family.derived) derived.push_back({quantity.name, quantity.expression});
  return sha256_hex(canonical_text({{"tuning_params", family.tuning_params}, {"derived", derived}, {"conditions", conditions}}));
}

ConfigSpace::Candidates ConfigSpace::enumerate(const AttentionSpec& spec, const Target& target, std::optional<Bucket> bucket) const {
  const size_t index = index_of(spec.kind, target.backend);
  if (std::string reason = refusal(spec, target.backend); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  if (spec.batch_invariant) bucket.reset();
  const FamilyRules& rules = *rules_[index];
  return Enumeration(families_[index], rules, rules.values(spec, target, bucket), bucket.has_value()).run();
}

ConfigSpace::Candidates ConfigSpace::candidates(const AttentionSpec& spec, const Target& target) const {
  return enumerate(spec, target, std::nullopt);
}

ConfigSpace::Candidates ConfigSpace::candidates(const AttentionSpec& spec, const Target& target, Bucket bucket) const {
  return enumerate(spec, target, bucket);
}

std::string ConfigSpace::refusal(const AttentionSpec& spec, Backend backend) const {
  const Family& family = this->family(spec.kind, backend);
  const std::string where = fmt::format("{} on {}", name_of(spec.kind), name_of(backend));
  const std::map<std::string, int> dispatch = dispatch_values(spec);
  for (const auto& [name, domain] : family.dispatch_params) {
    const int value = dispatch.at(name);
    if (!domain.contains(value)) {
      return fmt::format("{} is not implemented for {}; allowed: {}", field_text(name, spec, value), where, domain.text());
    }
  }
  std::vector<std::string> allowed;
  for (const auto& row : family.data_types) {
    if (row[0] == name_of(spec.q_dtype) && row[1] == name_of(spec.out_dtype)) return "";
    allowed.push_back(fmt::format("{} to {}", row[0], row[1]));
  }
  return fmt::format("q_dtype {} with out_dtype {} is not implemented for {}; allowed: {}", name_of(spec.q_dtype), name_of(spec.out_dtype), where,
                     fmt::join(allowed, ", "));
}

std::string ConfigSpace::refusal(const AttentionSpec& spec, const KernelConfig& config, const Target& target,
                                 std::optional<Bucket> bucket) const {
  const size_t index = index_of(spec.kind, target.backend);
  const Family& family = families_[index];
  for (const auto& [name, value] : config.values()) {
    if (family.tuning_params.contains(name)) continue;
    std::vector<std::string> known;
    for (const auto& [key, values] : family.tuning_params) known.push_back(key);
    return fmt::format("the tuning parameter {} = {} is unknown to {}; known are {}", name, value, family.name, fmt::join(known, ", "));
  }
  if (spec.batch_invariant) bucket.reset();
  const FamilyRules& rules = *rules_[index];
  std::vector<int64_t> values = rules.values(spec, target, bucket);
  size_t slot = 0;
  for (const auto& [name, allowed] : family.tuning_params) {
    auto found = config.values().find(name);
    if (found == config.values().end()) return fmt::format("the config {} lacks {} of {}", config.canonical_json(), name, family.name);
    if (std::find(allowed.begin(), allowed.end(), found->second) == allowed.end()) {
      return fmt::format("{} = {} is not in the space of {}; allowed: one of {}", name, found->second, family.name, fmt::join(allowed, ", "));
    }
    values[slot++] = found->second;
  }
  for (const FamilyRules::Rule& rule : rules.rules()) {
    if ((rule.asks_bucket && !bucket) || rule.expression.evaluate(values) != 0) continue;
    return fmt::format("the config {} is not admitted for {} on {}: {} ({} must hold)", config.canonical_json(), name_of(spec.kind), target.arch,
                       rule.reason, rule.expression.text());
  }
  return "";
}

int64_t ConfigSpace::derived(const std::string& name, const AttentionSpec& spec, const KernelConfig& config, const Target& target) const {
  const size_t index = index_of(spec.kind, target.backend);
  const FamilyRules& rules = *rules_[index];
  const Expression* expression = rules.derived(name);
  if (expression == nullptr || rules.asks_bucket(*expression)) {
    throw Error(ErrorCode::internal, fmt::format("{} has no quantity {} that a config alone determines", families_[index].name, name));
  }
  std::vector<int64_t> values = rules.values(spec, target, std::nullopt);
  size_t slot = 0;
  for (const auto& [param, allowed] : families_[index].tuning_params) values[slot++] = config.at(param);
  return expression->evaluate(values);
}

Admission::Admission(const ConfigSpace& space, const AttentionSpec& spec, const Target& target)
    : family_(space.family(spec.kind, target.backend)),
      rules_(*space.rules_[space.index_of(spec.kind, target.backend)]),
      batch_invariant_(spec.batch_invariant),
      values_(rules_.values(spec, target, std::nullopt)) {}

bool Admission::hold(const Values& values, bool that_ask_bucket) const {
  return std::all_of(rules_.rules().begin(), rules_.rules().end(),
                     [&](const FamilyRules::Rule& rule) { return rule.asks_bucket != that_ask_bucket || rule.expression.evaluate(values) != 0; });
}

std::optional<Admission::Values> Admission::without_bucket(const KernelConfig& config) const {
  if (config.values().size() != family_.tuning_params.size()) return std::nullopt;
  Values values = values_;
  auto given = config.values().begin();  // both maps are in the order of the names
  size_t slot = 0;
  for (const auto& [name, allowed] : family_.tuning_params) {
    if (given->first != name || std::find(allowed.begin(), allowed.end(), given->second) == allowed.end()) return std::nullopt;
    values[slot++] = given++->second;
  }
  if (!hold(values, false)) return std::nullopt;
  return values;
}

bool Admission::in_bucket(Values& values, Bucket bucket) const {
  if (batch_invariant_) return true;
  FamilyRules::set_bucket(values, bucket);
  return hold(values, true);
}

std::map<std::string, int> dispatch_values(const AttentionSpec& spec) {
  const bool fp8 = spec.kv_dtype == DType::fp8_e4m3 || spec.kv_dtype == DType::fp8_e5m2;
  return {
      {"GROUP_SIZE", spec.kv_heads > 0 ? spec.group_size() : 0},
      {"HEAD_DIM", spec.head_dim_k},
      {"BLOCK_SIZE", spec.page_size},
      {"CAUSAL", 1},
      {"BLOCK_SHAPE_Q", spec.kind == Kind::decode ? 16 : 64},  // rows of one query tile
      {"ENABLE_PREFILL", spec.kind == Kind::prefill ? 1 : 0},
      {"IsFP8", fp8 ? 1 : 0},
      {"IsDynamicC8", spec.kv_scale == ScaleGranularity::token_head && bits_of(spec.kv_dtype) == 8 ? 1 : 0},
      {"KV_HEADS", spec.kv_heads},
      {"HEADWISE", spec.headwise ? 1 : 0},
  };
}

}  // namespace pagetune
