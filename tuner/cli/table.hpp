// A text table: columns as wide as their widest cell, numbers to the right.
#pragma once
#include <string>
#include <vector>

namespace pagetune::cli {

class Table {
 public:
  // A name that begins with '>' heads a column that is aligned to the right.
  explicit Table(const std::vector<std::string>& names);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::string> names_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace pagetune::cli
