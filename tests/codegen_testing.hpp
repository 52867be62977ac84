// Shared by the tests of codegen.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codegen/target.hpp"
#include "pagetune/error.hpp"
#include "pagetune/spec.hpp"
#include "specs.hpp"

namespace pagetune::testing {

// Every message that reaches a user: one that still has a placeholder was never formatted.
inline void expect_finished(const std::string& message) {
  EXPECT_FALSE(message.empty());
  for (const char* placeholder : {"%d", "%s", "%zu", "{}", "{0}"}) EXPECT_EQ(message.find(placeholder), std::string::npos) << message;
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  expect_finished(message);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

template <class Call>
std::string error_text(Call&& call, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

inline const std::vector<std::string>& target_names() {
  static const std::vector<std::string> kNames = {"sm_80",   "sm_86",  "sm_87",   "sm_89",  "sm_90",   "sm_90a", "sm_100", "sm_100a",
                                                  "sm_103", "sm_103a", "sm_120", "sm_120a", "sm_121", "sm_121a", "cpu"};
  return kNames;
}

inline AttentionSpec decode_spec(int q_heads, int kv_heads, int head_dim, int page_size = 16, DType type = DType::bf16) {
  return uniform_spec(q_heads, kv_heads, head_dim, page_size, type, false);
}

}  // namespace pagetune::testing
