// A dispatch table as bytes, for ranks that must run the same kernels.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/json.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/dispatch.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::json;  // sorted keys

constexpr int kFormat = 1;
constexpr size_t kLargest = 1 << 20;  // bytes; a table of every cell another config has some 100 KiB
constexpr size_t kNumbers = 4;        // of a cell: config and source where lengths may differ, the same where they are alike

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the snapshot is not one of Kernel::snapshot(): {}; broadcast its bytes unchanged, between builds of one version", why));
}

Selection selection_of(const Json& index, const Json& source, size_t configs) {
  if (!index.is_number_unsigned() || index.get<uint64_t>() >= configs) refuse(fmt::format("a cell names config {} of {}", index.dump(), configs));
  if (!source.is_number_unsigned() || source.get<uint64_t>() > static_cast<uint64_t>(Source::other_device)) refuse(fmt::format("a cell's source is {}", source.dump()));
  return {index.get<uint16_t>(), static_cast<Source>(source.get<uint8_t>())};
}

}  // namespace

std::string DispatchTable::snapshot() const {
  Json cells = Json::array(), configs = Json::array();
  for (const auto& [differing, alike] : cells_) cells.push_back({differing.index, static_cast<int>(differing.source), alike.index, static_cast<int>(alike.source)});
  for (const KernelConfig& config : configs_) configs.push_back(config.values());
  return Json{{"format", kFormat}, {"spec", Json::parse(canonical_json(spec_))}, {"configs", configs}, {"cells", cells}, {"digest", digest_}}.dump();
}

DispatchTable DispatchTable::from_snapshot(const AttentionSpec& spec, const Target& target, const std::string& text) {
  if (text.size() > kLargest) refuse(fmt::format("it has {} bytes, {} are allowed", text.size(), kLargest));
  DispatchTable table(spec, target);
  table.from_snapshot_ = true;
  table.answered_by_.fill(-1);
  try {
    const Json json = parse_json(text, "the snapshot");
    if (json.at("format") != kFormat) refuse(fmt::format("its format is {}, this build reads {}", json.at("format").dump(), kFormat));
    if (json.at("spec").dump() != canonical_json(spec))
      throw Error(ErrorCode::mismatch, fmt::format("the snapshot is of another spec, {}; asked for was {}: take the one of the same kernel", json.at("spec").dump(), canonical_json(spec)));
    for (const Json& values : json.at("configs")) {
      const auto config = KernelConfig::from_json(values.dump());
      if (const Support support = supports(spec, config, target); !support)
        throw Error(ErrorCode::unsupported, fmt::format("the snapshot's config {} does not run on this device ({}): ranks that share a snapshot need devices of one kind", config.canonical_json(), support.reason));
      table.configs_.push_back(config);
    }
    const Json& cells = json.at("cells");
    if (!cells.is_array() || cells.size() != table.cells_.size()) refuse(fmt::format("it has {} cells, a table has {}", cells.size(), table.cells_.size()));
    for (size_t i = 0; i < cells.size(); ++i) {
      const Json& cell = cells[i];
      if (!cell.is_array() || cell.size() != kNumbers) refuse("a cell is not four numbers");
      table.cells_[i] = {selection_of(cell[0], cell[1], table.configs_.size()), selection_of(cell[2], cell[3], table.configs_.size())};
    }
    table.finish();
    if (json.at("digest") != table.digest_) refuse("its digest is not that of its content");
  } catch (const Json::exception& wrong) {
    refuse(wrong.what());
  }
  return table;
}

}  // namespace pagetune
