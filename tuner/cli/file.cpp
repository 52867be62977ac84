#include "tuner/cli/file.hpp"

#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "pagetune/error.hpp"

namespace pagetune::cli {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path, const std::string& what, size_t most_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string text(most_bytes + 1, '\0');
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof())
    throw Error(ErrorCode::io, fmt::format("'{}' could not be read as {}: it is unreadable or larger than {} MiB", path.string(), what, most_bytes >> 20));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

void write_file(const fs::path& path, const std::string& text) {
  std::error_code failure;
  const bool in_place = fs::exists(path, failure) && !fs::is_regular_file(path, failure);  // /dev/stdout
  const fs::path unfinished = in_place ? path : fs::path(fmt::format("{}.{}.part", path.string(), getpid()));
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  failure.clear();
  if (file && !in_place) fs::rename(unfinished, path, failure);
  if (file && !failure) return;
  if (!in_place) fs::remove(unfinished, failure);
  throw Error(ErrorCode::io, fmt::format("'{}' could not be written: name a file in a directory that is there, is writable and has {} bytes free", path.string(), text.size()));
}

}  // namespace pagetune::cli
