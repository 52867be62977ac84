// A decode problem in host memory: random data where a kernel may read, poison everywhere else.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "pagetune/params.h"
#include "pagetune/spec.hpp"

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

// How K and V lie. contiguous: two dense arrays in the spec's layout; padded: gaps after heads, tokens and pages, none a multiple of
// the next; interleaved: one array [pages][2][…]; sliced: one array whose innermost axis holds K and V side by side, [pages][…][2D].
enum class Placement : uint8_t { contiguous, padded, interleaved, sliced };
const char* name_of(Placement);

struct ProblemShape {
  AttentionSpec spec;
  std::vector<int> lens;           // tokens of each sequence; 0 is a padding row
  Placement placement = Placement::contiguous;
  int num_pages = 0;               // 0: what the rows list and three that no row lists
  int table_width = 0;             // 0: the longest row's pages and two more; rows longer than it are clamped
  int shared_pages = 0;            // leading pages that all rows have in common, where they are long enough
  double absent = 0;               // share of the needed table entries that are -1
  std::vector<int> page_ids;       // ids in the order of the rows' entries; empty: distinct, in random order
  int64_t page_stride = 0;         // elements, in place of the placement's own; contiguous only
  int64_t q_stride_seq = 0, out_stride_seq = 0;  // elements, in place of the dense ones
  bool sparse = false;             // huge and mostly untouched: no poison, no guards, nothing outside the listed pages is copied
  bool poison = true;              // false: zeros where a kernel may not read
  float scale = 0;                 // 0: 1/sqrt(head_dim_k)
  uint64_t seed = 1;
};

class HostProblem {
 public:
  explicit HostProblem(ProblemShape);  // Error invalid_argument if the shape contradicts itself

  const ProblemShape& shape() const { return shape_; }
  const AttentionSpec& spec() const { return shape_.spec; }
  // Parameters with pointers into this host memory; out, lse and workspace are null.
  const pt_decode_params& params() const { return params_; }

  // A page that some row lists, and how many of its tokens are visible to the longest such row.
  struct UsedPage {
    int id;
    int64_t first_position;  // of its first token in the row that lists it first
    int tokens;
  };
  const std::vector<UsedPage>& used_pages() const { return used_; }

  // Overwrites the visible elements of K, of V, or all of q: value of (position, page, KV head, dim) or (sequence, head, dim).
  using KvValue = std::function<double(int64_t position, int page, int head, int dim)>;
  void fill_k(const KvValue&);
  void fill_v(const KvValue&);
  void fill_q(const std::function<double(int sequence, int head, int dim)>&);

  int& table_entry(int sequence, int slot);
  int& length(int sequence);

  // The memory behind params(): K (with interleaved and sliced placements K and V), V (else empty), q, tables.
  const HostBytes& k_memory() const { return k_; }
  const HostBytes& v_memory() const { return v_; }
  const HostBytes& q_memory() const { return q_; }
  const HostBytes& table_memory() const { return tables_; }
  const HostBytes& length_memory() const { return lens_; }
  bool one_cache() const { return shape_.placement == Placement::interleaved || shape_.placement == Placement::sliced; }
  int64_t v_offset_bytes() const { return v_offset_bytes_; }  // of V in the shared memory
  size_t out_bytes() const;                                    // from the first to the last element of out, strides included

 private:
  void fill_cache(void* base, DType, int dim, long long stride_page, long long stride_token, long long stride_head, const KvValue&);
  void fill_tables();

  ProblemShape shape_;
  int64_t v_offset_bytes_ = 0;
  HostBytes k_, v_, q_, tables_, lens_;
  pt_decode_params params_{};
  std::vector<UsedPage> used_;
};

}  // namespace pagetune
