#include "tuner/heat_map.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tuner/html.hpp"

namespace pagetune {
namespace {

// In units of the view box; a unit is a pixel where there is room.
constexpr int kCellWidth = 62, kCellHeight = 36, kLeft = 46, kTop = 44, kBottom = 4;

// 131072 -> "128k"
std::string short_text(int value) { return value >= 1024 && value % 1024 == 0 ? fmt::format("{}k", value / 1024) : fmt::format("{}", value); }

struct Place {
  int column, row;
  auto operator<=>(const Place&) const = default;
  int x() const { return kLeft + column * kCellWidth; }
  int y() const { return kTop + row * kCellHeight; }
};

std::string cell_svg(const HeatCell& cell, Place at) {
  const double level = std::clamp(cell.level, 0.0, 1.0);
  return fmt::format(
      R"(<g class="cell {}" tabindex="0" data-bucket="{}" data-detail="{}" style="--level:{:.1f}%"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="4"/><text x="{}" y="{}">{}</text></g>)"
      "\n",
      cell.kind == 0 ? (level > 0.7 ? "scale high" : "scale") : fmt::format("kind{}", cell.kind), cell.bucket.text(), html_escape(cell.detail), 100 * level, html_escape(cell.detail), at.x() + 1, at.y() + 1,
      kCellWidth - 2, kCellHeight - 2, at.x() + kCellWidth / 2, at.y() + kCellHeight / 2, html_escape(cell.label));
}

}  // namespace

std::string heat_map_svg(const std::string& title, const std::vector<HeatCell>& cells) {
  std::set<int> lens, batches;
  for (const HeatCell& cell : cells) {
    lens.insert(cell.bucket.len());
    batches.insert(cell.bucket.batch());
  }
  const auto index = [](const std::set<int>& all, int value) { return static_cast<int>(std::distance(all.begin(), all.find(value))); };
  std::map<Place, const HeatCell*> placed;
  for (const HeatCell& cell : cells) placed[{index(lens, cell.bucket.len()), index(batches, cell.bucket.batch())}] = &cell;

  const int width = kLeft + static_cast<int>(lens.size()) * kCellWidth + 2, height = kTop + static_cast<int>(batches.size()) * kCellHeight + kBottom;
  // On a phone cells shrink to three quarters; beyond that the box scrolls.
  std::string svg = fmt::format(R"(<div class="box"><svg class="heat" role="img" aria-label="{}" viewBox="0 0 {} {}" style="max-width:{}px;min-width:{}px">)" "\n", html_escape(title), width, height, width * 3 / 2,
                                width * 3 / 4);
  svg += fmt::format(R"(<text class="axis end" x="{}" y="{}">batch</text><text class="axis start" x="{}" y="10">length in tokens</text>)" "\n", kLeft - 8, kTop - 12, kLeft + 2);
  for (const int len : lens) svg += fmt::format(R"(<text class="axis" x="{}" y="{}">{}</text>)" "\n", kLeft + index(lens, len) * kCellWidth + kCellWidth / 2, kTop - 12, short_text(len));
  for (const int batch : batches) svg += fmt::format(R"(<text class="axis end" x="{}" y="{}">{}</text>)" "\n", kLeft - 8, kTop + index(batches, batch) * kCellHeight + kCellHeight / 2, batch);
  for (int row = 0; row < static_cast<int>(batches.size()); ++row)
    for (int column = 0; column < static_cast<int>(lens.size()); ++column)
      if (const Place at{column, row}; !placed.contains(at))
        svg += fmt::format(R"(<rect class="gap" x="{}" y="{}" width="{}" height="{}" rx="4"/>)" "\n", at.x() + 2, at.y() + 2, kCellWidth - 4, kCellHeight - 4);
  for (const auto& [at, cell] : placed) svg += cell_svg(*cell, at);
  const auto edge = [&](const HeatCell* cell, Place neighbour, int x1, int y1, int x2, int y2) {
    const auto found = placed.find(neighbour);
    if (found != placed.end() && found->second->region != cell->region) svg += fmt::format(R"(<line class="edge" x1="{}" y1="{}" x2="{}" y2="{}"/>)" "\n", x1, y1, x2, y2);
  };
  for (const auto& [at, cell] : placed) {
    const int right = at.x() + kCellWidth, below = at.y() + kCellHeight;
    edge(cell, {at.column + 1, at.row}, right, at.y(), right, below);
    edge(cell, {at.column, at.row + 1}, at.x(), below, right, below);
  }
  return svg + "</svg></div>\n";
}

}  // namespace pagetune
