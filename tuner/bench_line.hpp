// The JSON lines that benches print.
#pragma once
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tuner/decode_bench.hpp"
#include "tuner/peers.hpp"

namespace pagetune {

using BenchLine = nlohmann::ordered_json;

// The commit that this build was made from, or what PAGETUNE_COMMIT says.
std::string build_commit();

// One measurement. With a peer's time of the same cell: peer, peer_us and ratio, ours over the peer's in bytes a microsecond.
BenchLine line_of(const std::string& device_name, const DecodeCell&, const Measured&, bool tuned, bool overlap, const Peers&);
// The same in a few words.
std::string short_text(const BenchLine&);

// Lines to stdout and, where asked for, to a file whose first line is the command.
class Lines {
 public:
  // `brief`: stdout has short texts instead. Error io for a file that cannot be written, here and in write().
  explicit Lines(const std::string& path, bool brief = false);
  void write(const BenchLine&);

 private:
  void require();

  std::string path_;
  bool brief_;
  std::ofstream file_;
};

}  // namespace pagetune
