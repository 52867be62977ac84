#include "cache_db/export.hpp"
#include "cache_db/table.hpp"
#include "one.hpp"

using namespace pagetune;

void fuzz_one(const std::string& input) {
  fuzz::refuses_with_a_sentence([&] {
    const std::vector<Store::Row> rows = parse_table("t.json", input);
    const std::vector<ExportedFile> files = export_json(rows);
    fuzz::require(files.size() == 1, "a table is one file");
    fuzz::require(parse_table(files[0].name, files[0].text).size() == rows.size(), "what was read can be written and read again");
    export_csv(rows);
  });
}
