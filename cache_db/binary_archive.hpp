// Compiled kernels as one POSIX ustar file: "manifest.json", then a file for each binary, named by its key. docs/cache-format.md describes it.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "codegen/binary.hpp"

namespace pagetune {

// Sorted by key, without times, owners or names of users: the same binaries and compilers give the same bytes. compilers: Compiler::identity() of those that the exporting machine has. Error
// invalid_argument for binaries that parse_binary_archive() would not take.
std::string binary_archive(std::vector<Binary> binaries, const std::set<std::string>& compilers);

// All binaries of an archive, as data from outside, sorted by key. Error invalid_argument, naming `file` and the entry, for another format of tar, an entry that is no regular file, a name that is
// no key, a size or sha256 other than the manifest's, an entry that is missing, unknown or there twice, and anything behind the end.
std::vector<Binary> parse_binary_archive(const std::string& file, const std::string& bytes);

// The same of a file, which is code: Error io unless it is to be trusted as the store's own files are, and for more than 640 MiB, which holds a full store.
std::vector<Binary> read_binary_archive(const std::string& path);

// By its name, or by the mark in its first header.
bool is_binary_archive(const std::string& path);

}  // namespace pagetune
