// Answers of an exported header, for programs without pagetune: one line of queries in, one answer out. Compiled by tuner_header_test as C++17.
#include "pagetune_tables.hpp"

#include <iostream>
#include <sstream>
#include <string>

int answers_at_compile_time();  // header_other.cpp

namespace {

// Names may hold any byte.
std::string from_hex(const std::string& hex) {
  std::string text;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return text;
}

}  // namespace

int main() {
  if (answers_at_compile_time() <= 0) return 1;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string device, kind, key;
    int batch = 0, max_len = 0;
    std::int64_t total_len = 0;
    pagetune_tables::Columns c;
    std::string q_dtype, out_dtype;
    words >> device >> batch >> max_len >> total_len >> kind;
    pagetune_tables::Answer answer{};
    if (kind == "key") {
      words >> key;
      answer = pagetune_tables::lookup(from_hex(device.substr(1)), key, batch, max_len, total_len);
    } else {
      words >> c.group_size >> c.head_dim >> c.block_size >> c.causal >> c.block_shape_q >> c.enable_prefill >> c.is_fp8 >> c.is_dynamic_c8 >> c.kv_heads >> c.headwise >> q_dtype >> out_dtype;
      c.q_dtype = q_dtype;
      c.out_dtype = out_dtype;
      answer = pagetune_tables::lookup(from_hex(device.substr(1)), c, batch, max_len, total_len);
    }
    std::cout << static_cast<int>(answer.source);
    if (answer)
      for (const pagetune_tables::Parameter& p : *answer.config) std::cout << ' ' << p.name << '=' << p.value;
    std::cout << '\n';
  }
  return 0;
}
