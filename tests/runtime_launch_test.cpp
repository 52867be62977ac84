// The checks of a call and the workspace's size. No device: nothing here is dereferenced.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "codegen_testing.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/launch.hpp"

namespace pagetune {
namespace {

// Fault (B07): a stride of 32 bits, which a cache of more than 2^31 elements overflows.
static_assert(std::is_same_v<decltype(pt_decode_params::k_stride_page), long long> && std::is_same_v<decltype(pt_decode_params::k_stride_token), long long> &&
              std::is_same_v<decltype(pt_decode_params::k_stride_head), long long> && std::is_same_v<decltype(pt_decode_params::v_stride_page), long long> &&
              std::is_same_v<decltype(pt_decode_params::v_stride_token), long long> && std::is_same_v<decltype(pt_decode_params::v_stride_head), long long> &&
              std::is_same_v<decltype(pt_decode_params::q_stride_seq), long long> && std::is_same_v<decltype(pt_decode_params::q_stride_head), long long> &&
              std::is_same_v<decltype(pt_decode_params::out_stride_seq), long long> && std::is_same_v<decltype(pt_decode_params::out_stride_head), long long> &&
              std::is_same_v<decltype(pt_decode_params::block_table_stride), long long> && std::is_same_v<decltype(pt_decode_params::workspace_bytes), long long>);
static_assert(sizeof(long long) == 8 && std::is_trivially_copyable_v<pt_decode_params> && std::is_standard_layout_v<pt_decode_params>);

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

constexpr int kSplits = 4;
AttentionSpec spec_with(Layout layout = Layout::nhd) {
  AttentionSpec spec = testing::decode_spec(8, 2, 64, 16);
  spec.layout = layout;
  return spec;
}

// A call that is right for `spec`: 3 sequences, 10 pages, rows of 2 entries (32 tokens).
pt_decode_params good(const AttentionSpec& spec) {
  pt_decode_params p = make_decode_params();
  set_contiguous_strides(spec, 2, p);
  p.q = at<void>(0x10000000);
  p.out = at<void>(0x20000000);
  p.k_cache = at<void>(0x30000000);
  p.v_cache = at<void>(0x40000000);
  p.block_tables = at<int>(0x50000000);
  p.seq_lens = at<int>(0x60000000);
  p.workspace = at<void>(0x70000000);
  p.batch = 3;
  p.max_len = 32;
  p.num_pages = 10;
  p.workspace_bytes = static_cast<long long>(workspace_bytes(spec, p.batch, kSplits));
  if (spec.lse) p.lse = at<float>(0x80000000);
  if (spec.window) p.window = at<int>(0x90000000);
  if (spec.chunk) p.chunk = 8;
  if (spec.sink_tokens) p.sink_tokens = 4;
  if (spec.sinks) p.sinks = at<float>(0x91000000);
  if (spec.alibi) p.alibi_slopes = at<float>(0x92000000);
  if (spec.soft_cap) p.soft_cap = 30;
  if (spec.mask == MaskKind::tree) {
    p.tree_mask = at<unsigned char>(0x93000001);
    p.tree_mask_size = spec.q_len;
  }
  if (spec.mask == MaskKind::offset) p.mask_offset = at<int>(0x94000000);
  if (spec.block_sparse) {
    p.sparse_block_size = 2 * spec.page_size;
    p.sparse_vert_stride = 8;
  }
  return p;
}

struct BadCall {
  const char* what;
  std::function<void(pt_decode_params&)> change;
  std::vector<std::string> mentions;  // the value and what is allowed
  ErrorCode code = ErrorCode::invalid_argument;
  AttentionSpec spec = spec_with();
  int num_splits = kSplits;
};

AttentionSpec with_feature(bool AttentionSpec::*feature) {
  AttentionSpec spec = spec_with();
  spec.*feature = true;
  return spec;
}

AttentionSpec of_tokens(int q_len, MaskKind mask = MaskKind::none) {
  AttentionSpec spec = spec_with();
  spec.q_len = q_len;
  spec.mask = mask;
  return spec;
}

AttentionSpec headwise(AddressMap map = AddressMap::slot) {
  AttentionSpec spec = with_feature(&AttentionSpec::headwise);
  spec.address_map = map;
  return spec;
}

const std::vector<BadCall>& bad_calls() {
  using P = pt_decode_params;
  constexpr auto kMismatch = ErrorCode::mismatch;
  constexpr long long kHuge = std::numeric_limits<long long>::max() / 2;
  static const std::vector<BadCall> kCalls = {
      {"struct_size", [](P& p) { p.struct_size -= 8; }, {std::to_string(sizeof(P) - 8), std::to_string(sizeof(P)), "make_decode_params"}, kMismatch},
      {"version", [](P& p) { p.version = 77; }, {"77", std::to_string(PT_PARAMS_VERSION)}, kMismatch},
      {"negative batch", [](P& p) { p.batch = -5; }, {"batch is -5"}},
      {"no splits", [](P&) {}, {"num_splits is 0", "1 to 256"}, ErrorCode::invalid_argument, spec_with(), 0},
      {"257 splits", [](P&) {}, {"num_splits is 257", "1 to 256"}, ErrorCode::invalid_argument, spec_with(), 257},
      {"grid", [](P& p) { p.batch = 300'000'000; }, {"300000000", "8 query heads", "9600000000", "2147483647"}},
      {"null q", [](P& p) { p.q = nullptr; }, {"q is null"}},
      {"null K", [](P& p) { p.k_cache = nullptr; }, {"k_cache is null"}},
      {"null V", [](P& p) { p.v_cache = nullptr; }, {"v_cache is null"}},
      {"null out", [](P& p) { p.out = nullptr; }, {"out is null"}},
      {"null tables", [](P& p) { p.block_tables = nullptr; }, {"block_tables is null"}},
      {"null lengths", [](P& p) { p.seq_lens = nullptr; }, {"seq_lens is null"}},
      {"misaligned q", [](P& p) { p.q = at<void>(0x10000002); }, {"q is at 0x10000002", "16 bytes"}},
      {"misaligned K", [](P& p) { p.k_cache = at<void>(0x30000008); }, {"k_cache is at 0x30000008", "16 bytes"}},
      {"misaligned V", [](P& p) { p.v_cache = at<void>(0x4000000c); }, {"v_cache is at 0x4000000c", "16 bytes"}},
      {"misaligned out", [](P& p) { p.out = at<void>(0x20000004); }, {"out is at 0x20000004", "16 bytes"}},
      {"misaligned tables", [](P& p) { p.block_tables = at<int>(0x50000002); }, {"block_tables is at 0x50000002", "4 bytes"}},
      {"misaligned lengths", [](P& p) { p.seq_lens = at<int>(0x60000001); }, {"seq_lens is at 0x60000001", "4 bytes"}},
      {"misaligned LSE", [](P& p) { p.lse = at<float>(0x80000002); }, {"lse is at 0x80000002", "4 bytes"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::lse)},
      // B85: data of a feature that the kernel was built without, and the reverse
      {"window given", [](P& p) { p.window = at<int>(0x90000000); }, {"window was given", "set window"}, kMismatch},
      {"sinks given", [](P& p) { p.sinks = at<float>(0x90000000); }, {"sinks was given", "set sinks"}, kMismatch},
      {"slopes given", [](P& p) { p.alibi_slopes = at<float>(0x90000000); }, {"alibi_slopes was given", "set alibi"}, kMismatch},
      {"soft cap given", [](P& p) { p.soft_cap = 30; }, {"soft_cap was given"}, kMismatch},
      {"soft cap NaN", [](P& p) { p.soft_cap = NAN; }, {"soft_cap was given"}, kMismatch},
      {"LSE given", [](P& p) { p.lse = at<float>(0x80000000); }, {"lse was given", "set lse"}, kMismatch},
      {"LSE missing", [](P& p) { p.lse = nullptr; }, {"lse is missing"}, kMismatch, with_feature(&AttentionSpec::lse)},
      {"window missing", [](P& p) { p.window = nullptr; }, {"window is missing"}, kMismatch, with_feature(&AttentionSpec::window)},
      {"sinks missing", [](P& p) { p.sinks = nullptr; }, {"sinks is missing"}, kMismatch, with_feature(&AttentionSpec::sinks)},
      {"slopes missing", [](P& p) { p.alibi_slopes = nullptr; }, {"alibi_slopes is missing"}, kMismatch, with_feature(&AttentionSpec::alibi)},
      {"soft cap missing", [](P& p) { p.soft_cap = 0; }, {"soft_cap is missing"}, kMismatch, with_feature(&AttentionSpec::soft_cap)},
      {"chunk given", [](P& p) { p.chunk = 8; }, {"chunk was given", "set chunk"}, kMismatch},
      {"chunk missing", [](P& p) { p.chunk = 0; }, {"chunk is missing"}, kMismatch, with_feature(&AttentionSpec::chunk)},
      {"chunk negative", [](P& p) { p.chunk = -8; }, {"chunk is -8", "at least 1"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::chunk)},
      {"sink tokens given", [](P& p) { p.sink_tokens = 4; }, {"sink_tokens was given", "set sink_tokens"}, kMismatch},
      {"sink tokens missing", [](P& p) { p.sink_tokens = 0; }, {"sink_tokens is missing"}, kMismatch, with_feature(&AttentionSpec::sink_tokens)},
      {"sink tokens negative", [](P& p) { p.sink_tokens = -1; }, {"sink_tokens is -1", "at least 1"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::sink_tokens)},
      {"soft cap negative", [](P& p) { p.soft_cap = -30; }, {"soft_cap is -30", "positive"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::soft_cap)},
      {"soft cap infinite", [](P& p) { p.soft_cap = INFINITY; }, {"soft_cap is inf", "finite"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::soft_cap)},
      {"misaligned window", [](P& p) { p.window = at<int>(0x90000002); }, {"window is at 0x90000002", "4 bytes"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::window)},
      {"misaligned sinks", [](P& p) { p.sinks = at<float>(0x90000002); }, {"sinks is at 0x90000002", "4 bytes"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::sinks)},
      {"misaligned slopes", [](P& p) { p.alibi_slopes = at<float>(0x90000002); }, {"alibi_slopes is at 0x90000002"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::alibi)},
      {"tree given", [](P& p) { p.tree_mask = at<unsigned char>(0x90000000); }, {"tree_mask was given", "set mask tree"}, kMismatch, of_tokens(4)},
      {"tree missing", [](P& p) { p.tree_mask = nullptr; }, {"tree_mask is missing"}, kMismatch, of_tokens(4, MaskKind::tree)},
      {"tree size without a tree", [](P& p) { p.tree_mask_size = 4; }, {"tree_mask_size is 4", "without a tree mask"}, kMismatch, of_tokens(4)},
      {"tree too small", [](P& p) { p.tree_mask_size = 3; }, {"tree_mask_size is 3", "at least q_len, 4"}, ErrorCode::invalid_argument, of_tokens(4, MaskKind::tree)},
      {"mask offsets given", [](P& p) { p.mask_offset = at<int>(0x90000000); }, {"mask_offset was given", "set mask offset"}, kMismatch},
      {"mask offsets missing", [](P& p) { p.mask_offset = nullptr; }, {"mask_offset is missing"}, kMismatch, of_tokens(1, MaskKind::offset)},
      {"misaligned mask offsets", [](P& p) { p.mask_offset = at<int>(0x90000003); }, {"mask_offset is at 0x90000003"}, ErrorCode::invalid_argument, of_tokens(1, MaskKind::offset)},
      {"sparse numbers given", [](P& p) { p.sparse_local_blocks = 3; }, {"sparse_block_size was given", "set block_sparse"}, kMismatch},
      {"sparse numbers missing", [](P& p) { p.sparse_block_size = p.sparse_vert_stride = 0; }, {"sparse_block_size is missing"}, kMismatch, with_feature(&AttentionSpec::block_sparse)},
      {"sparse block of half a page", [](P& p) { p.sparse_block_size = 24; }, {"sparse_block_size is 24", "page size, 16"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"sparse block negative", [](P& p) { p.sparse_block_size = -16; }, {"sparse_block_size is -16"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"vertical stride 0", [](P& p) { p.sparse_vert_stride = 0; }, {"sparse_vert_stride is 0", "at least 1"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"local blocks negative", [](P& p) { p.sparse_local_blocks = -1; }, {"sparse_local_blocks is -1"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"head offset negative", [](P& p) { p.sparse_head_offset = -1; }, {"sparse_head_offset is -1"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"KV head offset negative", [](P& p) { p.sparse_kv_head_offset = -2; }, {"sparse_kv_head_offset is -2"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::block_sparse)},
      {"cu_seqlens_q for one token", [](P& p) { p.cu_seqlens_q = at<int>(0x95000000); }, {"cu_seqlens_q was given", "q_len 1"}, kMismatch},
      {"misaligned cu_seqlens_q", [](P& p) { p.cu_seqlens_q = at<int>(0x95000001); }, {"cu_seqlens_q is at 0x95000001", "4 bytes"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"per-head lengths of a uniform table", [](P& p) { p.seq_lens_stride_seq = 2; p.seq_lens_stride_head = 1; }, {"seq_lens_stride_seq is 2", "headwise", "1 and 0"}, kMismatch},
      {"length strides 0", [](P& p) { p.seq_lens_stride_seq = 0; }, {"seq_lens_stride_seq is 0", "1 and 0", "set_contiguous_strides()"}},
      {"length strides of other heads", [](P& p) { p.seq_lens_stride_seq = 3; p.seq_lens_stride_head = 1; }, {"seq_lens_stride_seq is 3", "or 2 and 1"}, ErrorCode::invalid_argument, headwise()},
      {"one sequence, rows of its heads overlap", [](P& p) { p.batch = 1; p.block_table_stride = 1; }, {"block_table_stride is 1"}, ErrorCode::invalid_argument, headwise()},
      {"unknown flags", [](P& p) { p.flags = 6; }, {"flags", "0x6", "PT_LAUNCH_OVERLAP (0x1)"}},
      {"q tokens overlap", [](P& p) { p.q_stride_token = 504; }, {"token stride of q is 504", "at least 512"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"q tokens unaligned", [](P& p) { p.q_stride_token = 516; }, {"token stride of q is 516", "multiple of 8"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"q sequences of four tokens overlap", [](P& p) { p.q_stride_seq = 2040; }, {"sequence stride of q is 2040", "at least 2048"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"out tokens overlap", [](P& p) { p.out_stride_token = 0; }, {"token stride of out is 0", "at least 512"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"packed out tokens overlap", [](P& p) { p.cu_seqlens_q = at<int>(0x95000000); p.out_stride_token = 8; }, {"token stride of out is 8"}, ErrorCode::invalid_argument, of_tokens(4)},
      {"q token stride overflows", [](P& p) { p.q_stride_token = kHuge; }, {std::to_string(kHuge), "at most"}, ErrorCode::invalid_argument, of_tokens(4)},
      // flat ids: a page is [16][64] of one head
      {"flat pages overlap", [](P& p) { p.k_stride_page = 1016; }, {"page stride of the K cache is 1016", "at least 1024"}, ErrorCode::invalid_argument, headwise(AddressMap::flat)},
      {"flat tokens overlap", [](P& p) { p.v_stride_token = 32; }, {"token stride of the V cache is 32", "at least 64"}, ErrorCode::invalid_argument, headwise(AddressMap::flat)},
      {"flat caches overlap", [](P& p) { p.v_cache = at<void>(0x30000000 + 2048 * 9); }, {"overlap"}, ErrorCode::invalid_argument, headwise(AddressMap::flat)},
      {"scale NaN", [](P& p) { p.scale = NAN; }, {"scale is nan", "finite"}},
      {"scale infinite", [](P& p) { p.scale = INFINITY; }, {"scale is inf", "finite"}},
      {"negative max_len", [](P& p) { p.max_len = -3; }, {"max_len is -3"}},
      {"negative width", [](P& p) { p.block_table_width = -1; }, {"block_table_width is -1"}},
      {"table stride below width", [](P& p) { p.block_table_stride = 1; }, {"block_table_stride is 1", "at least block_table_width, 2"}},
      {"negative table stride", [](P& p) { p.block_table_stride = -2; }, {"block_table_stride is -2"}},
      {"max_len beyond the row (B34)", [](P& p) { p.max_len = 33; }, {"max_len is 33", "2 entries", "32 tokens", "33 > 32"}},
      {"q heads overlap", [](P& p) { p.q_stride_head = 32; }, {"head stride of q is 32", "at least 64", "multiple of 8"}},
      {"q heads unaligned", [](P& p) { p.q_stride_head = 68; }, {"head stride of q is 68", "multiple of 8"}},
      {"q sequences overlap", [](P& p) { p.q_stride_seq = 504; }, {"sequence stride of q is 504", "at least 512"}},
      {"q sequences unaligned", [](P& p) { p.q_stride_seq = 513; }, {"sequence stride of q is 513", "multiple of 8"}},
      {"q stride overflows", [](P& p) { p.q_stride_head = kHuge; }, {std::to_string(kHuge), "at most"}},
      {"out heads overlap", [](P& p) { p.out_stride_head = -64; }, {"head stride of out is -64", "at least 64"}},
      {"out sequences overlap", [](P& p) { p.out_stride_seq = 0; }, {"sequence stride of out is 0", "at least 512"}},
      {"out stride overflows", [](P& p) { p.out_stride_seq = kHuge; }, {std::to_string(kHuge), "at most"}},
      {"no pages", [](P& p) { p.num_pages = 0; }, {"num_pages is 0", "at least 1"}},
      {"K heads overlap", [](P& p) { p.k_stride_head = 56; }, {"head stride of the K cache is 56", "at least 64"}},
      {"V tokens overlap", [](P& p) { p.v_stride_token = 120; }, {"token stride of the V cache is 120", "at least 128"}},
      {"K pages overlap", [](P& p) { p.k_stride_page = 2040; }, {"page stride of the K cache is 2040", "at least 2048"}},
      {"V pages negative", [](P& p) { p.v_stride_page = -2048; }, {"page stride of the V cache is -2048"}},
      {"K pages unaligned", [](P& p) { p.k_stride_page = 2052; }, {"page stride of the K cache is 2052", "multiple of 8 (16 bytes)"}},
      {"V heads unaligned", [](P& p) { p.v_stride_head = 66; p.v_stride_token = 136; p.v_stride_page = 136 * 16; }, {"head stride of the V cache is 66", "multiple of 8"}},
      {"K page stride overflows", [](P& p) { p.k_stride_page = kHuge - kHuge % 8; }, {std::to_string(kHuge - kHuge % 8), "10 of them"}},
      {"K token stride overflows", [](P& p) { p.k_stride_token = kHuge - kHuge % 8; }, {std::to_string(kHuge - kHuge % 8)}},
      // B80: strides of the other layout
      {"HND strides, NHD spec", [](P& p) { std::swap(p.k_stride_token, p.k_stride_head); p.k_stride_head = 16 * 64; }, {"K cache", "token stride 64", "head stride 1024", "nhd"}, kMismatch},
      {"NHD strides, HND spec", [](P& p) { p.v_stride_token = 128; p.v_stride_head = 64; }, {"V cache", "token stride 128", "head stride 64", "hnd"}, kMismatch, spec_with(Layout::hnd)},
      {"K is V", [](P& p) { p.v_cache = p.k_cache; }, {"0x30000000", "overlap", "allowed"}},
      // a page is 2,048 elements, 4,096 bytes
      {"V starts inside K", [](P& p) { p.v_cache = at<void>(0x30000000 + 4096 * 9); }, {"0x30009000", "overlap"}},
      {"V ends inside K", [](P& p) { p.v_cache = at<void>(0x30000000 - 4096 * 10 + 16); }, {"overlap"}},
      {"interleaved by half a head", [](P& p) { p.k_stride_head = p.v_stride_head = 128; p.k_stride_token = p.v_stride_token = 256; p.k_stride_page = p.v_stride_page = 4096;
         p.v_cache = at<void>(0x30000000 + 64); }, {"overlap"}},
      {"V reaches into the next page of K", [](P& p) { p.k_stride_page = p.v_stride_page = 4096; p.v_cache = at<void>(0x30000000 + (4096 - 8) * 2); }, {"0x30001ff0", "overlap"}},
      {"interleaved with other strides", [](P& p) { p.k_stride_page = 4096; p.v_stride_page = 8192; p.v_cache = at<void>(0x30000000 + 4096); }, {"overlap", "equal strides"}},
      {"workspace null", [](P& p) { p.workspace = nullptr; }, {"workspace is null"}},
      {"workspace misaligned", [](P& p) { p.workspace = at<void>(0x70000080); }, {"workspace is at 0x70000080", "256 bytes"}},
      {"workspace one byte small", [](P& p) { --p.workspace_bytes; }, {std::to_string(workspace_bytes(spec_with(), 3, kSplits) - 1), std::to_string(workspace_bytes(spec_with(), 3, kSplits)), "workspace_bytes("}},
      {"workspace negative", [](P& p) { p.workspace_bytes = -1; }, {"-1 bytes", std::to_string(workspace_bytes(spec_with(), 3, kSplits))}},
      {"workspace of a checked spec", [](P& p) { p.workspace_bytes = 255; }, {"255", "256"}, ErrorCode::invalid_argument, with_feature(&AttentionSpec::checked), 1},
  };
  return kCalls;
}

// Fault: one check is missing, is made against the wrong limit, or its message hides the value, what is allowed, or is unformatted.
TEST(CheckParams, EveryBadCallIsRefusedWithItsValue) {
  for (const BadCall& call : bad_calls()) {
    SCOPED_TRACE(call.what);
    pt_decode_params p = good(call.spec);
    call.change(p);
    testing::expect_mentions(testing::error_text([&] { check_params(call.spec, call.num_splits, p); }, call.code), call.mentions);
  }
}

void expect_accepted(const char* what, const AttentionSpec& spec, const pt_decode_params& p, int num_splits = kSplits) {
  EXPECT_NO_THROW(check_params(spec, num_splits, p)) << what;
}

// Fault: the good call itself is refused, and the table above proves nothing; strides that are never used are looked at.
TEST(CheckParams, GoodCallsAreAccepted) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    for (bool AttentionSpec::*feature : {&AttentionSpec::lse, &AttentionSpec::window, &AttentionSpec::checked}) {
      AttentionSpec spec = spec_with(layout);
      spec.*feature = true;
      expect_accepted("contiguous", spec, good(spec));
    }
  }
  for (bool AttentionSpec::*feature : {&AttentionSpec::chunk, &AttentionSpec::sink_tokens, &AttentionSpec::sinks, &AttentionSpec::soft_cap, &AttentionSpec::alibi, &AttentionSpec::block_sparse,
                                       &AttentionSpec::headwise})
    expect_accepted("a feature", with_feature(feature), good(with_feature(feature)));
  for (const MaskKind mask : {MaskKind::none, MaskKind::tree, MaskKind::offset}) {
    const AttentionSpec tokens = of_tokens(4, mask);
    pt_decode_params call = good(tokens);
    expect_accepted("four query tokens", tokens, call);
    call.cu_seqlens_q = at<int>(0x95000000);
    call.q_stride_seq = call.out_stride_seq = -7;
    expect_accepted("packed query tokens have no sequence stride", tokens, call);
    call.flags = PT_LAUNCH_OVERLAP;
    expect_accepted("a known flag", tokens, call);
  }
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    pt_decode_params call = good(headwise(map));
    call.seq_lens_stride_seq = 2;
    call.seq_lens_stride_head = 1;
    expect_accepted("a length for each head", headwise(map), call);
    if (map == AddressMap::flat) call.k_stride_head = call.v_stride_head = 3;
    expect_accepted("flat ids have no head stride", headwise(map), call);
  }
  const AttentionSpec spec = spec_with();
  pt_decode_params p = make_decode_params();
  expect_accepted("an empty batch needs nothing else", spec, p);
  p = good(spec);
  p.batch = 1;
  p.q_stride_seq = p.out_stride_seq = p.block_table_stride = 0;
  expect_accepted("one sequence has no sequence stride", spec, p);
  p = good(spec);
  p.num_pages = 1;
  p.k_stride_page = p.v_stride_page = 0;
  expect_accepted("one page has no page stride", spec, p);
  p = good(spec);
  p.workspace = nullptr;
  p.workspace_bytes = 0;
  expect_accepted("one split needs no workspace", spec, p, 1);
  p = good(spec);
  p.max_len = 0;
  expect_accepted("only padding rows", spec, p);
  p = good(spec);
  p.scale = -0.25f;
  expect_accepted("any finite scale", spec, p);
  p = good(spec);
  p.v_cache = at<void>(0x30000000 + 4096 * 10);
  expect_accepted("V right behind K", spec, p);
  p.v_cache = at<void>(0x30000000 - 4096 * 10);
  expect_accepted("V right before K", spec, p);
  p = good(spec);
  p.k_stride_page = p.v_stride_page = 1LL << 36;
  p.v_cache = at<void>(0x30000000 + (1LL << 42));
  expect_accepted("page strides beyond 32 bits", spec, p);
}

// Fault: views that engines really use are taken for overlap: K and V interleaved page by page, K and V of one head side by side.
TEST(CheckParams, InterleavedAndSlicedCachesAreAccepted) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    const AttentionSpec spec = spec_with(layout);
    pt_decode_params p = good(spec);
    p.k_stride_page = p.v_stride_page = 2 * 2048;  // [pages][2][…]
    p.v_cache = at<void>(0x30000000 + 2048 * 2);
    expect_accepted("interleaved", spec, p);
    std::swap(p.k_cache, p.v_cache);
    expect_accepted("interleaved, V first", spec, p);
    p.v_cache = at<void>(0x30000000 + 2048 * 2 - 16);
    p.k_cache = at<void>(0x30000000);
    testing::expect_mentions(testing::error_text([&] { check_params(spec, kSplits, p); }), {"overlap"});
  }
  // [pages][page size][heads][K and V side by side]
  const AttentionSpec spec = spec_with();
  pt_decode_params p = good(spec);
  p.k_stride_head = p.v_stride_head = 128;
  p.k_stride_token = p.v_stride_token = 256;
  p.k_stride_page = p.v_stride_page = 4096;
  p.v_cache = at<void>(0x30000000 + 64 * 2);
  expect_accepted("K and V side by side", spec, p);
  // Two of six heads of a cache that other ranks share.
  p = good(spec);
  p.k_stride_token = p.v_stride_token = 6 * 64;
  p.k_stride_page = p.v_stride_page = 16 * 6 * 64;
  expect_accepted("sliced heads", spec, p);
  // The slices of K and V in one such cache.
  p.v_cache = at<void>(0x30000000 + 3 * 64 * 2);
  expect_accepted("sliced heads of one cache", spec, p);
  p.v_cache = at<void>(0x30000000 + 1 * 64 * 2);
  testing::expect_mentions(testing::error_text([&] { check_params(spec, kSplits, p); }), {"overlap"});
}

// Fault (B82): q as a slice of a fused QKV projection must be copied first.
TEST(CheckParams, QueryMayBeASliceOfFusedQkv) {
  const AttentionSpec spec = spec_with();
  pt_decode_params p = good(spec);
  p.q_stride_seq = (8 + 2 + 2) * 64;
  expect_accepted("[q | k | v] in a row", spec, p);
  p.q_stride_head = 3 * 64;
  p.q_stride_seq = 8 * 3 * 64;
  expect_accepted("[q k v] head by head", spec, p);
}

// Fault: parts of the workspace overlap, are misaligned, or a smaller launch does not fit a larger one's workspace.
TEST(Workspace, IsAlignedMonotoneAndHoldsItsParts) {
  for (const bool checked : {false, true}) {
    AttentionSpec spec = testing::decode_spec(7, 1, 72, 16);
    spec.checked = checked;
    EXPECT_EQ(workspace_bytes(spec, 1000, 1), checked ? 256u : 0u);
    size_t before = 0;
    for (int batch = 1; batch < 70; ++batch) {
      size_t last = 0;
      for (const int splits : {1, 2, 3, 8, 128}) {
        const size_t bytes = workspace_bytes(spec, batch, splits);
        EXPECT_EQ(bytes % 256, 0u);
        EXPECT_GE(bytes, last);
        last = bytes;
        if (splits == 1) continue;
        pt_decode_params p = make_decode_params();
        p.batch = batch;
        p.workspace = at<void>(0x70000000);
        p = complete(spec, splits, p);
        const uintptr_t rows = static_cast<uintptr_t>(batch) * 7 * static_cast<uintptr_t>(splits);
        const auto out = reinterpret_cast<uintptr_t>(p.partial_out), lse = reinterpret_cast<uintptr_t>(p.partial_lse);
        EXPECT_EQ(out % 256, 0u);
        EXPECT_EQ(lse % 256, 0u);
        EXPECT_GE(out, 0x70000000u + (checked ? sizeof(pt_error_record) : 0));
        EXPECT_GE(lse, out + rows * 72 * 4);
        EXPECT_LE(lse + rows * 4, 0x70000000u + bytes);
        EXPECT_EQ(p.error, checked ? at<pt_error_record>(0x70000000) : nullptr);
        EXPECT_EQ(p.num_splits, splits);
      }
      EXPECT_GE(last, before);
      before = last;
    }
  }
}

// Fault: the product of a large shape is taken in 32 bits.
TEST(Workspace, LargeShapesDoNotOverflow) {
  const AttentionSpec spec = testing::decode_spec(1024, 1, 256);
  const size_t rows = size_t{65536} * 1024 * 128;
  const size_t counters = size_t{65536} * 1024 * 8;
  EXPECT_EQ(workspace_bytes(spec, 65536, 128), counters + rows * 256 * 4 + rows * 4);
}

// Fault: a scale of 0 is taken as it is, or the kernels' base-2 scale is not the natural one times log2(e).
TEST(Complete, FillsTheScale) {
  const AttentionSpec spec = testing::decode_spec(8, 2, 64);
  pt_decode_params p = complete(spec, 1, good(spec));
  EXPECT_FLOAT_EQ(p.scale, 0.125f);
  EXPECT_FLOAT_EQ(p.scale_log2, 0.125f * 1.44269504f);
  EXPECT_EQ(p.partial_out, nullptr);
  EXPECT_EQ(p.partial_lse, nullptr);
  pt_decode_params given = good(spec);
  given.scale = 2;
  EXPECT_FLOAT_EQ(complete(spec, 1, given).scale_log2, 2 * 1.44269504f);
}

// Fault: a product of batch, heads and splits, or a number of tiles, that wraps 32 bits becomes a small grid that leaves rows unwritten.
TEST(CheckParams, GridsAndTilesBeyond31BitsAreRefusedWithTheNumbers) {
  AttentionSpec spec;
  spec.q_heads = spec.kv_heads = 1024;
  pt_decode_params p = make_decode_params();
  p.batch = 16384;
  testing::expect_mentions(testing::error_text([&] { check_params(spec, LaunchPlan(256), p); }, ErrorCode::invalid_argument), {"256 splits", "4294967296 blocks", "2147483647"});
  p.max_len = 4194304;
  LaunchPlan even;
  even.num_ctas = 132;
  testing::expect_mentions(testing::error_text([&] { check_params(spec, even, p); }, ErrorCode::invalid_argument), {"max_len 4194304", "even share", "2147483647"});
}

}  // namespace
}  // namespace pagetune
