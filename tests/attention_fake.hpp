// A device of plain host memory and modules of plain functions, to see that the harness catches what it must.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "pagetune/error.hpp"
#include "runtime/device.hpp"
#include "tuner/numeric.hpp"

namespace pagetune::testing_support {

// Small enough for thousands of runs on the host.
inline AttentionSpec small_spec(DType type = DType::bf16) {
  AttentionSpec spec;
  spec.q_heads = 4;
  spec.kv_heads = 2;
  spec.head_dim_k = spec.head_dim_v = 16;
  spec.page_size = 16;
  spec.q_dtype = spec.kv_dtype = spec.out_dtype = type;
  spec.lse = true;
  return spec;
}

// Every feature by itself and some together.
inline std::vector<AttentionSpec> feature_specs() {
  std::vector<AttentionSpec> specs;
  const auto add = [&](const std::function<void(AttentionSpec&)>& change) {
    specs.push_back(small_spec(DType::fp32));
    change(specs.back());
  };
  add([](AttentionSpec& s) { s.q_len = 5; });
  add([](AttentionSpec& s) { s.window = true; });
  add([](AttentionSpec& s) { s.window = s.sink_tokens = true, s.q_len = 3; });
  add([](AttentionSpec& s) { s.chunk = true, s.q_len = 2; });
  add([](AttentionSpec& s) { s.sinks = true; });
  add([](AttentionSpec& s) { s.soft_cap = true; });
  add([](AttentionSpec& s) { s.alibi = true, s.q_len = 2; });
  add([](AttentionSpec& s) { s.block_sparse = true, s.page_size = 4; });
  add([](AttentionSpec& s) { s.mask = MaskKind::tree, s.q_len = 6; });
  add([](AttentionSpec& s) { s.mask = MaskKind::offset, s.window = s.sink_tokens = true; });
  add([](AttentionSpec& s) { s.headwise = true; });
  add([](AttentionSpec& s) { s.headwise = s.window = true, s.address_map = AddressMap::flat, s.page_size = 7, s.q_len = 4; });
  add([](AttentionSpec& s) { s.head_dim_v = 24, s.out_dtype = DType::bf16; });
  add([](AttentionSpec& s) { s.headwise = s.window = s.sink_tokens = s.sinks = s.soft_cap = s.alibi = s.block_sparse = true, s.mask = MaskKind::tree, s.q_len = 4; });
  return specs;
}

class FakeDevice : public Device {
 public:
  FakeDevice() {
    target_.backend = Backend::cuda;  // memory of its own, as a GPU has: nothing is used in place
    target_.arch = "fake";
    environment_.l2_bytes = 1 << 20;
  }
  ~FakeDevice() override {
    for (void* p : live_) std::free(p);
  }
  size_t live_allocations() const { return live_.size(); }

  const std::string& id() const override { return id_; }
  const Target& target() const override { return target_; }
  const Environment& environment() const override { return environment_; }
  Compiler& compiler() const override { throw Error(ErrorCode::internal, "the fake device compiles nothing"); }
  std::shared_ptr<const Module> load(const Binary&) override { throw Error(ErrorCode::internal, "the fake device loads nothing"); }
  bool capturing(void*) const override { return false; }
  void check_pointer(const void*, const char*) const override {}
  void* allocate(size_t bytes) override {
    void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    live_.insert(p);
    return p;
  }
  void release(void* p) override {
    live_.erase(p);
    std::free(p);
  }
  size_t free_bytes() const override { return free_bytes_; }
  void set_free_bytes(size_t bytes) { free_bytes_ = bytes; }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void fill_random(void* device, size_t bytes, DType type, uint64_t seed) override {
    Random random(seed);
    const int64_t count = static_cast<int64_t>(bytes) / (bits_of(type) / 8);
    for (int64_t i = 0; i < count; ++i) store_element(type, device, i, random.uniform(-2, 2));
  }
  void* stream() override { return nullptr; }
  void synchronize() override {}
  void synchronize_stream(void*) override {}
  std::unique_ptr<Recording> record(const std::function<void(void*)>&, Launches) override { throw Error(ErrorCode::internal, "the fake device records nothing"); }

