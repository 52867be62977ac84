#include "cache_db/export_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "cache_db/dispatch_columns.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// A C++ string literal of any bytes. Three octal digits end where they end, and an escaped question mark begins no trigraph.
std::string literal(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '?') made += '\\';
    made += byte < 0x20 || byte > 0x7e ? fmt::format("\\{:03o}", byte) : std::string(1, c);
  }
  return made + "\"";
}

// "13.0" before "9.2": runs of digits count as numbers.
std::vector<int64_t> version_of(const std::string& text) {
  std::vector<int64_t> parts;
  constexpr int64_t kMost = 1'000'000'000;
  bool inside = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !inside) parts.push_back(0);
    if (digit) parts.back() = std::min(kMost, parts.back() * 10 + (c - '0'));
    inside = digit;
  }
  return parts;
}

struct Order {
  std::string device, spec, environment;
  std::vector<int64_t> driver, compiler;
  explicit Order(const HeaderTable& table)
      : device(table.environment.device), spec(spec_key(table.spec)), environment(table.environment.key()), driver(version_of(table.environment.driver)),
        compiler(version_of(table.environment.compiler)) {}
  bool operator<(const Order& other) const {  // newest first
    return std::tie(device, spec, other.driver, other.compiler, environment) < std::tie(other.device, other.spec, driver, compiler, other.environment);
  }
};

// One line for each batch, so that a change of one bucket changes few lines.
std::string steps_text(const std::string& name, const HeaderTable& table, size_t alike, const std::map<KernelConfig, size_t>& configs) {
  std::string text = fmt::format("inline constexpr Step {}[] = {{", name);
  const auto same = [](const HeaderTable::Cell& a, const HeaderTable::Cell& b) { return a.config == b.config && a.from == b.from; };
  for (int i = 0; i < Bucket::kCells; ++i) {
    const HeaderTable::Cell& cell = table.cells[static_cast<size_t>(i)][alike];
    const bool new_batch = i % Bucket::kLenCells == 0;
    if (new_batch) text += fmt::format("\n    /* {:>5} x */", Bucket::at(i).batch());
    if (!new_batch && same(cell, table.cells[static_cast<size_t>(i - 1)][alike])) continue;
    constexpr const char* kFrom[] = {"tuned", "nearest", "analytic_default"};
    text += fmt::format(" {{{}, {}, Source::{}}},", i, configs.at(table.configs.at(cell.config)), kFrom[static_cast<size_t>(cell.from)]);
  }
  return text + "\n};\n";
}

std::string columns_text(const AttentionSpec& spec) {
  const std::map<std::string, int> values = dispatch_values(spec);
  std::string text;
  for (const char* column : kDispatchColumns) text += fmt::format("{}, ", values.at(column));
  return fmt::format("{{{}{}, {}}}", text, literal(name_of(spec.q_dtype)), literal(name_of(spec.out_dtype)));
}

std::string device_text(const Environment& e) {
  return fmt::format("    {{{}, {}, {}, {}, {}, {}, {}}},\n", literal(e.device), literal(e.key()), literal(e.class_text()), literal(e.arch), e.processors, literal(e.driver), literal(e.compiler));
}

std::map<KernelConfig, size_t> numbered(const std::set<KernelConfig>& configs) {
  constexpr size_t kMost = size_t{std::numeric_limits<uint16_t>::max()} + 1;
  if (configs.size() > kMost) throw Error(ErrorCode::unsupported, fmt::format("a header holds {} configs at most, and these winners have {}: export fewer models or devices at once", kMost, configs.size()));
  std::map<KernelConfig, size_t> numbers;
  for (const KernelConfig& config : configs) numbers.emplace(config, numbers.size());
  return numbers;
}

std::string configs_text(const std::map<KernelConfig, size_t>& configs) {
  std::string parameters, entries;
  for (const auto& [config, number] : configs) {
    parameters += fmt::format("inline constexpr Parameter config_{}[] = {{", number);
    for (const auto& [name, value] : config.values()) parameters += fmt::format("{{{}, {}}}, ", literal(name), value);
    parameters.replace(parameters.size() - 2, 2, "};\n");
    entries += fmt::format("    {{config_{}, {}}},\n", number, config.values().size());
  }
  return fmt::format("{}\ninline constexpr Config configs[] = {{\n{}}};\n\n", parameters, entries);
}

}  // namespace

std::string export_header(std::vector<HeaderTable> tables) {
  std::sort(tables.begin(), tables.end(), [](const HeaderTable& a, const HeaderTable& b) { return Order(a) < Order(b); });
  std::set<KernelConfig> used;
  std::map<std::string, size_t> devices;  // by key, in the order of the tables
  std::string device_entries, steps, entries;
  for (const HeaderTable& table : tables) {
    for (const auto& cell : table.cells)
      for (const HeaderTable::Cell& one : cell) used.insert(table.configs.at(one.config));
    if (devices.emplace(table.environment.key(), devices.size()).second) device_entries += device_text(table.environment);
  }
  const std::map<KernelConfig, size_t> configs = numbered(used);
  for (size_t i = 0; i < tables.size(); ++i) {
    const HeaderTable& table = tables[i];
    for (size_t alike = 0; alike < 2; ++alike) steps += steps_text(fmt::format("steps_{}_{}", i, alike ? "alike" : "unlike"), table, alike, configs);
    const auto range = [&](const char* of) { return fmt::format("{{steps_{0}_{1}, sizeof(steps_{0}_{1}) / sizeof(Step)}}", i, of); };
    entries += fmt::format("    {{&devices[{}], {},\n     {},\n     {},\n     {}, {}}},\n", devices.at(table.environment.key()), literal(spec_key(table.spec)), columns_text(table.spec),
                           literal(canonical_json(table.spec)), range("unlike"), range("alike"));
  }
  return fmt::format("// Tuned attention kernels: which config answers a call, by device, spec, batch and length. Written by `pagetune export --format header`; do not edit.\n{}{}"
                     "inline constexpr Device devices[] = {{\n{}}};\n\n{}\n// By device name, spec key and driver, the newest first.\ninline constexpr Table tables[] = {{\n{}}};\n\n{}",
                     kHeaderTypes, configs_text(configs), device_entries, steps, entries, kHeaderLookup);
}

}  // namespace pagetune
