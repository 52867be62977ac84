// Runs every file of a folder through fuzz_one(): what a fuzzer once found interesting stays tested without one.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "one.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::fprintf(stderr, "%s\n", entry.path().c_str());
    fuzz_one(bytes);
    ++files;
  }
  if (files == 0) {
    std::fprintf(stderr, "%s holds no file\n", argv[1]);
    return 1;
  }
  return 0;
}
