// Dispatch tables as one C++17 header that needs nothing but the standard library, for engines that embed what was tuned and not pagetune. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/bucket.hpp"
#include "codegen/config.hpp"
#include "codegen/environment.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

// What answers in every cell for one spec on one device.
struct HeaderTable {
  enum class From : uint8_t { winner, nearest_winner, analytic_default };
  struct Cell {
    uint16_t config = 0;  // index into configs
    From from = From::analytic_default;
  };
  Environment environment;
  AttentionSpec spec;
  std::vector<KernelConfig> configs;
  std::array<std::array<Cell, 2>, Bucket::kCells> cells{};  // as CallShape: lengths that may differ, lengths that are alike
};

// In whatever order they come, the same tables give the same bytes. Tables of one device name and spec are written newest driver first, and that one answers for the name.
// Error unsupported where there are more than 65,536 configs.
std::string export_header(std::vector<HeaderTable> tables);

// The part that is the same in every header: its types before the tables and its look-up behind them. "pagetune_tables" is its one name outside.
extern const char* const kHeaderTypes;
extern const char* const kHeaderLookup;

}  // namespace pagetune
