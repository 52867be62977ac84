// Windows, chunks and head-wise tables: inputs cut down from faults that users reported in public, and the rules that such layers need.
#include <cmath>

#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

// fp16: positions up to 2048 are exact.
AttentionSpec windowed(int q_heads, int kv_heads, int head_dim, int page_size, int q_len = 1) {
  AttentionSpec spec = decode_spec(q_heads, kv_heads, head_dim, page_size, DType::fp16);
  spec.window = true;
  spec.q_len = q_len;
  return spec;
}

AttentionSpec chunked(int page_size, int q_len = 1) {
  AttentionSpec spec = decode_spec(4, 2, 64, page_size, DType::fp16);
  spec.chunk = true;
  spec.q_len = q_len;
  return spec;
}

AttentionSpec headwise(AddressMap map, int q_heads, int kv_heads, int head_dim, int page_size) {
  AttentionSpec spec = decode_spec(q_heads, kv_heads, head_dim, page_size, DType::fp16);
  spec.headwise = true;
  spec.address_map = map;
  return spec;
}

class Windows : public DeviceTest {
 protected:
  // Every row i of every sequence and head sees the last W tokens up to its position.
  void expect_last(const AttentionSpec& spec, const Outputs& outputs, const std::vector<int>& lens, int window) {
    for (size_t b = 0; b < lens.size(); ++b) {
      for (int i = 0; i < spec.q_len; ++i) {
        const int position = lens[b] - spec.q_len + i, count = std::min(window, position + 1);
        for (int h = 0; h < spec.q_heads; ++h) expect_seen(spec, outputs, static_cast<int>(b) * spec.q_len + i, h, position - (count - 1) / 2.0, count);
      }
    }
  }
};

TEST_F(Windows, EveryPlan) {
  AttentionSpec spec = windowed(8, 4, 64, 16);
  spec.sink_tokens = spec.headwise = true;
  require_supported(spec);
  expect_right_in_every_plan(device(), {.spec = spec, .lens = {0, 1, 300, 1000, 17}, .windows = {0, 1, 100, 700}, .sink_tokens = 5});
}

// ---- window

// Freed pages outside the window hold NaN: V multiplied by 0, or an absent entry read as a page.
TEST_F(Windows, FreedPagesOutsideAreNeverRead_B28) {
  const AttentionSpec spec = windowed(8, 1, 64, 16);
  require_supported(spec);
  for (const Unseen unseen : {Unseen::recycled, Unseen::kept, Unseen::mixed}) {
    expect_last(spec, expect_right_probe(device(), {.spec = spec, .lens = {300}, .unseen = unseen, .windows = {128}}), {300}, 128);
  }
}

// A count of tokens taken for a distance, or the reverse.
TEST_F(Windows, OneTokenTooManyOrTooFew_B83) {
  const AttentionSpec spec = windowed(2, 1, 64, 4);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {9}, .windows = {4}});
  expect_seen(spec, outputs, 0, 1, 6.5, 4);
  for (const int window : {1, 2, 8, 9, 10, 1 << 30}) expect_last(spec, expect_right_probe(device(), {.spec = spec, .lens = {9, 1, 8, 100}, .windows = {window}}), {9, 1, 8, 100}, window);
}

// One of 32 heads and 8 rows wrong, with more than a window of context.
TEST_F(Windows, EightQueryTokensBeyondTheWindow_B86) {
  for (const int q_len : {1, 2, 4, 8}) {
    AttentionSpec spec = decode_spec(32, 16, 256, 16);
    spec.window = true;
    spec.q_len = q_len;
    require_supported(spec);
    expect_right(device(), {.spec = spec, .lens = sampled<int>({1030, 1047, 1063, 1100}), .scale = 1, .windows = std::vector<int>(16, 1024)});
  }
}

// Partitions counted from the longest sequence: a shorter one that is not aligned needs one more.
TEST_F(Windows, UnalignedShorterSequence_B88) {
  const AttentionSpec spec = windowed(4, 2, 64, 16);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {64, 49}, .windows = {32, 32}});
  expect_seen(spec, outputs, 0, 0, 47.5, 32);
  expect_seen(spec, outputs, 1, 3, 32.5, 32);
}

// Partitions sized by the window but indexed by position, and splits that lie outside it altogether.
TEST_F(Windows, WholeSplitsOutside_B89_B95) {
  const AttentionSpec spec = windowed(4, 1, 64, 16);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {1000, 1024}, .windows = {128}});
  expect_seen(spec, outputs, 0, 0, 935.5, 128);
  expect_seen(spec, outputs, 1, 0, 959.5, 128);
}

// The row of a packed group taken for a position.
TEST_F(Windows, PackedGroupRowsAreNotPositions_B91_B92) {
  const AttentionSpec twelve = windowed(24, 2, 64, 16, 4), eight = windowed(64, 8, 64, 16, 5);
  require_supported(twelve);
  expect_last(twelve, expect_right_probe(device(), {.spec = twelve, .lens = {200}, .windows = {64, 64}}), {200}, 64);
  expect_last(eight, expect_right_probe(device(), {.spec = eight, .lens = {300}, .windows = std::vector<int>(8, 128)}), {300}, 128);
}

// Which heads are windowed inferred from a ratio or from their place.
TEST_F(Windows, AnyHeadMayHaveAnyWindow) {
  const AttentionSpec spec = windowed(16, 8, 64, 16);
  require_supported(spec);
  const std::vector<int> windows = {0, 1, 300, 16, 0, 17, 5, 1000};
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {500}, .windows = windows});
  for (int h = 0; h < 16; ++h) {
    const int window = windows[static_cast<size_t>(h / 2)], count = window == 0 ? 500 : std::min(window, 500);
    expect_seen(spec, outputs, 0, h, 499 - (count - 1) / 2.0, count);
  }
}

