#include "tuner/bench_line.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "pagetune/error.hpp"
#include "tuner/bandwidth.hpp"

namespace pagetune {
namespace {

// This process's words, those with blanks in quotes.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string all, word;
  while (std::getline(file, word, '\0')) all += fmt::format("{}{}", all.empty() ? "" : " ", word.find(' ') == std::string::npos ? word : "'" + word + "'");
  return all;
}

// The longest window of the cell's heads.
int window_of(const DecodeCell& cell) {
  if (!cell.spec.window) return 0;
  const std::vector<int>& windows = cell.features.windows;
  constexpr int kOfBenchProblem = 1024;
  return windows.empty() ? kOfBenchProblem : *std::max_element(windows.begin(), windows.end());
}

}  // namespace

std::string build_commit() {
  const char* given = std::getenv("PAGETUNE_COMMIT");
  return given != nullptr && *given != '\0' ? given : PAGETUNE_BUILD_COMMIT;
}

BenchLine line_of(const std::string& device_name, const DecodeCell& cell, const Measured& measured, bool tuned, bool overlap, const Peers& peers) {
  const AttentionSpec& spec = cell.spec;
  // Two products, each with two operations for every element of K or V and every query row that shares it.
  const double flops = 2.0 * spec.rows() * static_cast<double>(measured.kv_bytes) * 8 / bits_of(spec.kv_dtype);
  const double floor = floor_us(device_name, measured.kv_bytes);
  BenchLine line{{"bench", "decode"},
                 {"device", device_name},
                 {"commit", build_commit()},
                 {"hq", spec.q_heads},
                 {"hkv", spec.kv_heads},
                 {"dk", spec.head_dim_k},
                 {"dv", spec.head_dim_v},
                 {"page", spec.page_size},
                 {"layout", name_of(spec.layout)},
                 {"q_dtype", name_of(spec.q_dtype)},
                 {"kv_dtype", name_of(spec.kv_dtype)},
                 {"batch", cell.batch},
                 {"len", cell.len},
                 {"ragged", cell.ragged},
                 {"q_len", spec.q_len},
                 {"headwise", spec.headwise},
                 {"window", window_of(cell)},
                 {"kv_bytes", measured.kv_bytes},
                 {"flops", flops},
                 {"median_us", measured.median_us},
                 {"min_us", measured.min_us},
                 {"floor_us", floor},
                 {"fraction", floor / measured.median_us},
                 {"tflops", flops / measured.median_us / 1e6},
                 {"variant", fmt::format("V{}", measured.config.variant())},
                 {"config", measured.config.canonical_json()},
                 {"tuned", tuned},
                 {"overlap", overlap},
                 {"error", measured.error}};
  if (const auto peer = peers.best(device_name, cell)) {
    line["peer"] = peer->peer;
    line["peer_us"] = peer->us;
    line["ratio"] = static_cast<double>(measured.kv_bytes) / measured.median_us / peer->bytes_per_us;
  }
  return line;
}

std::string short_text(const BenchLine& line) {
  const auto number = [&](const char* key) { return line.at(key).get<int>(); };
  std::string text = fmt::format("{:>2}/{}/{} p{:<3} {:>3} x {:<6} {:<6} {:<7} {:9.2f} us", number("hq"), number("hkv"), number("dk"), number("page"), number("batch"), number("len"),
                                 line.at("ragged").get<bool>() ? "ragged" : "", line.at("tuned").get<bool>() ? "tuned" : "default", line.at("median_us").get<double>());
  if (line.at("floor_us").get<double>() > 0) text += fmt::format(" {:5.1f} %", 100 * line.at("fraction").get<double>());
  if (line.contains("ratio")) text += fmt::format("  {:.2f}x {}", line.at("ratio").get<double>(), line.at("peer").get<std::string>());
  if (line.contains("case")) text += fmt::format("  {}{}", line.at("case").get<std::string>(), number("window") > 0 ? fmt::format(", window {}", number("window")) : "");
  return text + "  " + line.at("config").get<std::string>();
}

Lines::Lines(const std::string& path, bool brief) : path_(path), brief_(brief) {
  if (path.empty()) return;
  file_.open(path, std::ios::trunc);
  file_ << BenchLine{{"command", command_line()}}.dump() << "\n";
  require();
}

void Lines::write(const BenchLine& line) {
  const std::string text = line.dump();
  fmt::print("{}\n", brief_ ? short_text(line) : text);
  std::fflush(stdout);
  if (path_.empty()) return;
  file_ << text << "\n";
  file_.flush();
  require();
}

void Lines::require() {
  if (!file_) throw Error(ErrorCode::io, fmt::format("'{}' could not be written: name a file in a writable directory", path_));
}

}  // namespace pagetune