 private:
  std::string id_ = "fake";
  Target target_;
  Environment environment_;
  size_t free_bytes_ = size_t{1} << 30;
  std::set<void*> live_;
};

class FakeModule : public Module {
 public:
  using Body = std::function<void(const pt_decode_params&)>;
  explicit FakeModule(Body body) : body_(std::move(body)) {}
  const LaunchFacts& facts() const override { return facts_; }
  void launch(const pt_decode_params& params, void*) const override { body_(params); }

 private:
  LaunchFacts facts_;
  Body body_;
};

// What can be wrong with the kernel below.
struct Defects {
  bool reads_page_tails = false;     // attends to a whole last page
  bool ignores_absent = false;       // takes id -1 for page 0
  bool leaves_pad_rows = false;      // returns early for length 0
  bool drops_last_token = false;
  bool lse_base_two = false;
  bool adds_mask = false;            // multiplies hidden values by a probability of 0
  bool window_is_distance = false;   // one token more
  bool window_of_last_row = false;   // every query token has the last one's
  bool causal_from_the_start = false;
  bool steps_are_full = false;       // q_len tokens from the first row of each sequence, whatever cu_seqlens_q says
  bool computes_surplus_rows = false;
  bool length_of_first_head = false;
  bool table_of_first_head = false;
  bool sink_of_first_head = false;
  bool caps_before_scale = false;
};

// A decode kernel in fp32, one key after the other with an online softmax: nothing in common with the oracle but the contract.
inline FakeModule::Body plain_kernel(const AttentionSpec& spec, Defects defects = {}) {
  return [spec, defects](const pt_decode_params& p) {
    const bool packed = p.cu_seqlens_q != nullptr;
    for (int b = 0; b < p.batch; ++b) {
      int new_tokens = packed && !defects.steps_are_full ? p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b] : spec.q_len;
      if (!defects.computes_surplus_rows) new_tokens = std::min(new_tokens, spec.q_len);
      for (int h = 0; h < spec.q_heads; ++h) {
        const int kv_head = h / spec.group_size();
        const int row_head = defects.table_of_first_head ? 0 : kv_head;
        const int* table = p.block_tables + (spec.headwise ? b * spec.kv_heads + row_head : b) * p.block_table_stride;
        int tokens = p.seq_lens[b * p.seq_lens_stride_seq + (defects.length_of_first_head ? 0 : kv_head) * p.seq_lens_stride_head];
        if (static_cast<long long>(p.block_table_width) * spec.page_size < tokens) tokens = p.block_table_width * spec.page_size;
        if (tokens == 0 && defects.leaves_pad_rows) continue;
        if (defects.drops_last_token && tokens > 1) --tokens;
        const int end = defects.reads_page_tails || defects.adds_mask ? (tokens + spec.page_size - 1) / spec.page_size * spec.page_size : tokens;
        for (int i = 0; i < new_tokens; ++i) {
          const long long row = packed ? p.cu_seqlens_q[b] + i : static_cast<long long>(b) * spec.q_len + i;
          const int at = defects.causal_from_the_start ? i : tokens - new_tokens + i;
          const auto hidden = [&](int j) {
            if (j > at && !(defects.reads_page_tails && i == new_tokens - 1)) return true;
            if (spec.chunk && j / p.chunk != at / p.chunk) return true;
            const int first_sinks = spec.sink_tokens ? p.sink_tokens : 0;
            int window = spec.window ? p.window[kv_head] : 0;
            if (window > 0 && defects.window_is_distance) ++window;
            if (spec.mask == MaskKind::offset) {
              const int* bounds = p.mask_offset + 2 * row;
              if (j < bounds[0] || j >= bounds[1]) return true;
              if (window > 0 && j >= bounds[0] + first_sinks && j < static_cast<long long>(bounds[1]) - window) return true;
            } else if (window > 0 && j >= first_sinks && (defects.window_of_last_row ? tokens - 1 : at) - j >= window) {
              return true;
            }
            if (spec.mask == MaskKind::tree && j >= tokens - new_tokens) {
              if (p.tree_mask[(static_cast<long long>(b) * p.tree_mask_size + i) * p.tree_mask_size + j - (tokens - new_tokens)] != 0) return true;
            }
            if (!spec.block_sparse) return false;
            const int block = j / p.sparse_block_size;
            const int shift = 1 + (p.sparse_head_step < 0 ? -p.sparse_head_step * (p.sparse_kv_head_offset + kv_head) : p.sparse_head_step * (p.sparse_head_offset + h));
            return (block + shift) % p.sparse_vert_stride != 0 && at / p.sparse_block_size - block >= p.sparse_local_blocks;
          };
          float top = spec.sinks ? p.sinks[defects.sink_of_first_head ? 0 : h] : -INFINITY;
          float sum = spec.sinks ? 1 : 0;
          top *= 1.44269504F;
          bool any = false;
          std::vector<float> out(static_cast<size_t>(spec.head_dim_v), 0.0F);
          for (int j = 0; j < end; ++j) {
            const bool masked = hidden(j);
            if (masked && !(defects.adds_mask && j >= tokens)) continue;
            int id = table[j / spec.page_size];
            if (id < 0 && defects.ignores_absent) id = 0;
            if (id < 0 || id >= p.num_pages) continue;
            const bool flat = spec.headwise && spec.address_map == AddressMap::flat;
            const auto offset = [&](long long page, long long token, long long head) { return id * page + j % spec.page_size * token + (flat ? 0 : kv_head * head); };
            const long long k = offset(p.k_stride_page, p.k_stride_token, p.k_stride_head);
            const long long v = offset(p.v_stride_page, p.v_stride_token, p.v_stride_head);
            const long long q = (packed ? row * p.q_stride_token : b * p.q_stride_seq + i * p.q_stride_token) + h * p.q_stride_head;
            float logit = 0;
            for (int d = 0; d < spec.head_dim_k; ++d) logit += static_cast<float>(load_element(spec.q_dtype, p.q, q + d) * load_element(spec.kv_dtype, p.k_cache, k + d));
            if (spec.soft_cap && defects.caps_before_scale) logit = p.soft_cap * std::tanh(logit / p.soft_cap);
            logit *= p.scale;
            if (spec.soft_cap && !defects.caps_before_scale) logit = p.soft_cap * std::tanh(logit / p.soft_cap);
            if (spec.alibi) logit -= p.alibi_slopes[h] * static_cast<float>(at - j);
            logit *= 1.44269504F;
            float weight = 0;
            if (!masked) {
              const float grown = std::max(top, logit);
              const float factor = std::isinf(top) ? 0 : std::exp2(top - grown);
              weight = std::exp2(logit - grown);
              sum = sum * factor + weight;
              for (float& o : out) o *= factor;
              top = grown;
              any = true;
            }
            for (int d = 0; d < spec.head_dim_v; ++d) out[static_cast<size_t>(d)] += weight * static_cast<float>(load_element(spec.kv_dtype, p.v_cache, v + d));
          }
          const long long to = (packed ? row * p.out_stride_token : b * p.out_stride_seq + i * p.out_stride_token) + h * p.out_stride_head;
          for (int d = 0; d < spec.head_dim_v; ++d) store_element(spec.out_dtype, p.out, to + d, sum > 0 && (any || defects.adds_mask) ? out[static_cast<size_t>(d)] / sum : 0);
          if (p.lse != nullptr) {
            const float base_two = top + std::log2(sum);
            p.lse[row * spec.q_heads + h] = sum > 0 ? base_two * (defects.lse_base_two ? 1.0F : 0.69314718F) : -INFINITY;
          }
        }
      }
    }
  };
}

}  // namespace pagetune::testing_support
