// What the tests of the store have in common: a directory of their own, and winners and binaries with nothing left at its default.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cache_db/store.hpp"
#include "cache_db/table.hpp"
#include "codegen/default_config.hpp"
#include "codegen/sha256.hpp"

namespace pagetune {

class TempDir {
 public:
  TempDir() {
    // Memory where there is some: thousands of small transactions would wait for a disk's fsync.
    std::error_code absent;
    auto base = std::filesystem::is_directory("/dev/shm", absent) ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (base / "pagetune-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp " + pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline Environment sample_environment() {
  Environment env;
  env.backend = "cuda";
  env.device = "NVIDIA H200";
  env.arch = "sm_90a";
  env.processors = 132;
  env.memory_bus_bits = 6144;
  env.memory_clock_khz = 3'201'000;
  env.l2_bytes = 62'914'560;
  env.clock_khz = 1'980'000;
  env.ecc = 1;
  env.driver = "13.0";
  env.compiler = "nvrtc 13.0";
  env.memory_bytes = 150'754'820'096;
  return env;
}

inline Store::Row sample_row(Bucket bucket = {3, 12}, const AttentionSpec& spec = {}, const Environment& env = sample_environment()) {
  Store::Row row;
  row.environment = env;
  row.spec = spec;
  Winner& w = row.winner;
  w.env_key = env.key();
  w.spec_key = spec_key(spec);
  w.bucket = bucket;
  w.config = default_config(spec, target_of(env), bucket);
  w.median_us = 12.1 + 0.1 * bucket.index();  // not representable in few digits
  w.ci_low_us = w.median_us * (1 - 1e-9 / 3);
  w.ci_high_us = w.median_us * 1.01;
  w.samples = 37;
  w.default_us = 15.3;
  w.runner_up = w.config;
  w.runner_up.set("NUM_STAGES", 2);
  w.runner_up_us = 12.5;
  w.tied = 3;
  w.reason = "12.3 % faster than the default, \"quoted\", µs";
  w.error = 3.14159e-3;
  w.floor_us = 9.87654321;
  w.policy_hash = std::string(64, 'a');
  w.space_hash = std::string(64, 'b');
  w.generator_hash = std::string(64, 'c');
  w.session = "host:1:2";
  return row;
}

inline void put(Store& store, const Store::Row& row) { store.put_winner(row.winner, row.environment, row.spec); }

inline Binary sample_binary(const std::string& name, size_t size = 5000) {
  Binary binary;
  binary.key = sha256_hex(name);
  binary.arch = "sm_90a";
  binary.kind = "cubin";
  for (size_t i = 0; i < size; ++i) binary.data += static_cast<char>((i * 131 + name.size() + static_cast<unsigned char>(name[i % name.size()])) & 0xff);
  binary.sha256 = sha256_hex(binary.data);
  return binary;
}

}  // namespace pagetune
