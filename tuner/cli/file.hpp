// Whole files of the command line.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>

namespace pagetune::cli {

// All of a file of at most `most_bytes`: a device or a pipe must not be read for ever. Error io naming the path and `what` it was to be read as.
std::string read_file(const std::filesystem::path&, const std::string& what, size_t most_bytes);

// A regular file is replaced at once: who reads it meanwhile has the old one to the end, and a failure leaves it as it was. Error io naming the path and what to do.
void write_file(const std::filesystem::path&, const std::string& text);

}  // namespace pagetune::cli
