#include "cache_db/table_source.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cache_db/source.hpp"
#include "cache_db/table.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Not more of it than shows that it is too large.
std::string contents(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw Error(ErrorCode::io, fmt::format("{}: {}", path, error ? error.message() : "it is not a regular file"));
  std::ifstream file(path, std::ios::binary);
  std::string text(kLargestTable + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) throw Error(ErrorCode::io, fmt::format("{} could not be read: {}", path, std::strerror(errno)));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

MergeSource read_table(const std::string& path) {
  MergeSource source{path, parse_table(path, contents(path)), {}};
  for (const Store::Row& row : source.rows)
    if (std::string reason = row_refusal(row); !reason.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("{}: bucket {}: {}", path, row.winner.bucket.text(), reason));
  return source;
}

}  // namespace pagetune
