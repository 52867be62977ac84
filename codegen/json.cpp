#include "codegen/json.hpp"

#include <fmt/format.h>

#include <limits>

#include "codegen/json_structure.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

namespace {

constexpr size_t kMaxLevels = 64;  // nothing that pagetune reads or writes nests deeper than 8

class Structure final : public JsonStructure {
 public:
  explicit Structure(const std::string& what) : JsonStructure(kMaxLevels), what_(what) {}
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not valid JSON: {}", what_, error.what()));
  }

 private:
  [[noreturn]] void duplicate_key(const std::string& quoted) override {
    throw Error(ErrorCode::invalid_argument, fmt::format("the key {} stands twice in one object of {}; keep one of them", quoted, what_));
  }
  [[noreturn]] void too_deep(size_t max_levels) override {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} nests objects and arrays more than {} levels deep", what_, max_levels));
  }

  const std::string& what_;
};

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& what) {
  Structure structure(what);
  nlohmann::json::sax_parse(text, &structure);
  return nlohmann::json::parse(text);
}

int int_from_json(const nlohmann::json& value, const std::string& key, const std::string& what) {
  constexpr int kMin = std::numeric_limits<int>::min();
  constexpr int kMax = std::numeric_limits<int>::max();
  bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(kMax)
                                         : value.is_number_integer() && value.get<int64_t>() >= kMin && value.get<int64_t>() <= kMax;
  if (!fits) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' of {} is {}; it must be an integer from {} to {}", key, what, canonical_text(value), kMin, kMax));
  }
  return value.get<int>();
}

std::string canonical_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pagetune
