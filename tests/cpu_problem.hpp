// A small decode problem for the CPU library: everything that a kernel may not read is NaN or unmapped, and the reference is a plain
// fp64 loop that shares no code with the kernels.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/generate.hpp"
#include "pagetune/params.h"
#include "runtime/device.hpp"

namespace pagetune::test {

struct Shape {
  int kv_heads = 2;
  int group = 1;
  int dim = 64;
  int page = 16;
  int dim_v = 0;      // 0: as dim
  int dtype = 0;      // 0 bf16, 1 fp16, 2 fp32
  int out_dtype = -1; // -1: as dtype
  bool hnd = false;
  bool lse = true;
  bool checked = false;
  int variant = 1;
  int tile = 32;
  int bits = 0;  // 0: the host's widest
  std::vector<int> lens = {33};
  int q_len = 1;
  std::vector<int> tokens;  // query tokens of each sequence, given by cu_seqlens_q; empty: q_len each
  bool headwise = false;
  bool flat = false;
  bool head_lens = false;   // head-wise lengths
  std::vector<int> windows; // of each KV head; empty: the kernel has none
  int chunk = 0;
  int sink_tokens = 0;
  bool sinks = false;
  float soft_cap = 0;
  bool alibi = false;
  int mask = 0;             // 1 tree, 2 offset
  int sparse_block = 0;     // 0: not block-sparse
  int vert_stride = 1, local_blocks = 1, head_step = 0, head_offset = 0, kv_head_offset = 0;
  bool operator==(const Shape&) const = default;

  int q_heads() const { return kv_heads * group; }
  int bytes() const { return dtype == 2 ? 4 : 2; }
  int value_dim() const { return dim_v != 0 ? dim_v : dim; }
  int output_type() const { return out_dtype >= 0 ? out_dtype : dtype; }
  int out_bytes() const { return output_type() == 2 ? 4 : 2; }
  int batch() const { return static_cast<int>(lens.size()); }
  int given_tokens(int sequence) const { return tokens.empty() ? q_len : tokens[static_cast<size_t>(sequence)]; }
  std::string text() const;
};

// The source of a shape's kernel for this host.
KernelSource source_of(const Shape&, const Target&);
// Compiled and loaded once per kernel and device.
std::shared_ptr<const Module> module_of(Device&, const Shape&);
// One device for all tests of a program, with the default number of threads.
Device& device();

// Bytes that end exactly where unmapped memory begins: reading or writing beyond them ends the test program.
class EdgeBytes {
 public:
  explicit EdgeBytes(size_t bytes);
  ~EdgeBytes();
  EdgeBytes(const EdgeBytes&) = delete;
  EdgeBytes& operator=(const EdgeBytes&) = delete;
  unsigned char* data() const { return data_; }
  size_t size() const { return size_; }
  void fill(int byte) { std::memset(data_, byte, size_); }
  bool front_intact() const;  // the bytes from the start of the mapping to data()

 private:
  unsigned char* map_ = nullptr;
  size_t map_bytes_ = 0;
  unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

class Problem {
 public:
  // max_splits: how many splits the scratch holds.
  explicit Problem(const Shape&, uint32_t seed = 1, int max_splits = 1);

  const Shape& shape() const { return shape_; }
  pt_decode_params& params() { return params_; }
  // Row: a sequence, or with head-wise tables a (sequence, KV head).
  int& table(int row, int slot) { return reinterpret_cast<int*>(tables_->data())[row * table_stride_ + slot]; }
  int& length(int row) { return reinterpret_cast<int*>(lens_->data())[row]; }
  // Every byte of K and V that is poison now becomes `byte`.
  void set_poison(int byte);
  // Multiplies all queries, which makes the softmax as sharp as one likes.
  void scale_queries(float factor);

  // Prefills outputs and scratch with NaN and runs. num_splits: 1 for V1.
  void run(const Module&, int num_splits = 1);
  // Empty if everything is right, else what is wrong.
  std::string check() const;

  std::string out_bytes() const { return {reinterpret_cast<const char*>(out_->data()), out_->size()}; }
  std::string lse_bytes() const { return {reinterpret_cast<const char*>(lse_->data()), lse_->size()}; }
  double out(int sequence, int head, int dim, int token = 0) const;
  float lse(int sequence, int head, int token = 0) const;
  // Scratch of a share: NaN where it was not written.
  float partial_lse(int sequence, int head, int split, int token = 0) const;
  float sink(int head) const { return params_.sinks[head]; }
  const pt_error_record& error() const { return error_; }
  void clear_error() { error_ = {}; }

 private:
  struct Row {
    std::vector<double> out;
    double lse = 0;
  };
  void set_strides();
  void allocate(int pages);
  void fill_features(std::mt19937& random);
  void fill_cache(std::mt19937& random);
  void fill_row(EdgeBytes& memory, std::vector<bool>* live, const unsigned char* at, int dim, uint32_t seed);

  int first_row(int sequence) const;
  int tokens(int sequence) const;  // that a kernel serves
  int len(int sequence, int kv_head) const;
  int table_row(int sequence, int kv_head) const { return shape_.headwise ? sequence * shape_.kv_heads + kv_head : sequence; }
  bool sees(int sequence, int token, int head, int key) const;
  bool anyone_sees(int sequence, int kv_head, int key) const;
  Row reference(int sequence, int head, int token) const;
  std::string check_row(int sequence, int head, int token) const;
  const unsigned char* q_row(int sequence, int head, int token) const;
  long long out_element(int sequence, int head, int token) const;
  const unsigned char* k_row(int page, int token, int head) const;
  const unsigned char* v_row(int page, int token, int head) const;

  Shape shape_;
  int max_splits_;
  int width_ = 0;
  int rows_ = 0;  // query tokens of the launch
  long long table_stride_ = 0;
  pt_decode_params params_{};
  pt_error_record error_{};
  std::unique_ptr<EdgeBytes> q_, k_, v_, out_, lse_, tables_, lens_, partial_out_, partial_lse_;
  std::unique_ptr<EdgeBytes> cu_, windows_, sinks_, slopes_, tree_, offsets_;
  std::vector<bool> k_live_, v_live_;  // per element: may be read
};

double element(int dtype, const unsigned char* from);

}  // namespace pagetune::test
