// Every shape that the specs allow, against the oracle on poisoned memory: head dims, groups, pages, layouts, placements, lengths.
#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

constexpr Placement kPlacements[] = {Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced};

// Around the edges of a page and of every tile that a kernel may use; padding rows at both ends.
std::vector<int> edge_lens(int page) {
  std::vector<int> lens = {0, 1, 15, 16, 17, 63, 64, 65, 129, 300};
  if (page > 1) lens.insert(lens.end(), {page - 1, page, page + 1});
  lens.push_back(0);
  return lens;
}

class Shapes : public DeviceTest {};

TEST_F(Shapes, EveryPlan) {
  for (const int dim : {128, 136}) expect_right_in_every_plan(device(), {.spec = decode_spec(14, 2, dim, 16), .lens = edge_lens(16), .placement = Placement::padded});
}

// Faults: vector widths or MMA steps that do not divide a head dim; lanes beyond it read or written; 8 dims handled as 0 vectors.
TEST_F(Shapes, EveryHeadDim) {
  for (const DType type : dtypes()) {
    std::vector<AttentionSpec> specs;
    for (int dim = 8; dim <= 256; dim += 8) {
      specs.push_back(decode_spec(8, 2, dim, 16, type));
      specs.back().layout = dim % 16 == 0 ? Layout::nhd : Layout::hnd;
    }
    specs = sampled(specs);
    build_all(device(), specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      expect_right(device(), {.spec = specs[i], .lens = edge_lens(16), .placement = kPlacements[i % 4], .seed = i + 1});
    }
  }
}

// Faults: a list of group sizes with holes (5, 7, 11 …); heads beyond the group computed or stored; groups over one MMA tile.
TEST_F(Shapes, EveryGroupSize) {
  std::vector<int> groups = {24, 71};
  for (int g = 1; g <= 16; ++g) groups.push_back(g);
  std::vector<AttentionSpec> specs;
  for (const int g : groups) {
    specs.push_back(decode_spec(3 * g, 3, 64, 16));
    specs.push_back(decode_spec(2 * g, 2, 192, 16, DType::fp16));
  }
  specs = sampled(specs);
  build_all(device(), specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    expect_right(device(), {.spec = specs[i], .lens = {0, 1, 16, 33, 200}, .placement = kPlacements[i % 4], .seed = i + 1});
  }
}

// Faults of kernels for many query rows: rows of one token written for another, rows beyond the last read or written, boxes of 8, 16 and 32 tokens taken for one another
// in the tensor cores' descriptors, panels of 64 dims swapped, a team that reads a stage of the other's. Rows: 33, 64, 65 and 130 to a KV head, by heads and by drafted tokens.
TEST_F(Shapes, ManyRowsToAKvHead) {
  std::vector<AttentionSpec> specs;
  const auto add = [&](int group, int q_len, int dim_k, int dim_v, int page, DType dtype) {
    specs.push_back(decode_spec(2 * group, 2, dim_k, page, dtype));
    specs.back().head_dim_v = dim_v;
    specs.back().q_len = q_len;
  };
  add(33, 1, 128, 128, 16, DType::bf16);
  add(64, 1, 64, 64, 8, DType::bf16);
  add(65, 1, 128, 64, 32, DType::fp16);
  add(130, 1, 64, 128, 64, DType::bf16);
  add(4, 16, 128, 128, 16, DType::fp16);
  add(5, 13, 192, 128, 16, DType::bf16);
  add(9, 4, 256, 64, 128, DType::bf16);
  specs = sampled(specs);
  build_all(device(), specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    expect_right(device(), {.spec = specs[i], .lens = {0, 1, 17, 33, 200, 1000}, .placement = specs[i].head_dim_k == specs[i].head_dim_v ? kPlacements[i % 4] : Placement::padded, .seed = i + 1});
  }
}

// Faults: pages that are no power of two, smaller than a tile or much larger than one; layouts mixed up; strides assumed dense.
TEST_F(Shapes, EveryPageSizeLayoutAndPlacement) {
  std::vector<AttentionSpec> specs;
  for (const int page : {1, 7, 16, 64, 528}) {
    for (const Layout layout : {Layout::nhd, Layout::hnd}) {
      specs.push_back(decode_spec(6, 3, 64, page));
      specs.back().layout = layout;
    }
  }
  build_all(device(), specs);
  for (const AttentionSpec& spec : specs) {
    for (const Placement placement : sampled<Placement>({std::begin(kPlacements), std::end(kPlacements)})) expect_right(device(), {.spec = spec, .lens = edge_lens(spec.page_size), .placement = placement});
  }
}

// Fault: shape and strides that look alike (8 heads, pages of 8 tokens) are told apart by their sizes and not by the layout's name.
TEST_F(Shapes, AsManyHeadsAsTokensInAPage) {
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    AttentionSpec spec = decode_spec(16, 8, 64, 8);
    spec.layout = layout;
    expect_right(device(), {.spec = spec, .lens = {1, 7, 8, 9, 100}});
  }
}

