#include "one.hpp"
#include "runtime/dispatch.hpp"

using namespace pagetune;

void fuzz_one(const std::string& input) {
  static const Target target = Target::by_name("sm_90a");
  const AttentionSpec spec;
  fuzz::refuses_with_a_sentence([&] {
    const DispatchTable table = DispatchTable::from_snapshot(spec, target, input);
    for (const CallShape& call : DispatchTable::reachable(1 << 16, 1 << 22)) fuzz::require(table.at(call).index < table.configs().size(), "a cell names a config");
    fuzz::require(DispatchTable::from_snapshot(spec, target, table.snapshot()).digest() == table.digest(), "a snapshot of a snapshot is the same table");
  });
}
