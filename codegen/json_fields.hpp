// Typed reading of a strict JSON document of our own or another's making. Every message names the place and the document.
#pragma once
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pagetune {

// `where` names the place of a value, for example "decode_cuda.data_types". Each method throws Error invalid_argument for a value that is none of its kind.
class JsonFields {
 public:
  // `what` names the document in messages, for example "the config space".
  explicit JsonFields(std::string what) : what_(std::move(what)) {}

  [[noreturn]] void fail(const std::string& where, const std::string& message) const;
  const nlohmann::json& object(const nlohmann::json& json, const std::string& where) const;
  const nlohmann::json& array(const nlohmann::json& json, const std::string& where) const;
  std::string text(const nlohmann::json& json, const std::string& where) const;  // not empty
  std::vector<std::string> texts(const nlohmann::json& json, const std::string& where) const;
  int integer(const nlohmann::json& json, const std::string& where) const;
  std::vector<int> distinct_integers(const nlohmann::json& json, const std::string& where) const;  // at least one
  // All of `keys` and nothing else.
  void check_keys(const nlohmann::json& json, const std::string& where, std::initializer_list<const char*> keys) const;

 private:
  std::string what_;
};

}  // namespace pagetune
