// Conditions over 64-bit integers, as they stand in configs/template_config.json.
//
//   or    := and ("||" and)*                      comparisons and logic give 0 or 1; any value but 0 is true
//   and   := equal ("&&" equal)*                  && and || do not evaluate their right side needlessly
//   equal := order (("==" | "!=") order)*
//   order := sum (("<" | "<=" | ">" | ">=") sum)*
//   sum   := term (("+" | "-") term)*
//   term  := unary (("*" | "/" | "%") unary)*     division truncates towards zero, as in C++
//   unary := ("!" | "-") unary | atom
//   atom  := integer | name | function "(" or ("," or)* ")" | "(" or ")"
//   function := "min" | "max" | "ceil_div" | "round_up", all of two arguments
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

namespace pagetune {

class Expression {
 public:
  // What names mean: a slot in the values given to evaluate(), or another expression that stands in for the name.
  struct Scope {
    std::map<std::string, size_t> variables;
    std::map<std::string, Expression> definitions;
  };

  // Error invalid_argument naming the text, the position (from 1) and what was expected there.
  static Expression parse(const std::string& text, const Scope& scope);

  // values[slot] for every slot in slots(). Error invalid_argument for overflow and for division by zero.
  int64_t evaluate(std::span<const int64_t> values) const;

  // Slots that the value can depend on, through definitions too.
  const std::set<size_t>& slots() const { return slots_; }
  const std::string& text() const { return text_; }

  struct Node;

 private:
  std::string text_;
  std::shared_ptr<const Node> root_;
  std::set<size_t> slots_;
};

}  // namespace pagetune
