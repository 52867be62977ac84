#include "runtime/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "pagetune/error.hpp"
#include "pagetune/pagetune.hpp"

namespace pagetune {
namespace {

constexpr size_t kAlignment = 256;
constexpr int kMaxSplits = 256;        // the merge keeps one weight per split in shared memory
constexpr int64_t kMaxGrid = 2147483647;  // CTAs along x
constexpr int64_t kMaxExtent = int64_t{1} << 48;  // elements; more than any address space holds, and far from overflow in bytes

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
size_t record_bytes(const AttentionSpec& spec) { return spec.checked ? kAlignment : 0; }
constexpr int kMaxRowsPerCta = 64;      // query rows that one CTA serves, at most
constexpr int kMinRowsPerCta = 8;
constexpr int kSmallestTile = 16;       // tokens
constexpr int kMostOpening = 4;         // empty places before a pair's tiles in the line of an even share

// CTAs for the rows of one KV head, at most.
int64_t row_tiles(const AttentionSpec& spec) { return (spec.rows() + kMinRowsPerCta - 1) / kMinRowsPerCta; }
size_t partial_rows(const AttentionSpec& spec, int64_t batch, LaunchPlan plan) {
  if (plan.num_ctas > 0) return static_cast<size_t>(plan.num_ctas) * 2 * static_cast<size_t>(std::min(row_tiles(spec) * kMinRowsPerCta, int64_t{kMaxRowsPerCta}));
  return plan.num_splits > 1 ? static_cast<size_t>(batch) * static_cast<size_t>(spec.q_heads) * static_cast<size_t>(spec.q_len) * static_cast<size_t>(plan.num_splits) : 0;
}
// One for each row, since clusters merge row by row; then one for each partial result of an even share, for merges of neighbours.
size_t counter_bytes(const AttentionSpec& spec, int64_t batch, LaunchPlan plan) {
  if (!plan.merges()) return 0;
  return aligned(static_cast<size_t>(batch * spec.q_heads * spec.q_len + int64_t{2} * plan.num_ctas) * sizeof(unsigned long long));
}

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorCode::invalid_argument, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void mismatch(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorCode::mismatch, fmt::format(text, std::forward<Args>(args)...));
}

void require_pointer(const void* pointer, const char* what, uintptr_t alignment) {
  if (pointer == nullptr) refuse("{} is null", what);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) refuse("{} is at {}: it must be aligned to {} bytes", what, pointer, alignment);
}

// A feature's data given to a kernel built without it would be ignored, and the reverse would read null: both are errors.
void require_feature(bool compiled, bool given, const char* what, const char* field) {
  if (compiled == given) return;
  if (given) mismatch("{} was given, but the kernel was built without it: set {} in its AttentionSpec, or leave {} empty", what, field, what);
  mismatch("{} is missing: the kernel's AttentionSpec has {}", what, field);
}

struct Axis {
  const char* name;
  int64_t stride, count;
};

bool flat_ids(const AttentionSpec& spec) { return spec.headwise && spec.address_map == AddressMap::flat; }

// Sorted by stride. The elements [0, dim) of different indices must not overlap: each stride covers all that lies inside it. With flat ids
// a page is one head's, and the head stride is not looked at.
std::array<Axis, 3> cache_axes(const AttentionSpec& spec, const char* cache, int64_t page, int64_t token, int64_t head, int num_pages, int dim, int align) {
  const bool flat = flat_ids(spec);
  std::array<Axis, 3> axes = {Axis{"page", page, num_pages}, Axis{"token", token, spec.page_size}, Axis{"head", flat ? 0 : head, flat ? 1 : spec.kv_heads}};
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t inside = dim;
  for (const auto& axis : axes) {
    if (axis.count == 1) continue;  // the stride is never used
    if (axis.stride < inside) refuse("the {} stride of the {} cache is {} elements: it must be at least {}, or elements overlap", axis.name, cache, axis.stride, inside);
    if (axis.stride % align != 0) refuse("the {} stride of the {} cache is {} elements: it must be a multiple of {} (16 bytes)", axis.name, cache, axis.stride, align);
    if (axis.stride > (kMaxExtent - inside) / (axis.count - 1))
      refuse("the {} stride of the {} cache is {} elements: {} of them reach beyond {} elements, the largest view allowed", axis.name, cache, axis.stride, axis.count, kMaxExtent);
    inside = axis.stride * (axis.count - 1) + inside;
  }
  return axes;
}

