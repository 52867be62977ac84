#include <fmt/format.h>

#include <cstdlib>

#include "cache_db/binary_archive.hpp"
#include "cache_db/binary_table.hpp"
#include "one.hpp"

using namespace pagetune;

namespace {

// With the sums that its headers ought to have: a fuzzer does not guess them, and what lies behind one would not be met.
std::string summed(std::string bytes) {
  for (size_t at = 0; bytes.size() >= 512 && at <= bytes.size() - 512;) {
    bytes.replace(at + 148, 8, "        ");
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[at + i]);
    bytes.replace(at + 148, 7, fmt::format("{:06o}", sum) + '\0');
    const size_t size = std::strtoull(bytes.substr(at + 124, 12).c_str(), nullptr, 8);
    at += 512 + (size < bytes.size() ? (size + 511) / 512 * 512 : bytes.size());
  }
  return bytes;
}

void parse(const std::string& bytes) {
  const std::vector<Binary> binaries = parse_binary_archive("kernels.tar", bytes);
  fuzz::require(!binaries.empty(), "an archive that was taken holds something");
  for (const Binary& binary : binaries) check_binary(binary);
  for (size_t i = 1; i < binaries.size(); ++i) fuzz::require(binaries[i - 1].key < binaries[i].key, "keys are sorted and each is there once");
  const std::string again = binary_archive(binaries, {});
  fuzz::require(binary_archive(parse_binary_archive("again", again), {}) == again, "what was taken can be written and read");
}

}  // namespace

void fuzz_one(const std::string& input) {
  fuzz::refuses_with_a_sentence([&] { parse(input); });
  fuzz::refuses_with_a_sentence([&] { parse(summed(input)); });
}
