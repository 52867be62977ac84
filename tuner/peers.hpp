// Times of other kernels on the same problems, measured once and read from a file: JSON lines, the first about the file.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "tuner/decode_bench.hpp"

namespace pagetune {

struct PeerTime {
  std::string peer;
  double us = 0;
  double bytes_per_us = 0;  // K and V that had to be read over the time: comparable where the lengths of a ragged batch differ
};

class Peers {
 public:
  Peers() = default;
  // Error io for a file that cannot be read or is not of this form.
  static Peers read(const std::string& path);
  // The file of a device below the source tree of this build, or below the working directory; empty if there is none.
  static std::string default_path(const std::string& device_name);

  // The fastest that was measured on this device for the cell. None for a cell with masks or other features: nobody measured those.
  std::optional<PeerTime> best(const std::string& device_name, const DecodeCell&) const;

 private:
  using Key = std::tuple<int, int, int, int, int, int, bool>;  // q heads, KV heads, head dim, page, batch, longest, ragged
  std::string device_;
  AttentionSpec types_;  // types and layout of every row
  std::map<Key, PeerTime> best_;
};

// What --peers says: the file named, else the device's own; where that is absent, no times, and one line on stderr says so.
Peers open_peers(const std::string& option, const std::string& device_name);

}  // namespace pagetune