void require_layout(const AttentionSpec& spec, const char* cache, int64_t token, int64_t head) {
  if (spec.kv_heads == 1 || spec.page_size == 1 || flat_ids(spec)) return;
  const bool token_outside = token > head;
  if (token_outside != (spec.layout == Layout::nhd))
    mismatch("the {} cache has token stride {} and head stride {}: that is not the spec's layout {} (nhd: token > head; hnd: head > token)", cache, token, head, name_of(spec.layout));
}

int64_t span(const std::array<Axis, 3>& axes, int dim) {
  int64_t last = dim;
  for (const auto& axis : axes) last += axis.stride * std::max<int64_t>(axis.count - 1, 0);
  return last;
}

// With equal strides, do two views whose starts lie `distance` elements apart share an element? The distance would have to be a
// combination of the strides, up to a head dim.
bool views_meet(const std::array<Axis, 3>& axes, int64_t distance, int dim, int axis = 2) {
  if (axis < 0) return std::llabs(distance) < dim;
  const Axis& a = axes[static_cast<size_t>(axis)];
  if (a.count <= 1) return views_meet(axes, distance, dim, axis - 1);
  const int64_t steps = distance / a.stride;
  for (int64_t step = steps - 1; step <= steps + 1; ++step)
    if (std::llabs(step) < a.count && views_meet(axes, distance - step * a.stride, dim, axis - 1)) return true;
  return false;
}

void check_caches(const AttentionSpec& spec, const pt_decode_params& p) {
  const int element = bits_of(spec.kv_dtype) / 8, align = 16 / element;
  if (p.num_pages < 1) refuse("num_pages is {}: it must be at least 1", p.num_pages);
  const auto k = cache_axes(spec, "K", p.k_stride_page, p.k_stride_token, p.k_stride_head, p.num_pages, spec.head_dim_k, align);
  const auto v = cache_axes(spec, "V", p.v_stride_page, p.v_stride_token, p.v_stride_head, p.num_pages, spec.head_dim_v, align);
  require_layout(spec, "K", p.k_stride_token, p.k_stride_head);
  require_layout(spec, "V", p.v_stride_token, p.v_stride_head);
  const auto k_begin = reinterpret_cast<intptr_t>(p.k_cache), v_begin = reinterpret_cast<intptr_t>(p.v_cache);
  const int64_t k_end = k_begin + span(k, spec.head_dim_k) * element, v_end = v_begin + span(v, spec.head_dim_v) * element;
  if (k_end <= v_begin || v_end <= k_begin) return;
  const bool same = p.k_stride_page == p.v_stride_page && p.k_stride_token == p.v_stride_token && (flat_ids(spec) || p.k_stride_head == p.v_stride_head);
  if (!same || views_meet(k, (v_begin - k_begin) / element, spec.head_dim_k))
    refuse("the K cache at {} and the V cache at {} overlap; allowed: separate memory, or interleaved views with equal strides that share no element", p.k_cache, p.v_cache);
}

// Rows of q or out: heads inside a token, tokens inside a sequence. With cu_seqlens_q all tokens lie in one run, and the sequence stride is not
// looked at.
void check_rows(const AttentionSpec& spec, const pt_decode_params& p, const char* what, int64_t seq, int64_t token, int64_t head, int dim, DType type) {
  const int align = 16 / (bits_of(type) / 8);
  const bool packed = p.cu_seqlens_q != nullptr, tokens = spec.q_len > 1, sequences = p.batch > 1 && !packed;
  const auto require = [&](const char* axis, int64_t stride, int64_t least) {
    if (const int64_t most = kMaxExtent / spec.rows() / spec.kv_heads; stride > most) refuse("the {} stride of {} is {} elements: at most {} are allowed", axis, what, stride, most);
    if (stride < least || stride % align != 0) refuse("the {} stride of {} is {} elements: it must be at least {} and a multiple of {}", axis, what, stride, least, align);
  };
  if (spec.q_heads > 1) require("head", head, dim);
  const int64_t row = (spec.q_heads > 1 ? head * (spec.q_heads - 1) : 0) + dim;
  if (tokens) require("token", token, row);
  if (sequences) require("sequence", seq, row + (tokens ? token * (spec.q_len - 1) : 0));
}

