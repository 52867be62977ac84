// What bench_decode measures: problems, and the ways of doing each that are compared side by side.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "codegen/bucket.hpp"
#include "tuner/decode_bench.hpp"

namespace pagetune::bench {

struct HeadShape {
  int q_heads = 32, kv_heads = 8, head_dim = 128;
};

// The chosen part of the tables; an empty list means the one of the table at hand.
struct Choice {
  std::vector<HeadShape> shapes;
  std::vector<std::pair<int, int>> batch_len;
  std::vector<int> pages;
};

// A way of doing a problem, one line of the output.
struct Contender {
  std::string name;             // "case" of the line; empty for a plain cell
  DecodeCell cell;              // what the line says of the problem
  std::vector<size_t> passes;   // its launches, by index into the group's cells
  std::vector<CallShape> calls;  // of each pass: what its config is chosen for
};

// Measured interleaved. Large cells first: they share one pool of KV.
struct Group {
  std::string text;
  std::vector<DecodeCell> cells;
  std::vector<Contender> contenders;
};

// Seven head shapes x twelve (batch, length) x pages of 16, 64 and 128; ragged without the batches of one.
std::vector<Group> plain_cases(const Choice&, bool ragged);

// ERNIE-4.5's heads with half of the KV heads windowed at 512 or 4096: one launch over head-wise tables that list nothing outside the windows, the
// same over tables that list every page, one launch without windows, and two launches over half of the heads each.
std::vector<Group> headwise_cases(const Choice&);

// gpt-oss: layers with a window of 128 and full layers, both with learned sinks.
std::vector<Group> gpt_oss_cases(const Choice&);

// A graph prepared for 131,072 tokens, its config included, replayed at a length of 200, against one captured for 200.
std::vector<Group> long_graph_cases(const Choice&);

// Bytes of K and V in memory of one set of a cell's pages, an upper bound.
int64_t cache_bytes(const DecodeCell&);

}  // namespace pagetune::bench