TEST_F(Windows, SinkTokensStayVisible) {
  AttentionSpec spec = windowed(4, 2, 64, 16);
  spec.sink_tokens = true;
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {400, 10}, .windows = {16, 0}, .sink_tokens = 4});
  expect_seen(spec, outputs, 0, 0, (6 + (384 + 399) * 8) / 20.0, 20);
  expect_seen(spec, outputs, 0, 3, 199.5, 400);
  expect_seen(spec, outputs, 1, 0, 4.5, 10);
  for (const int sinks : {1, 15, 16, 17, 100}) expect_right(device(), {.spec = spec, .lens = {400, 10, 33, 116, 117}, .windows = {16, 70}, .sink_tokens = sinks});
}

// Every edge of window, page and tile against one another.
TEST_F(Windows, LengthsAroundEveryEdge) {
  for (const int page : {1, 7, 16, 64}) {
    const AttentionSpec spec = windowed(4, 4, 64, page);
    require_supported(spec);
    std::vector<int> lens = {0};
    for (const int edge : {16, 32, 33, 64, 128, 200}) lens.insert(lens.end(), {edge - 1, edge, edge + 1});
    for (const int window : sampled<int>({1, 15, 16, 17, 31, 33, 64, 127, 200})) expect_right(device(), {.spec = spec, .lens = lens, .windows = {window, 0, window + 1, 1}});
  }
}

// ---- local chunks

// Pages of a chunk past the row, with a chunk that does not divide the longest length.
TEST_F(Windows, LastChunkIsPartial_B37) {
  const AttentionSpec spec = chunked(4);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {16, 17, 18}, .table_width = 5, .chunk = 8});
  expect_seen(spec, outputs, 0, 0, 11.5, 8);
  expect_seen(spec, outputs, 1, 0, 16, 1);
  expect_seen(spec, outputs, 2, 0, 16.5, 2);
}

TEST_F(Windows, ChunkLongerThanTheTable_B94) {
  const AttentionSpec spec = chunked(16);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {2048, 100}, .table_width = 128, .chunk = 8192});
  expect_seen(spec, outputs, 0, 0, 1023.5, 2048);
  expect_seen(spec, outputs, 1, 0, 49.5, 100);
}

// Query tokens on both sides of a chunk's edge.
TEST_F(Windows, QueryTokensAcrossTwoChunks) {
  const AttentionSpec spec = chunked(16, 6);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {67, 64, 3}, .chunk = 32});
  for (int i = 0; i < 6; ++i) {
    const int position = 61 + i, first = position / 32 * 32;
    expect_seen(spec, outputs, i, 0, (first + position) / 2.0, position - first + 1);
  }
}

// ---- head-wise tables

TEST_F(Windows, EachHeadHasPagesAndLengthOfItsOwn_B40) {
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    const AttentionSpec spec = headwise(map, 4, 2, 64, 16);
    require_supported(spec);
    HostProblem problem({.spec = spec, .head_lens = {5, 33, 0, 16}});
    fill_mean_probe(problem);
    problem.fill_v([](int64_t, int page, int head, int dim) { return dim < 32 ? (page == dim ? 1 : 0) : head; });
    const Outputs outputs = expect_right(device(), problem);
    for (int h = 0; h < 2; ++h) {
      EXPECT_EQ(outputs.lse[4 + static_cast<size_t>(h)], -INFINITY);
      EXPECT_EQ(out_at(spec, outputs, 1, h, 63), 0);
      EXPECT_NEAR(out_at(spec, outputs, 0, 2 + h, problem.table_entry(0, 1, 0)), 16 / 33.0, 1e-3);
      EXPECT_NEAR(out_at(spec, outputs, 0, 2 + h, 40), 1, 1e-3);
    }
  }
}

// A windowed head's pages are recycled while a full head keeps its own.
TEST_F(Windows, RecycledPagesOfWindowedHeads_B41) {
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    AttentionSpec spec = headwise(map, 2, 2, 64, 16);
    spec.window = true;
    require_supported(spec);
    const ProblemShape shape{.spec = spec, .lens = {64}, .unseen = Unseen::recycled, .windows = {0, 16}};
    HostProblem problem(shape);
    for (int slot = 0; slot < 3; ++slot) ASSERT_EQ(problem.table_entry(0, 1, slot), -1);
    const Outputs outputs = expect_right_probe(device(), shape);
    expect_seen(spec, outputs, 0, 0, 31.5, 64);
    expect_seen(spec, outputs, 0, 1, 55.5, 16);
  }
}

// Ids of a slot table are valid up to the pages, of a flat one up to pages times heads.
TEST_F(Windows, HeadwiseInEveryPlacementAndLayout) {
  for (const AddressMap map : {AddressMap::slot, AddressMap::flat}) {
    for (const Layout layout : {Layout::nhd, Layout::hnd}) {
      for (const int page : {1, 7, 64}) {
        AttentionSpec spec = headwise(map, 6, 3, 72, page);
        spec.layout = layout;
        require_supported(spec);
        for (const Placement placement : sampled<Placement>({Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced})) {
          expect_right(device(), {.spec = spec, .placement = placement, .absent = 0.2, .head_lens = {1, 100, 64, 0, 65, 63, 300, 0, 7}});
        }
      }
    }
  }
}

}  // namespace
}  // namespace pagetune::testing_support
