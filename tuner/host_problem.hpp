// A decode problem in host memory: random data where a kernel may read, poison everywhere else.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"
#include "tuner/problem_shape.hpp"

namespace pagetune {

// Zeroed virtual memory that costs nothing until it is touched.
class HostBytes {
 public:
  explicit HostBytes(size_t bytes);
  ~HostBytes();
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  char* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

class HostProblem {
 public:
  explicit HostProblem(ProblemShape);  // Error invalid_argument if the shape contradicts itself

  // With what completed() filled in.
  const ProblemShape& shape() const { return shape_; }
  const AttentionSpec& spec() const { return shape_.spec; }
  // Parameters with pointers into this host memory; out, lse and workspace are null. Strides that the call does not use are absurd.
  const pt_decode_params& params() const { return params_; }

  int64_t rows() const { return rows_; }  // of q, out and LSE
  // Rows that belong to a sequence, ascending; the others are poison in q and must not be written in out.
  const std::vector<int64_t>& owned_rows() const { return owned_rows_; }
  int64_t q_offset(int64_t row) const { return row_offset(row, params_.q_stride_seq, params_.q_stride_token); }  // elements
  int64_t out_offset(int64_t row) const { return row_offset(row, params_.out_stride_seq, params_.out_stride_token); }

  // A page of which some row of the step sees a token in this KV head, and how many of its tokens hold numbers: those below the longest
  // such sequence's length.
  struct UsedPage {
    int id, head;
    int64_t first_position;  // of its first token in the sequence that lists it first
    int tokens;
  };
  const std::vector<UsedPage>& used_pages() const { return used_; }

  // Overwrites the elements of K, of V, or of q that hold numbers: value of (position, page, KV head, dim) or (row, head, dim).
  using KvValue = std::function<double(int64_t position, int page, int head, int dim)>;
  void fill_k(const KvValue&);
  void fill_v(const KvValue&);
  void fill_q(const std::function<double(int row, int head, int dim)>&);

  int& table_entry(int sequence, int slot);               // of a uniform table
  int& table_entry(int sequence, int kv_head, int slot);  // head-wise
  int& length(int sequence);
  int& length(int sequence, int kv_head);                 // with a length for each

  // The memory behind params(): K (with interleaved and sliced placements K and V), V (else empty), q.
  const HostBytes& k_memory() const { return k_; }
  const HostBytes& v_memory() const { return v_; }
  const HostBytes& q_memory() const { return q_; }
  // Everything else that a kernel reads: block table, lengths and the arrays of the spec's features, each of exactly its size.
  struct InputArray {
    const char* name;
    std::unique_ptr<HostBytes> memory;
    void (*bind)(pt_decode_params&, const char*);  // makes it the parameters' array
  };
  const std::vector<InputArray>& arrays() const { return arrays_; }

  bool one_cache() const { return shape_.placement == Placement::interleaved || shape_.placement == Placement::sliced; }
  int64_t v_offset_bytes() const { return v_offset_bytes_; }  // of V in the shared memory
  size_t out_bytes() const;                                    // from the first to the last element of out, strides included
  bool flat() const { return shape_.spec.headwise && shape_.spec.address_map == AddressMap::flat; }

 private:
  int64_t row_offset(int64_t row, int64_t stride_seq, int64_t stride_token) const;
  void fill_cache(void* base, DType, int dim, long long stride_page, long long stride_token, long long stride_head, const KvValue&);
  void set_strides();
  template <class T>
  void add_array(const char* name, const std::vector<T>& values, void (*bind)(pt_decode_params&, const char*));
  void add_arrays();
  void fill_tables();

  ProblemShape shape_;
  int64_t v_offset_bytes_ = 0;
  int64_t rows_ = 0;
  std::vector<int64_t> owned_rows_;
  HostBytes k_, v_, q_;
  std::vector<InputArray> arrays_;
  int* table_ = nullptr;
  int* lens_ = nullptr;
  pt_decode_params params_{};
  std::vector<UsedPage> used_;
};

}  // namespace pagetune
