#include <unistd.h>

#include "cache_db/quiet_file.hpp"
#include "cache_db/source.hpp"
#include "cache_db/winner_choices.hpp"
#include "cache_db/winner_schema.hpp"
#include "one.hpp"

using namespace pagetune;

namespace {

// A file of this process, in memory where there is some.
const std::string& file() {
  static const std::string path = [] {
    std::string pattern = access("/dev/shm", W_OK) == 0 ? "/dev/shm/pagetune-fuzz-XXXXXX" : "/tmp/pagetune-fuzz-XXXXXX";
    const int descriptor = mkstemp(pattern.data());
    fuzz::require(descriptor >= 0, "a file can be made");
    close(descriptor);
    std::atexit([] { unlink(file().c_str()); });
    return pattern;
  }();
  return path;
}

}  // namespace

void fuzz_one(const std::string& input) {
  std::FILE* out = std::fopen(file().c_str(), "wb");
  fuzz::require(out != nullptr && std::fwrite(input.data(), 1, input.size(), out) == input.size() && std::fclose(out) == 0, "the file can be written");
  fuzz::refuses_with_a_sentence([&] {
    const Source source = read_source(file());
    for (const Store::Row& row : source.content.rows) fuzz::require(row_refusal(row).empty(), "a row that was taken may be taken");
    if (!source.content.rows.empty()) read_source(file(), source.content.rows[0].winner.spec_key);
  });
  // What dispatch reads of a store's own file, which damage may have reached since it was opened.
  try {
    const std::unique_ptr<SQLite::Database> db = open_quietly(file());
    if (!refusal(*db, winners_schema()).empty()) return;
    for (const auto& [spec, winners] : read_choices(*db, Environment(), "").winners) fuzz::require(!winners.empty(), "a spec without winners is not there");
  } catch (const SQLite::Exception&) {
  }
}
