#include "codegen/expression.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::error_text;
using testing::expect_mentions;

int64_t evaluate(const std::string& text, int64_t a = 0, int64_t b = 0) {
  const std::vector<int64_t> values = {a, b};
  return Expression::parse(text, {{{"A", 0}, {"B", 1}}, {}}).evaluate(values);
}

// Catches wrong precedence or associativity: a condition would prune other configs than it says.
TEST(Expression, PrecedenceAndAssociativityAreThoseOfC) {
  EXPECT_EQ(evaluate("1 + 2 * 3"), 7);
  EXPECT_EQ(evaluate("(1 + 2) * 3"), 9);
  EXPECT_EQ(evaluate("10 - 4 - 3"), 3);
  EXPECT_EQ(evaluate("100 / 5 / 2"), 10);
  EXPECT_EQ(evaluate("7 % 4 * 2"), 6);
  EXPECT_EQ(evaluate("-7 / 2"), -3);
  EXPECT_EQ(evaluate("-7 % 4"), -3);
  EXPECT_EQ(evaluate("--3"), 3);
  EXPECT_EQ(evaluate("1 + 1 < 3 == 1"), 1);
  EXPECT_EQ(evaluate("0 && 0 || 1"), 1);
  EXPECT_EQ(evaluate("1 || 0 && 0"), 1);
  EXPECT_EQ(evaluate("!0 + 1"), 2);
  EXPECT_EQ(evaluate("!(1 == 1)"), 0);
  EXPECT_EQ(evaluate("5 && 7"), 1);
  EXPECT_EQ(evaluate("1<=1"), 1);
  EXPECT_EQ(evaluate("2>=3"), 0);
  EXPECT_EQ(evaluate("2>1"), 1);
  EXPECT_EQ(evaluate("1!=1"), 0);
  EXPECT_EQ(evaluate("\t1\n"), 1);
}

// Catches a function with its arguments swapped or its rounding wrong.
TEST(Expression, Functions) {
  EXPECT_EQ(evaluate("min(3, 2) + max(3, 2) * 10"), 32);
  EXPECT_EQ(evaluate("ceil_div(0, 4)"), 0);
  EXPECT_EQ(evaluate("ceil_div(8, 4)"), 2);
  EXPECT_EQ(evaluate("ceil_div(9, 4)"), 3);
  EXPECT_EQ(evaluate("round_up(72, 16)"), 80);
  EXPECT_EQ(evaluate("round_up(80, 16)"), 80);
}

// Catches a variable bound to the wrong slot, and dependencies that do not reach through a definition (it would be asked too early).
TEST(Expression, VariablesAndDefinitions) {
  EXPECT_EQ(evaluate("A - B", 7, 2), 5);
  Expression::Scope scope{{{"A", 0}, {"B", 1}, {"C", 2}}, {}};
  scope.definitions.emplace("SUM", Expression::parse("A + B", scope));
  scope.definitions.emplace("TWICE", Expression::parse("SUM * 2", scope));
  const Expression expression = Expression::parse("TWICE - C", scope);
  EXPECT_EQ(expression.slots(), (std::set<size_t>{0, 1, 2}));
  EXPECT_EQ(expression.evaluate(std::vector<int64_t>{1, 2, 3}), 3);
  EXPECT_EQ(Expression::parse("TWICE", scope).slots(), (std::set<size_t>{0, 1}));
}

// Catches an evaluation of the guarded side.
TEST(Expression, LogicIsLazy) {
  EXPECT_EQ(evaluate("A == 0 || 1 / A > 0", 0), 1);
  EXPECT_EQ(evaluate("A != 0 && 1 / A > 0", 0), 0);
}

// Catches an error that does not say where, and text after the end that is ignored.
TEST(Expression, SyntaxErrorsNameThePosition) {
  auto error = [](const std::string& text) { return error_text([&] { evaluate(text); }); };
  expect_mentions(error(""), {"position 1", "expected a number"});
  expect_mentions(error("1 +"), {"'1 +'", "position 4"});
  expect_mentions(error("1 2"), {"position 3", "operator"});
  expect_mentions(error("(1"), {"position 3", "')'"});
  expect_mentions(error("1)"), {"position 2"});
  expect_mentions(error("A = 1"), {"position 3"});
  expect_mentions(error("A & B"), {"position 3"});
  expect_mentions(error("A + FOO"), {"position 5", "'FOO'", "A, B", "ceil_div()"});
  expect_mentions(error("min(1)"), {"position 6", "two arguments"});
  expect_mentions(error("min(1, 2, 3)"), {"position 9"});
  expect_mentions(error("min"), {"position 4", "'('"});
  expect_mentions(error("3x"), {"position 2"});
  expect_mentions(error("99999999999999999999"), {"position 1", "64 bits"});
  expect_mentions(error(std::string(5000, '(')), {"longer than 4096"});
  expect_mentions(error(std::string(4000, '(')), {"deeper than 100"});
  expect_mentions(error(std::string(4000, '!') + "1"), {"deeper than 100"});
}

// Catches undefined behaviour: it must be an error, never a wrong answer.
TEST(Expression, ArithmeticErrors) {
  auto error = [](const std::string& text, int64_t a = 0) { return error_text([&] { evaluate(text, a); }); };
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  expect_mentions(error("1 / A"), {"'1 / A'", "zero"});
  expect_mentions(error("1 % A"), {"zero"});
  expect_mentions(error("A + 1", most), {"overflow"});
  expect_mentions(error("A - 1", least), {"overflow"});
  expect_mentions(error("A * 2", most), {"overflow"});
  expect_mentions(error("-A", least), {"overflow"});
  expect_mentions(error("A / -1", least), {"overflow"});
  expect_mentions(error("ceil_div(1, A)"), {"1 and 0"});
  expect_mentions(error("round_up(A, 4)", -1), {"-1 and 4"});
  expect_mentions(error("round_up(A, 4)", most), {"overflow"});
  EXPECT_EQ(evaluate("ceil_div(A, 2)", most), most / 2 + 1);
}

}  // namespace
}  // namespace pagetune
