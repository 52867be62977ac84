// A store with known winners for report_test.py: report_store DIR TABLE.json… puts the tables' rows there, and those of a device whose name is markup.
#include <cstdio>
#include <fstream>
#include <iterator>

#include "cache_db/store.hpp"
#include "cache_db/table.hpp"

int main(int argc, char** argv) {
  using namespace pagetune;
  if (argc < 3) return 2;
  auto store = Store::open(argv[1]);
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    for (Store::Row row : parse_table(argv[i], {std::istreambuf_iterator<char>(file), {}})) {
      store->put_winner(row.winner, row.environment, row.spec);
      // The same again as a device that nobody knows, with text that would be markup if it were not escaped.
      row.environment.device = R"(<img src=x onerror="document.title='taken'"> & 'Co' </script><script>document.title="taken"</script>)";
      row.environment.driver = "<b>1";
      row.winner.env_key = row.environment.key();
      row.winner.floor_us = 0;
      row.winner.space_hash = "another";
      row.winner.reason = R"(</td><script src="http://example.invalid/x.js"></script>)";
      row.winner.session = "<i>host</i>";
      store->put_winner(row.winner, row.environment, row.spec);
    }
  }
  for (const std::string& problem : store->problems()) std::fprintf(stderr, "%s\n", problem.c_str());
  return store->problems().empty() ? 0 : 1;
}
