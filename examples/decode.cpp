// An engine's decode step in C++: one kernel per model shape, made at load; one call per layer and step.
//
//   decode_cpp [auto|cuda:N|cpu]
//
// The page pool, the block tables and the lengths are the engine's. Here they are filled so that the right answer is known: all keys
// equal, so that attention is the mean of the values, and the value of token t is t mod 8.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "memory.hpp"
#include "pagetune/pagetune.hpp"

namespace {

uint16_t bf16(float value) {  // exact for the small integers used here
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}
float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int run(const std::string& device) {
  // At model load: the shape of one layer, and its kernel.
  pagetune::AttentionSpec spec;
  spec.q_heads = 32;
  spec.kv_heads = 8;
  spec.head_dim_k = spec.head_dim_v = 128;
  spec.page_size = 16;
  const auto kernel = pagetune::get_kernel(spec, {.device = device});
  constexpr int kMaxBatch = 4, kMaxLen = 4096;
  kernel->prepare(kMaxBatch, kMaxLen);  // compiles what such steps can need; nothing is compiled later

  // The engine's memory.
  const std::vector<int> lengths = {1, 17, 300, 2048};
  const int batch = static_cast<int>(lengths.size()), width = kMaxLen / spec.page_size, pages = batch * width;
  const size_t page_elements = static_cast<size_t>(spec.page_size) * spec.kv_heads * spec.head_dim_k;
  std::vector<uint16_t> k(pages * page_elements, 0), v(pages * page_elements), q(static_cast<size_t>(batch) * spec.q_heads * spec.head_dim_k, bf16(1));
  std::vector<int> tables(static_cast<size_t>(batch) * width, -1);
  for (int b = 0; b < batch; ++b)
    for (int t = 0; t < lengths[b]; ++t) {
      const int page = t / spec.page_size * batch + b;  // pages of different sequences interleave, as in a real pool
      tables[static_cast<size_t>(b) * width + t / spec.page_size] = page;
      for (int i = 0; i < spec.kv_heads * spec.head_dim_v; ++i)
        v[page * page_elements + static_cast<size_t>(t % spec.page_size) * spec.kv_heads * spec.head_dim_v + i] = bf16(static_cast<float>(t % 8));
    }
  const example::Memory memory(kernel->device());
  const size_t workspace_bytes = kernel->workspace_bytes(kMaxBatch, kMaxLen);

  // Every step: fill the parameters, launch. No allocation, no synchronisation.
  pt_decode_params params = pagetune::make_decode_params();
  pagetune::set_contiguous_strides(spec, width, params);
  params.q = memory.copy(q);
  params.k_cache = memory.copy(k);
  params.v_cache = memory.copy(v);
  params.block_tables = memory.copy(tables);
  params.seq_lens = memory.copy(lengths);
  params.out = memory.allocate(q.size() * 2);
  params.workspace = memory.allocate(workspace_bytes);
  params.workspace_bytes = static_cast<long long>(workspace_bytes);
  params.batch = batch;
  params.max_len = 2048;
  params.total_len = 1 + 17 + 300 + 2048;  // the sum, where it is known: some configs are for lengths that are alike
  params.num_pages = pages;
  kernel->launch(params, memory.stream());

  const auto out = memory.fetch<uint16_t>(params.out, q.size());
  for (int b = 0; b < batch; ++b) {
    double mean = 0;
    for (int t = 0; t < lengths[b]; ++t) mean += t % 8;
    mean /= lengths[b];
    const float got = from_bf16(out[static_cast<size_t>(b) * spec.q_heads * spec.head_dim_v]);
    std::printf("sequence %d, %4d tokens: %.4f (exact: %.4f)\n", b, lengths[b], got, mean);
    if (std::fabs(got - mean) > 0.02) return 1;
  }
  std::printf("%s, config %s\n", kernel->device().c_str(), kernel->config_json(kernel->select(batch, 2048)).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "auto");
  } catch (const pagetune::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
