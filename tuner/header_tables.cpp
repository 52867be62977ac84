#include "tuner/header_tables.hpp"

#include <map>
#include <utility>

#include "cache_db/layers.hpp"
#include "cache_db/table.hpp"
#include "codegen/generate.hpp"
#include "runtime/dispatch.hpp"

namespace pagetune {
namespace {

HeaderTable::From from(Source source) {
  switch (source) {
    case Source::tuned: return HeaderTable::From::winner;
    case Source::nearest: return HeaderTable::From::nearest_winner;
    case Source::other_device:  // not of rows of one environment
    case Source::analytic_default: break;
  }
  return HeaderTable::From::analytic_default;
}

}  // namespace

std::vector<HeaderTable> header_tables(const std::vector<Store::Row>& rows) {
  std::map<std::pair<std::string, std::string>, std::vector<Store::Row>> grouped;  // by environment and spec
  for (const Store::Row& row : rows) grouped[{row.winner.env_key, row.winner.spec_key}].push_back(row);
  std::vector<HeaderTable> tables;
  for (const auto& [keys, group] : grouped) {
    const Store::Row& first = group.front();
    const DispatchTable dispatch(first.spec, target_of(first.environment), layered(candidates(first.environment, generator_hash(), group).begin()->second));
    HeaderTable table{first.environment, first.spec, dispatch.configs(), {}};
    for (int i = 0; i < Bucket::kCells; ++i)
      for (const bool alike : {false, true}) {
        const Selection answer = dispatch.at({Bucket::at(i), alike});
        table.cells[static_cast<size_t>(i)][alike ? 1 : 0] = {answer.index, from(answer.source)};
      }
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace pagetune