void check_lengths(const AttentionSpec& spec, const pt_decode_params& p) {
  const bool shared = p.seq_lens_stride_seq == 1 && p.seq_lens_stride_head == 0, own = p.seq_lens_stride_seq == spec.kv_heads && p.seq_lens_stride_head == 1;
  if (shared || (spec.headwise && own)) return;
  if (own || p.seq_lens_stride_head == 1)
    if (!spec.headwise)
      mismatch("seq_lens_stride_seq is {} and seq_lens_stride_head {}: a length for each KV head needs a kernel with headwise in its AttentionSpec; allowed here: 1 and 0", p.seq_lens_stride_seq,
               p.seq_lens_stride_head);
  refuse("seq_lens_stride_seq is {} and seq_lens_stride_head {}: allowed are 1 and 0, a length for each sequence{}; set_contiguous_strides() sets the former", p.seq_lens_stride_seq,
         p.seq_lens_stride_head, spec.headwise ? fmt::format(", or {} and 1, a length for each KV head", spec.kv_heads) : "");
}

void check_features(const AttentionSpec& spec, const pt_decode_params& p) {
  require_feature(spec.window, p.window != nullptr, "window", "window");
  require_feature(spec.chunk, p.chunk != 0, "chunk", "chunk");
  require_feature(spec.sink_tokens, p.sink_tokens != 0, "sink_tokens", "sink_tokens");
  require_feature(spec.sinks, p.sinks != nullptr, "sinks", "sinks");
  require_feature(spec.alibi, p.alibi_slopes != nullptr, "alibi_slopes", "alibi");
  require_feature(spec.soft_cap, p.soft_cap != 0.f, "soft_cap", "soft_cap");
  require_feature(spec.mask == MaskKind::tree, p.tree_mask != nullptr, "tree_mask", "mask tree");
  require_feature(spec.mask == MaskKind::offset, p.mask_offset != nullptr, "mask_offset", "mask offset");
  const bool sparse = p.sparse_block_size != 0 || p.sparse_vert_stride != 0 || p.sparse_local_blocks != 0 || p.sparse_head_step != 0 || p.sparse_head_offset != 0 || p.sparse_kv_head_offset != 0;
  require_feature(spec.block_sparse, sparse, "sparse_block_size", "block_sparse");
  if (p.cu_seqlens_q != nullptr && spec.q_len == 1)
    mismatch("cu_seqlens_q was given, but the kernel was built with q_len 1, where every sequence has one query token: leave it null, or set q_len in its AttentionSpec");
  if (p.window != nullptr) require_pointer(p.window, "window", 4);
  if (p.sinks != nullptr) require_pointer(p.sinks, "sinks", 4);
  if (p.alibi_slopes != nullptr) require_pointer(p.alibi_slopes, "alibi_slopes", 4);
  if (p.mask_offset != nullptr) require_pointer(p.mask_offset, "mask_offset", 4);
  if (p.cu_seqlens_q != nullptr) require_pointer(p.cu_seqlens_q, "cu_seqlens_q", 4);
  if (p.chunk < 0) refuse("chunk is {}: it must be at least 1", p.chunk);
  if (p.sink_tokens < 0) refuse("sink_tokens is {}: it must be at least 1", p.sink_tokens);
  if (spec.soft_cap && !(p.soft_cap > 0 && std::isfinite(p.soft_cap))) refuse("soft_cap is {}: it must be positive and finite", p.soft_cap);
  if (spec.mask == MaskKind::tree && p.tree_mask_size < spec.q_len) refuse("tree_mask_size is {}: it must be at least q_len, {}", p.tree_mask_size, spec.q_len);
  if (spec.mask != MaskKind::tree && p.tree_mask_size != 0)
    mismatch("tree_mask_size is {}, but the kernel was built without a tree mask: set mask tree in its AttentionSpec, or leave it 0", p.tree_mask_size);
  if (spec.block_sparse) {
    if (p.sparse_block_size < 1 || p.sparse_block_size % spec.page_size != 0)
      refuse("sparse_block_size is {}: it must be a positive multiple of the page size, {}", p.sparse_block_size, spec.page_size);
    if (p.sparse_vert_stride < 1) refuse("sparse_vert_stride is {}: it must be at least 1", p.sparse_vert_stride);
    if (p.sparse_local_blocks < 0) refuse("sparse_local_blocks is {}: it must not be negative", p.sparse_local_blocks);
    if (p.sparse_head_offset < 0) refuse("sparse_head_offset is {}: it must not be negative", p.sparse_head_offset);
    if (p.sparse_kv_head_offset < 0) refuse("sparse_kv_head_offset is {}: it must not be negative", p.sparse_kv_head_offset);
  }
  if (const unsigned unknown = p.flags & ~PT_LAUNCH_OVERLAP; unknown != 0) refuse("flags has the unknown bits {:#x}: allowed are PT_LAUNCH_OVERLAP ({:#x}) and 0", unknown, PT_LAUNCH_OVERLAP);
}

}  // namespace

