// KernelConfig: how a kernel computes. Stored by content, never by index.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace pagetune {

// Tuning parameters under the names of configs/template_config.json, for example {"VARIANT":2,"NUM_SPLITS":8,"NUM_WARPS":4,…}.
class KernelConfig {
 public:
  KernelConfig() = default;
  explicit KernelConfig(std::map<std::string, int> values) : values_(std::make_shared<const std::map<std::string, int>>(std::move(values))) {}

  int at(const std::string& name) const;  // Error internal if absent
  int get(const std::string& name, int otherwise) const;
  void set(const std::string& name, int value);
  const std::map<std::string, int>& values() const;

  int variant() const { return at("VARIANT"); }         // 1: one pass, 2: split KV and merge
  int num_splits() const { return get("NUM_SPLITS", 1); }
  bool even_share() const { return get("CTA_QUARTERS", 0) > 0; }  // V2 with all tiles shared evenly, not each sequence's

  std::string canonical_json() const;
  static KernelConfig from_json(const std::string& text);  // object of integers; anything else is an Error

  bool operator==(const KernelConfig& other) const { return values_ == other.values_ || values() == other.values(); }
  auto operator<=>(const KernelConfig& other) const { return values() <=> other.values(); }

 private:
  std::shared_ptr<const std::map<std::string, int>> values_;  // shared by copies: thousands of winners have a few configs between them. Null: none
};

}  // namespace pagetune
