#include "tuner/cli/table.hpp"

#include <algorithm>

namespace pagetune::cli {
namespace {

// Characters, not bytes: cells may hold "±" and "µ".
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Table::Table(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    right_.push_back(name.starts_with('>'));
    names_.push_back(right_.back() ? name.substr(1) : name);
  }
}

void Table::add(std::vector<std::string> row) {
  row.resize(names_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const std::string& name : names_) widths.push_back(width_of(name));
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  auto line = [&](const std::vector<std::string>& cells) {
    std::string made;
    for (size_t c = 0; c < cells.size(); ++c) {
      std::string blanks(widths[c] - width_of(cells[c]), ' ');
      if (c > 0) made += "  ";
      made += right_[c] ? blanks + cells[c] : cells[c] + blanks;
    }
    made.erase(made.find_last_not_of(' ') + 1);
    return made + "\n";
  };
  std::string all = line(names_);
  for (const auto& row : rows_) all += line(row);
  return all;
}

}  // namespace pagetune::cli