size_t workspace_bytes(const AttentionSpec& spec, int64_t batch, LaunchPlan plan) {
  const size_t rows = partial_rows(spec, batch, plan);
  return record_bytes(spec) + counter_bytes(spec, batch, plan) + aligned(rows * static_cast<size_t>(spec.head_dim_v) * 4) + aligned(rows * 4);
}

void check_params(const AttentionSpec& spec, LaunchPlan plan, const pt_decode_params& p) {
  if (p.struct_size != sizeof(pt_decode_params) || p.version != PT_PARAMS_VERSION)
    mismatch("pt_decode_params has size {} and version {}; this library has size {} and version {}: start from make_decode_params()", p.struct_size, p.version, sizeof(pt_decode_params),
             PT_PARAMS_VERSION);
  if (p.batch < 0) refuse("batch is {}: it must not be negative", p.batch);
  if (p.batch == 0) return;
  if (plan.num_splits < 1 || plan.num_splits > kMaxSplits) refuse("num_splits is {}: allowed are 1 to {}", plan.num_splits, kMaxSplits);
  if (const int64_t ctas = static_cast<int64_t>(p.batch) * spec.q_heads * spec.q_len * plan.num_splits; ctas > kMaxGrid)
    refuse("batch {} x {} query heads x {} query tokens x {} splits asks for {} blocks: the grid allows {}", p.batch, spec.q_heads, spec.q_len, plan.num_splits, ctas, kMaxGrid);
  // An even share counts the tiles of all sequences and heads in 32 bits.
  const int64_t rows = row_tiles(spec) * spec.kv_heads * p.batch;
  if (const int64_t tiles = rows * (p.max_len / kSmallestTile + 1 + kMostOpening); plan.num_ctas > 0 && tiles > kMaxGrid)
    refuse("batch {} with max_len {} has up to {} tiles of {} KV heads: an even share counts at most {}; use a smaller batch or max_len", p.batch, p.max_len, tiles, spec.kv_heads, kMaxGrid);
  require_pointer(p.q, "q", 16);
  require_pointer(p.k_cache, "k_cache", 16);
  require_pointer(p.v_cache, "v_cache", 16);
  require_pointer(p.out, "out", 16);
  require_pointer(p.block_tables, "block_tables", 4);
  require_pointer(p.seq_lens, "seq_lens", 4);
  require_feature(spec.lse, p.lse != nullptr, "lse", "lse");
  if (spec.lse) require_pointer(p.lse, "lse", 4);
  check_features(spec, p);
  check_lengths(spec, p);
  if (!std::isfinite(p.scale)) refuse("scale is {}: it must be finite (0 means 1/sqrt(head_dim_k))", p.scale);
  if (p.max_len < 0) refuse("max_len is {}: it must not be negative", p.max_len);
  if (p.block_table_width < 0) refuse("block_table_width is {}: it must not be negative", p.block_table_width);
  if ((p.batch > 1 || (spec.headwise && spec.kv_heads > 1)) && p.block_table_stride < p.block_table_width)
    refuse("block_table_stride is {}: it must be at least block_table_width, {}", p.block_table_stride, p.block_table_width);
  if (static_cast<int64_t>(p.block_table_width) * spec.page_size < p.max_len)
    refuse("max_len is {}, but a block-table row of {} entries holds {} tokens of pages of {} ({} > {})", p.max_len, p.block_table_width,
           static_cast<int64_t>(p.block_table_width) * spec.page_size, spec.page_size, p.max_len, static_cast<int64_t>(p.block_table_width) * spec.page_size);
  check_rows(spec, p, "q", p.q_stride_seq, p.q_stride_token, p.q_stride_head, spec.head_dim_k, spec.q_dtype);
  check_rows(spec, p, "out", p.out_stride_seq, p.out_stride_token, p.out_stride_head, spec.head_dim_v, spec.out_dtype);
  check_caches(spec, p);
  if (const size_t needed = workspace_bytes(spec, p.batch, plan); needed > 0) {
    require_pointer(p.workspace, "workspace", kAlignment);
    if (p.workspace_bytes < 0 || static_cast<size_t>(p.workspace_bytes) < needed)
      refuse("the workspace has {} bytes: batch {} with {} splits needs {}; size it with workspace_bytes(max_batch, max_len)", p.workspace_bytes, p.batch, plan.num_splits, needed);
  }
}

