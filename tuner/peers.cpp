#include "tuner/peers.hpp"

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pagetune/error.hpp"

namespace pagetune {

Peers Peers::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::io, fmt::format("'{}' could not be read: --peers names a file of JSON lines such as bench/peers/nvidia-h200/decode.jsonl", path));
  Peers peers;
  std::string text;
  int number = 0;
  try {
    while (std::getline(file, text)) {
      ++number;
      const nlohmann::json line = nlohmann::json::parse(text);
      if (number == 1) {
        peers.device_ = line.at("device").get<std::string>();
        peers.types_.q_dtype = peers.types_.out_dtype = dtype_from_name(line.at("q_dtype"));
        peers.types_.kv_dtype = dtype_from_name(line.at("kv_dtype"));
        peers.types_.layout = layout_from_name(line.at("layout"));
        continue;
      }
      const Key key{line.at("hq"), line.at("hkv"), line.at("d"), line.at("page"), line.at("batch"), line.at("len"), line.at("ragged")};
      const double us = line.at("median_us");
      const PeerTime time{line.at("peer"), us, line.at("kv_bytes").get<double>() / us};
      PeerTime& best = peers.best_[key];
      if (time.bytes_per_us > best.bytes_per_us) best = time;
    }
  } catch (const std::exception& wrong) {
    throw Error(ErrorCode::io, fmt::format("'{}', line {}: {}; a file of peers has a first line with device, q_dtype, kv_dtype and layout, then one line for each time", path, number, wrong.what()));
  }
  return peers;
}

std::string Peers::default_path(const std::string& device_name) {
  namespace fs = std::filesystem;
  std::string folder;
  for (const char c : device_name) folder += std::isalnum(static_cast<unsigned char>(c)) != 0 ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : '-';
  const fs::path below = fs::path("bench") / "peers" / folder / "decode.jsonl";
  std::error_code ignored;
  for (const fs::path& root : {fs::path(PAGETUNE_SOURCE_TREE), fs::path(".")})
    if (fs::is_regular_file(root / below, ignored)) return (root / below).string();
  return "";
}

std::optional<PeerTime> Peers::best(const std::string& device_name, const DecodeCell& cell) const {
  AttentionSpec plain = types_;
  plain.q_heads = cell.spec.q_heads;
  plain.kv_heads = cell.spec.kv_heads;
  plain.head_dim_k = plain.head_dim_v = cell.spec.head_dim_k;
  plain.page_size = cell.spec.page_size;
  if (device_name != device_ || cell.spec != plain || cell.prepared_len != 0) return std::nullopt;
  const auto found = best_.find({plain.q_heads, plain.kv_heads, plain.head_dim_k, plain.page_size, cell.batch, cell.len, cell.ragged});
  if (found == best_.end()) return std::nullopt;
  return found->second;
}

Peers open_peers(const std::string& option, const std::string& device_name) {
  if (!option.empty()) return Peers::read(option);
  const std::string path = Peers::default_path(device_name);
  if (!path.empty()) return Peers::read(path);
  fmt::print(stderr, "no times of other kernels on '{}': no line has a ratio\n", device_name);
  return {};
}

}  // namespace pagetune
