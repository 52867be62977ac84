// A map over batch x length as an SVG: one cell for each bucket. Colours are the page's: a cell says how far along the scale it is.
#pragma once
#include <string>
#include <vector>

#include "codegen/bucket.hpp"

namespace pagetune {

struct HeatCell {
  Bucket bucket;
  std::string label;   // a few characters
  std::string detail;  // one sentence, shown when the cell is pointed at
  double level = 0;    // 0 to 1 along the colour scale; what lies outside is taken for the nearer end
  int kind = 0;        // 0: the scale's colour, else that of class kind1, kind2, …
  int region = 0;      // a thick line runs between neighbouring cells of different regions
};

// Places without a cell are only outlined. Texts are escaped here.
std::string heat_map_svg(const std::string& title, const std::vector<HeatCell>& cells);

}  // namespace pagetune
