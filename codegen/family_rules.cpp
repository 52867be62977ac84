#include "codegen/family_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr size_t kBucketFacts = 2;  // BATCH and LEN stand last among the facts

bool is_name(const std::string& text) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  return !text.empty() && text.find_first_not_of(kLetters) == std::string::npos && (text[0] < '0' || text[0] > '9');
}

}  // namespace

FamilyRules::FamilyRules(const Family& family) : num_tuning_(family.tuning_params.size()) {
  auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the config space's family '{}': {}", family.name, message));
  };
  auto check_new = [&](const std::string& name) {
    if (!is_name(name)) fail(fmt::format("'{}' is not a name; use letters, digits and '_'", name));
    if (scope_.variables.contains(name) || scope_.definitions.contains(name)) {
      fail(fmt::format("the name '{}' has two meanings; rename one of them", name));
    }
  };
  auto add = [&](const std::string& name) {
    check_new(name);
    scope_.variables.emplace(name, scope_.variables.size());
  };
  auto parse = [&](const std::string& text) {
    try {
      return Expression::parse(text, scope_);
    } catch (const Error& error) {
      fail(error.what());
      throw;
    }
  };

  for (const auto& [name, values] : family.tuning_params) add(name);
  const std::map<std::string, int> known_dispatch = dispatch_values(AttentionSpec{});
  for (const auto& [name, domain] : family.dispatch_params) {
    if (!known_dispatch.contains(name)) {
      std::string known;
      for (const auto& [key, value] : known_dispatch) known += (known.empty() ? "" : ", ") + key;
      fail(fmt::format("the dispatch parameter '{}' is unknown; known are {}", name, known));
    }
    add(name);
    dispatch_names_.push_back(name);
  }
  first_fact_ = scope_.variables.size();
  for (const char* name : kFactNames) add(name);

  for (const Derived& derived : family.derived) {
    check_new(derived.name);
    scope_.definitions.emplace(derived.name, parse(derived.expression));
  }
  for (const Condition& condition : family.conditions) {
    Rule rule{parse(condition.expression), condition.reason};
    rule.asks_bucket = asks_bucket(rule.expression);
    for (size_t slot : rule.expression.slots()) {
      if (slot < num_tuning_) rule.depth = std::max(rule.depth, slot + 1);
    }
    rules_.push_back(std::move(rule));
  }
}

std::vector<int64_t> FamilyRules::values(const AttentionSpec& spec, const Target& target, std::optional<Bucket> bucket) const {
  std::vector<int64_t> values(num_tuning_, 0);
  const std::map<std::string, int> dispatch = dispatch_values(spec);
  for (const std::string& name : dispatch_names_) values.push_back(dispatch.at(name));
  const int64_t facts[std::size(kFactNames)] = {
      bits_of(spec.kv_dtype) / 8,
      target.shared_per_block,
      target.processors,
      target.vector_bits,
      target.compute_capability,
      target.arch.ends_with('a'),
      spec.rows(),
      spec.head_dim_v,
      0,  // BATCH
      0,  // LEN
  };
  values.insert(values.end(), std::begin(facts), std::end(facts));
  if (bucket) set_bucket(values, *bucket);
  return values;
}

void FamilyRules::set_bucket(std::vector<int64_t>& values, Bucket bucket) {
  values.end()[-2] = bucket.batch();
  values.end()[-1] = bucket.len();
}

const Expression* FamilyRules::derived(const std::string& name) const {
  auto found = scope_.definitions.find(name);
  return found == scope_.definitions.end() ? nullptr : &found->second;
}

bool FamilyRules::asks_bucket(const Expression& expression) const {
  const size_t first_bucket_slot = first_fact_ + std::size(kFactNames) - kBucketFacts;
  return !expression.slots().empty() && *expression.slots().rbegin() >= first_bucket_slot;
}

}  // namespace pagetune
