// Typed reading of one object of a model config: the same quantity under many keys, and messages that name the key in the file.
#pragma once
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pagetune::importer {

using Keys = std::initializer_list<const char*>;  // aliases; the first is the name that class defaults use

constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 65536;
constexpr int kMaxLayers = 1024;
constexpr int kMaxInt = std::numeric_limits<int>::max();

// A key that is absent or null is "not stated". An absent key (not a null one: that is a statement) falls back on `defaults`.
class Fields {
 public:
  // `path`: where the object stands in the file, "" or "text_config.". `defaults`: an object, or null for none. Both must outlive this.
  Fields(std::string file, std::string path, const nlohmann::json& object, const nlohmann::json* defaults = nullptr);

  // Error invalid_argument: not an integer (a float, a string, a boolean), outside [min, max], or two aliases that contradict each other.
  std::optional<int> integer(Keys, int min, int max) const;
  // As integer(), but the first alias that is stated wins: for quantities whose aliases do differ in real files.
  std::optional<int> first_integer(Keys, int min, int max) const;
  // Error: not a number, or not positive.
  std::optional<double> positive_number(Keys) const;
  std::optional<bool> flag(Keys) const;
  std::optional<std::string> text(Keys) const;
  std::optional<std::vector<int>> integers(Keys, int min, int max) const;
  std::optional<std::vector<std::string>> texts(Keys) const;
  // The nested object, empty if it is not stated. Error: it is something else.
  Fields object(const char* key) const;

  bool stated(Keys keys) const { return find(keys).value != nullptr; }
  bool is_text(Keys) const;

  // Throws Error invalid_argument: file, key, its value, then `allowed`, a clause such as "an integer is allowed".
  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const;
  [[noreturn]] void refuse_all(const std::string& sentence) const;  // prefixed with the file
  std::string name(const std::string& key) const { return path_ + key; }
  const std::string& file() const { return file_; }

  // One sentence for each class default that was read.
  std::vector<std::string> default_notes(const std::string& model_type) const;

 private:
  struct Found {
    const nlohmann::json* value = nullptr;
    std::string key;
  };
  Found find(Keys) const;
  int as_integer(const std::string& key, const nlohmann::json& value, int min, int max) const;
  [[noreturn]] void refuse_value(const std::string& key, const nlohmann::json& value, const std::string& allowed) const;

  std::string file_, path_;
  const nlohmann::json* object_;
  const nlohmann::json* defaults_;
  mutable std::set<std::string> defaults_read_;
};

}  // namespace pagetune::importer