pt_decode_params complete(const AttentionSpec& spec, LaunchPlan plan, pt_decode_params p) {
  constexpr float kLog2E = 1.44269504088896340736f;
  if (p.scale == 0.f) p.scale = 1.f / std::sqrt(static_cast<float>(spec.head_dim_k));
  p.scale_log2 = p.scale * kLog2E;
  p.num_splits = plan.num_splits;
  p.num_ctas = plan.num_ctas;
  auto* base = static_cast<unsigned char*>(p.workspace);
  p.error = spec.checked ? reinterpret_cast<pt_error_record*>(base) : nullptr;
  p.counters = nullptr;
  p.partial_out = nullptr;
  p.partial_lse = nullptr;
  if (plan.merges()) {
    base += record_bytes(spec);
    p.counters = reinterpret_cast<unsigned long long*>(base);
    base += counter_bytes(spec, p.batch, plan);
    p.partial_out = reinterpret_cast<float*>(base);
    p.partial_lse = reinterpret_cast<float*>(base + aligned(partial_rows(spec, p.batch, plan) * static_cast<size_t>(spec.head_dim_v) * 4));
  }
  return p;
}

pt_decode_params make_decode_params() {
  pt_decode_params p{};
  p.struct_size = sizeof p;
  p.version = PT_PARAMS_VERSION;
  return p;
}

void set_contiguous_strides(const AttentionSpec& spec, int block_table_width, pt_decode_params& p) {
  const int64_t heads = spec.kv_heads, page = spec.page_size;
  const auto cache = [&](int64_t dim, long long& page_stride, long long& token, long long& head) {
    if (flat_ids(spec)) {
      page_stride = page * dim;
      token = dim;
      head = 0;
      return;
    }
    page_stride = page * heads * dim;
    token = spec.layout == Layout::nhd ? heads * dim : dim;
    head = spec.layout == Layout::nhd ? dim : page * dim;
  };
  cache(spec.head_dim_k, p.k_stride_page, p.k_stride_token, p.k_stride_head);
  cache(spec.head_dim_v, p.v_stride_page, p.v_stride_token, p.v_stride_head);
  p.q_stride_head = spec.head_dim_k;
  p.q_stride_token = static_cast<int64_t>(spec.q_heads) * spec.head_dim_k;
  p.q_stride_seq = spec.q_len * p.q_stride_token;
  p.out_stride_head = spec.head_dim_v;
  p.out_stride_token = static_cast<int64_t>(spec.q_heads) * spec.head_dim_v;
  p.out_stride_seq = spec.q_len * p.out_stride_token;
  p.seq_lens_stride_seq = 1;
  p.seq_lens_stride_head = 0;
  p.block_table_stride = block_table_width;
  p.block_table_width = block_table_width;
}

}  // namespace pagetune
