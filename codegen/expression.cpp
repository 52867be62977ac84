#include "codegen/expression.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "pagetune/error.hpp"

namespace pagetune {
namespace {

enum class Op : uint8_t {
  constant, variable, negate, logical_not, add, subtract, multiply, divide, modulo,
  equal, not_equal, less, less_equal, greater, greater_equal, logical_and, logical_or,
  minimum, maximum, ceil_div, round_up,
};

struct Function {
  const char* name;
  Op op;
};
constexpr std::array kFunctions = {
    Function{"min", Op::minimum},
    Function{"max", Op::maximum},
    Function{"ceil_div", Op::ceil_div},
    Function{"round_up", Op::round_up},
};

}  // namespace

struct Expression::Node {
  Op op = Op::constant;
  int64_t value = 0;  // of a constant; the slot of a variable
  std::shared_ptr<const Node> left, right;
};

namespace {

using Node = Expression::Node;
using NodePtr = std::shared_ptr<const Node>;

class Parser {
 public:
  Parser(const std::string& text, const Expression::Scope& scope, std::set<size_t>& slots) : text_(text), scope_(scope), slots_(slots) {}

  // `roots` are the trees of scope.definitions; Expression keeps them private.
  NodePtr parse(const std::map<std::string, NodePtr>& roots) {
    // A long chain makes a deep tree, which evaluation walks recursively.
    constexpr size_t kMaxLength = 4096;
    if (text_.size() > kMaxLength) fail(fmt::format("longer than {} characters", kMaxLength));
    roots_ = &roots;
    NodePtr root = binary(0);
    skip_blanks();
    if (at_ != text_.size()) fail("expected an operator or the end");
    return root;
  }

 private:
  struct Operator {
    std::string_view symbol;
    Op op;
  };
  // From the loosest to the tightest. Longer symbols first where one begins another.
  static const std::vector<std::vector<Operator>>& levels() {
    static const std::vector<std::vector<Operator>> kLevels = {
        {{"||", Op::logical_or}},
        {{"&&", Op::logical_and}},
        {{"==", Op::equal}, {"!=", Op::not_equal}},
        {{"<=", Op::less_equal}, {">=", Op::greater_equal}, {"<", Op::less}, {">", Op::greater}},
        {{"+", Op::add}, {"-", Op::subtract}},
        {{"*", Op::multiply}, {"/", Op::divide}, {"%", Op::modulo}},
    };
    return kLevels;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("the expression '{}' is wrong at position {}: {}", text_, at_ + 1, expected));
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }

  bool take(std::string_view symbol) {
    skip_blanks();
    if (text_.compare(at_, symbol.size(), symbol) != 0) return false;
    at_ += symbol.size();
    return true;
  }

  NodePtr binary(size_t level) {
    if (level == levels().size()) return unary();
    NodePtr left = binary(level + 1);
    for (;;) {
      const auto& operators = levels()[level];
      auto found = std::find_if(operators.begin(), operators.end(), [&](const Operator& candidate) { return take(candidate.symbol); });
      if (found == operators.end()) return left;
      left = std::make_shared<const Node>(Node{found->op, 0, left, binary(level + 1)});
    }
  }

  NodePtr unary() {
    // The file may be a user's: without a bound a long row of parentheses would exhaust the stack.
    constexpr int kMaxDepth = 100;
    if (++depth_ > kMaxDepth) fail(fmt::format("nested deeper than {}", kMaxDepth));
    NodePtr node;
    if (take("!")) {
      node = std::make_shared<const Node>(Node{Op::logical_not, 0, unary(), nullptr});
    } else if (take("-")) {
      node = std::make_shared<const Node>(Node{Op::negate, 0, unary(), nullptr});
    } else {
      node = atom();
    }
    --depth_;
    return node;
  }

  NodePtr atom() {
    if (take("(")) {
      NodePtr inner = binary(0);
      if (!take(")")) fail("expected ')'");
      return inner;
    }
    if (at_ < text_.size() && is_digit(text_[at_])) return number();
    if (at_ < text_.size() && is_letter(text_[at_])) return name();
    fail("expected a number, a name or '('");
  }

  NodePtr number() {
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("the number does not fit 64 bits");
    at_ += static_cast<size_t>(end - begin);
    if (at_ < text_.size() && is_letter(text_[at_])) fail("expected an operator after the number");
    return std::make_shared<const Node>(Node{Op::constant, value, nullptr, nullptr});
  }

