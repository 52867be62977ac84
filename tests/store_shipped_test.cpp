// The tables that come with the repository.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cache_db/table.hpp"

using namespace pagetune;

namespace {

// Fault: a committed table that this build would not load: its space lost a value, its digest does not match, its name says another shape.
TEST(ShippedTables, EveryOneLoads) {
  int tables = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(PAGETUNE_SOURCE_DIR "/configs/tuned")) {
    if (entry.path().extension() != ".json") continue;
    ++tables;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    const auto rows = parse_table(entry.path().string(), text.str());
    ASSERT_FALSE(rows.empty()) << entry.path();
    const std::string page = "page=" + std::to_string(rows.front().spec.page_size) + ",";
    EXPECT_NE(entry.path().filename().string().find(page), std::string::npos) << entry.path();
    for (const auto& row : rows) EXPECT_GT(row.winner.median_us, 0) << entry.path() << " " << row.winner.bucket.text();
  }
  EXPECT_GE(tables, 2);
}

}  // namespace