// Faults: strides of q and out taken for dense; a vector store that runs into the gap between two rows.
TEST_F(Shapes, QueryFromAFusedProjectionAndStridedOutput) {
  const std::vector<AttentionSpec> specs = {decode_spec(6, 2, 64, 16), decode_spec(6, 2, 72, 16), decode_spec(6, 2, 256, 16)};
  build_all(device(), specs);
  for (const AttentionSpec& spec : specs) {
    const int dim = spec.head_dim_k;
    ProblemShape shape{.spec = spec, .lens = {17, 0, 5, 100}};
    shape.q_stride_seq = int64_t{6 + 2 * 2} * dim;
    shape.out_stride_seq = int64_t{6} * dim + 40;
    expect_right(device(), shape);
  }
}

// Fault: the runtime scale is ignored, or applied on top of the default.
TEST_F(Shapes, RuntimeScale) {
  for (const float scale : {0.5F, 1.0F, -0.25F}) expect_right(device(), {.spec = decode_spec(4, 2, 64, 16), .lens = {1, 50, 200}, .scale = scale});
}

// Fault: without LSE a kernel still writes one, or leaves out the output with it.
TEST_F(Shapes, WithoutLse) {
  AttentionSpec spec = decode_spec(4, 2, 80, 16);
  spec.lse = false;
  expect_right(device(), {.spec = spec, .lens = {0, 1, 50, 200}});
}

// Fault: position computed from the page before it: one page that many rows list, each up to another length.
TEST_F(Shapes, SharedPrefixPages) {
  const AttentionSpec spec = decode_spec(8, 2, 128, 16);
  ProblemShape shape{.spec = spec, .lens = {33, 40, 48, 100, 16}, .shared_pages = 2};
  const auto fill = [](HostProblem& problem) {
    problem.fill_k([](int64_t position, int, int head, int dim) { return hashed(position, head, dim); });
    problem.fill_v([](int64_t position, int, int head, int dim) { return hashed(position, head, dim, 1); });
  };
  HostProblem shared(shape);
  fill(shared);
  shape.shared_pages = 0;
  HostProblem copies(shape);
  fill(copies);
  expect_right(device(), shared);
  for (const int splits : split_counts()) EXPECT_TRUE(outputs_of(device(), shared, 2, splits) == outputs_of(device(), copies, 2, splits)) << splits;
}

// Fault: accumulation order or unwritten memory makes two runs differ.
TEST_F(Shapes, RepeatedRunsGiveTheSameBits) {
  const AttentionSpec spec = decode_spec(14, 2, 120, 16);
  const HostProblem problem({.spec = spec, .lens = {1000, 1, 333, 0, 64}});
  DeviceProblem on_device(device(), problem);
  for (const int splits : split_counts()) {
    on_device.run(*module_of(device(), spec, 2), splits);
    const Outputs first = on_device.outputs();
    for (int i = 0; i < 4; ++i) {
      on_device.run(*module_of(device(), spec, 2), splits);
      EXPECT_TRUE(on_device.outputs() == first) << splits << " splits";
    }
  }
}

// Faults: 0 * NaN; tiles loaded beyond the length; a mask that adds -inf to NaN.
TEST_F(Shapes, NaNWhereNothingMayBeReadGivesTheBitsOfZeros) {
  for (const int page : {4, 16, 64, 7}) {
    for (const int dim : {64, 72}) {
      ProblemShape shape{.spec = decode_spec(8, 2, dim, page), .lens = {32, 64, 96, 48, 13, 9, 12, 1, 0}, .placement = Placement::padded};
      const HostProblem poisoned(shape);
      shape.poison = false;
      const HostProblem zeros(shape);
      EXPECT_TRUE(outputs_of(device(), poisoned, 1, 1) == outputs_of(device(), zeros, 1, 1)) << "V1, page " << page << ", head dim " << dim;
      for (const int splits : split_counts()) {
        EXPECT_TRUE(outputs_of(device(), poisoned, 2, splits) == outputs_of(device(), zeros, 2, splits)) << splits << " splits, page " << page << ", head dim " << dim;
      }
    }
  }
}

// Faults: an absent page shifts positions, is read as page 0, or makes a whole split NaN.
TEST_F(Shapes, AbsentPagesAreMasked) {
  for (const int page : {1, 7, 16, 64}) {
    for (const double absent : {0.3, 0.9}) {
      for (const uint64_t seed : {1, 2, 3}) {
        expect_right(device(), {.spec = decode_spec(6, 2, 64, page), .lens = {1, 20, 64, 100, 500}, .absent = absent, .seed = seed});
      }
    }
  }
}

// Fault: in an unchecked build an id beyond the cache is turned into a pointer.
TEST_F(Shapes, ImpossiblePageIdsAreMasked) {
  HostProblem problem({.spec = decode_spec(4, 2, 64, 16), .lens = {100, 40}});
  problem.table_entry(0, 1) = problem.params().num_pages;
  problem.table_entry(0, 3) = 0x7FFFFFFF;
  problem.table_entry(1, 2) = -0x7FFFFFFF;
  expect_right(device(), problem);
}

// Fault: a length beyond the table's row reads the neighbour's entries.
TEST_F(Shapes, LengthsAreClampedToTheTableRow) {
  expect_right(device(), {.spec = decode_spec(4, 2, 64, 16), .lens = {33, 1000, 32, 31}, .table_width = 2});
}

}  // namespace
}  // namespace pagetune::testing_support