  NodePtr name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    for (const Function& function : kFunctions) {
      if (word == function.name) return call(function);
    }
    if (auto variable = scope_.variables.find(word); variable != scope_.variables.end()) {
      slots_.insert(variable->second);
      return std::make_shared<const Node>(Node{Op::variable, static_cast<int64_t>(variable->second), nullptr, nullptr});
    }
    if (auto definition = scope_.definitions.find(word); definition != scope_.definitions.end()) {
      slots_.insert(definition->second.slots().begin(), definition->second.slots().end());
      return roots_->at(word);
    }
    at_ = begin;
    std::vector<std::string> known;
    for (const auto& [key, slot] : scope_.variables) known.push_back(key);
    for (const auto& [key, expression] : scope_.definitions) known.push_back(key);
    for (const Function& function : kFunctions) known.push_back(std::string(function.name) + "()");
    fail(fmt::format("the name '{}' is unknown; known are {}", word, fmt::join(known, ", ")));
  }

  NodePtr call(const Function& function) {
    if (!take("(")) fail(fmt::format("expected '(' after {}", function.name));
    NodePtr first = binary(0);
    if (!take(",")) fail(fmt::format("expected ',' because {} takes two arguments", function.name));
    NodePtr second = binary(0);
    if (!take(")")) fail(fmt::format("expected ')' because {} takes two arguments", function.name));
    return std::make_shared<const Node>(Node{function.op, 0, first, second});
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

  const std::string& text_;
  const Expression::Scope& scope_;
  std::set<size_t>& slots_;
  const std::map<std::string, NodePtr>* roots_ = nullptr;
  size_t at_ = 0;
  int depth_ = 0;
};

class Evaluator {
 public:
  Evaluator(const std::string& text, std::span<const int64_t> values) : text_(text), values_(values) {}

  int64_t operator()(const Node& node) const {
    switch (node.op) {
      case Op::constant: return node.value;
      case Op::variable: return values_[static_cast<size_t>(node.value)];
      case Op::negate: return subtract(0, (*this)(*node.left));
      case Op::logical_not: return (*this)(*node.left) == 0;
      case Op::logical_and: return (*this)(*node.left) != 0 && (*this)(*node.right) != 0;
      case Op::logical_or: return (*this)(*node.left) != 0 || (*this)(*node.right) != 0;
      default: return apply(node.op, (*this)(*node.left), (*this)(*node.right));
    }
  }

 private:
  int64_t apply(Op op, int64_t a, int64_t b) const {
    switch (op) {
      case Op::add: return add(a, b);
      case Op::subtract: return subtract(a, b);
      case Op::multiply: return multiply(a, b);
      case Op::divide: return divide(a, b);
      case Op::modulo: return subtract(a, multiply(divide(a, b), b));
      case Op::equal: return a == b;
      case Op::not_equal: return a != b;
      case Op::less: return a < b;
      case Op::less_equal: return a <= b;
      case Op::greater: return a > b;
      case Op::greater_equal: return a >= b;
      case Op::minimum: return std::min(a, b);
      case Op::maximum: return std::max(a, b);
      case Op::ceil_div: return ceil_div(a, b);
      case Op::round_up: return multiply(ceil_div(a, b), b);
      default: fail("holds an operator without a rule");
    }
  }

  int64_t add(int64_t a, int64_t b) const {
    int64_t result = 0;
    if (__builtin_add_overflow(a, b, &result)) fail("overflows 64 bits");
    return result;
  }
  int64_t subtract(int64_t a, int64_t b) const {
    int64_t result = 0;
    if (__builtin_sub_overflow(a, b, &result)) fail("overflows 64 bits");
    return result;
  }
  int64_t multiply(int64_t a, int64_t b) const {
    int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result)) fail("overflows 64 bits");
    return result;
  }
  int64_t divide(int64_t a, int64_t b) const {
    if (b == 0) fail("divides by zero");
    if (b == -1) return subtract(0, a);  // INT64_MIN / -1 traps
    return a / b;
  }
  int64_t ceil_div(int64_t a, int64_t b) const {
    if (a < 0 || b <= 0) fail(fmt::format("calls ceil_div or round_up with {} and {}; they need a >= 0 and b >= 1", a, b));
    return a / b + (a % b != 0);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("the expression '{}' {}", text_, what));
  }

  const std::string& text_;
  std::span<const int64_t> values_;
};

}  // namespace

Expression Expression::parse(const std::string& text, const Scope& scope) {
  std::map<std::string, NodePtr> roots;
  for (const auto& [name, definition] : scope.definitions) roots.emplace(name, definition.root_);
  Expression expression;
  expression.text_ = text;
  expression.root_ = Parser(text, scope, expression.slots_).parse(roots);
  return expression;
}

int64_t Expression::evaluate(std::span<const int64_t> values) const { return Evaluator(text_, values)(*root_); }

}  // namespace pagetune
