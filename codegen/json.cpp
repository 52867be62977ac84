#include "codegen/json.hpp"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <vector>

#include "pagetune/error.hpp"

namespace pagetune {

nlohmann::json parse_json(const std::string& text, const std::string& what) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys_of_open_objects;
  auto refuse_duplicates = [&](int, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) keys_of_open_objects.emplace_back();
    if (event == Event::object_end) keys_of_open_objects.pop_back();
    if (event == Event::key && !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the key {} stands twice in one object of {}; keep one of them", parsed.dump(), what));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, refuse_duplicates);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not valid JSON: {}", what, error.what()));
  }
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
