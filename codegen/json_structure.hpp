// What a strict reader asks of a JSON text beyond its grammar, in one pass without recursion: no key twice in an object, bounded depth.
// (The parser's own callback would do, but takes quadratic time in the number of siblings.)
#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace pagetune {

class JsonStructure : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonStructure(size_t max_levels) : max_levels_(max_levels) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) duplicate_key(nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    return true;
  }

 protected:
  // Each throws. `quoted` is the key as JSON text.
  [[noreturn]] virtual void duplicate_key(const std::string& quoted) = 0;
  [[noreturn]] virtual void too_deep(size_t max_levels) = 0;

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() > max_levels_) too_deep(max_levels_);
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  size_t max_levels_;
  std::vector<std::set<std::string>> keys_;  // of the open objects and (empty) arrays
};

}  // namespace pagetune
