#include "cache_db/winner_lines.hpp"
#include "codegen/sha256.hpp"
#include "one.hpp"

using namespace pagetune;

// Each line as it is, and with the sum that makes it whole, which no fuzzer finds.
void fuzz_one(const std::string& input) {
  size_t start = 0;
  while (start <= input.size()) {
    const size_t end = std::min(input.find('\n', start), input.size());
    const std::string line = input.substr(start, end - start);
    start = end + 1;
    for (const std::string& text : {line, line + ",\"sha256\":\"" + sha256_hex(line) + "\"}"}) {
      const std::optional<WinnerLine> read = winner_line(text);
      if (!read) continue;
      std::string written = to_text(*read);
      fuzz::require(written.find('\n') == written.size() - 1, "a line is one line");
      written.pop_back();
      const std::optional<WinnerLine> again = winner_line(written);
      fuzz::require(again.has_value() && to_text(*again) == written + "\n", "what was read can be written and read again");
    }
  }
}
