// The strict JSON reader.
#include <gtest/gtest.h>

#include <string>

#include "codegen/json.hpp"
#include "pagetune/error.hpp"

using namespace pagetune;

namespace {

std::string message_of(const std::string& text) {
  try {
    parse_json(text, "the table");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

// Fault: of a key that stands twice the last value silently wins, at the top or deep inside.
TEST(Json, AKeyThatStandsTwiceIsRefused) {
  for (const char* text : {R"({"a":1,"a":1})", R"([[{"b":{"a":1,"c":2,"a":3}}]])"}) EXPECT_NE(message_of(text).find("\"a\" stands twice"), std::string::npos) << text;
  EXPECT_EQ(message_of(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})"), "") << "the same key in different objects";
}

// Fault: a file of brackets exhausts the stack or the memory.
TEST(Json, DepthIsBounded) {
  EXPECT_EQ(message_of(std::string(60, '[') + std::string(60, ']')), "");
  EXPECT_NE(message_of(std::string(100'000, '[')).find("more than 64 levels"), std::string::npos);
}

// Fault: malformed text is taken up to where it breaks, or the message does not say whose text it is.
TEST(Json, MalformedTextIsRefusedByName) {
  for (const char* text : {"", "{", "{\"a\":1,}", "[1 2]", "NaN", "{\"a\":1} x", "\xEF\xBB\xBF{\"a\" 1}"}) EXPECT_NE(message_of(text).find("the table"), std::string::npos) << text;
}

// Fault: a message that quotes a key ends in the middle of it, or what a file holds tells a terminal what to do.
TEST(Json, AQuotedControlCharacterNeitherEndsAMessageNorReachesATerminal) {
  const std::string key = std::string("a") + '\0' + "b\x1b[2J\x7f";
  EXPECT_STREQ(Error(ErrorCode::io, "the key '" + key + "' is unknown;\n\tuse é").what(), "the key 'a?b?[2J?' is unknown;\n\tuse é");
}

// Fault: a wide table is refused or loses rows.
TEST(Json, ManySiblingsAreKept) {
  std::string text = "[";
  for (int i = 0; i < 20'000; ++i) text += i > 0 ? ",{}" : "{}";
  EXPECT_EQ(parse_json(text + "]", "the table").size(), 20'000u);
}

}  // namespace
