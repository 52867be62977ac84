#include "decode_cases.hpp"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "tuner/worklist.hpp"

namespace pagetune::bench {
namespace {

using BatchLen = std::pair<int, int>;

const std::vector<HeadShape> kShapes = {{32, 8, 128}, {8, 1, 128}, {28, 4, 128}, {64, 8, 64}, {20, 4, 128}, {16, 16, 128}, {8, 4, 256}};
const std::vector<BatchLen> kBatchLen = {{1, 1024},  {1, 8192},  {1, 32768},  {1, 131072}, {8, 1024},   {8, 8192},
                                         {8, 32768}, {64, 1024}, {64, 4096}, {64, 8192},  {256, 1024}, {256, 2048}};
const std::vector<int> kPages = {16, 64, 128};

// Long contexts, where windows matter.
const std::vector<BatchLen> kLong = {{1, 8192}, {1, 32768}, {1, 131072}, {8, 8192}, {8, 32768}, {8, 131072}, {64, 8192}, {64, 32768}, {64, 131072}};
constexpr int kLongPage = 64;

template <class T>
std::vector<T> chosen_or(const std::vector<T>& chosen, const std::vector<T>& otherwise) {
  return chosen.empty() ? otherwise : chosen;
}

AttentionSpec spec_of(HeadShape shape, int page) {
  AttentionSpec spec;
  spec.q_heads = shape.q_heads;
  spec.kv_heads = shape.kv_heads;
  spec.head_dim_k = spec.head_dim_v = shape.head_dim;
  spec.page_size = page;
  return spec;
}

std::string text_of(const DecodeCell& cell) { return fmt::format("{}, batch {}, len {}{}", spec_text(cell.spec), cell.batch, cell.len, cell.ragged ? " ragged" : ""); }

Group alone(const std::string& name, const DecodeCell& cell) { return {text_of(cell), {cell}, {{name, cell, {0}, {call_shape(cell)}}}}; }

// Half of the KV heads, the first ones, see `window` tokens, the others all. Pages hold their heads one after the other, as FastDeploy's do, whose tables these are.
Group headwise_group(int batch, int len, int page, int window) {
  const HeadShape shape{20, 4, 128};
  AttentionSpec spec = spec_of(shape, page);
  spec.layout = Layout::hnd;
  DecodeCell mixed{.spec = spec, .batch = batch, .len = len};
  mixed.spec.headwise = mixed.spec.window = true;
  for (int h = 0; h < shape.kv_heads; ++h) mixed.features.windows.push_back(h < shape.kv_heads / 2 ? window : 0);
  DecodeCell everything = mixed;
  everything.all_pages = true;
  const DecodeCell uniform{.spec = spec, .batch = batch, .len = len};
  DecodeCell windowed = uniform;
  windowed.spec.window = true;
  windowed.features.windows.assign(static_cast<size_t>(shape.kv_heads), window);

  const CallShape call = call_shape(mixed);
  return {fmt::format("head-wise windows of {}: {}", window, text_of(mixed)),
          {uniform, everything, mixed, windowed},
          {{"head-wise", mixed, {2}, {call}},
           {"head-wise, recycling off", everything, {1}, {call}},
           {"one table without windows", uniform, {0}, {call}},
           {"two passes", mixed, {3, 0}, {call, call}}}};
}

}  // namespace

std::vector<Group> plain_cases(const Choice& choice, bool ragged) {
  std::vector<Group> groups;
  for (const HeadShape& shape : chosen_or(choice.shapes, kShapes))
    for (const int page : chosen_or(choice.pages, kPages))
      for (const auto& [batch, len] : chosen_or(choice.batch_len, kBatchLen))
        if (!ragged || batch > 1) groups.push_back(alone("", {.spec = spec_of(shape, page), .batch = batch, .len = len, .ragged = ragged}));
  return groups;
}

std::vector<Group> headwise_cases(const Choice& choice) {
  std::vector<Group> groups;
  for (const int page : chosen_or<int>(choice.pages, {kLongPage}))
    for (const auto& [batch, len] : chosen_or(choice.batch_len, kLong))
      for (const int window : {512, 4096}) {
        if (window < len) groups.push_back(headwise_group(batch, len, page, window));
        else fmt::print(stderr, "left out: head-wise windows of {} at length {}, which they do not cut\n", window, len);
      }
  return groups;
}

std::vector<Group> gpt_oss_cases(const Choice& choice) {
  constexpr int kWindow = 128;
  std::vector<Group> groups;
  for (const int page : chosen_or<int>(choice.pages, {kLongPage}))
    for (const auto& [batch, len] : chosen_or(choice.batch_len, kLong)) {
      DecodeCell full{.spec = spec_of({64, 8, 64}, page), .batch = batch, .len = len};
      full.spec.sinks = true;
      DecodeCell windowed = full;
      windowed.spec.window = true;
      windowed.features.windows.assign(static_cast<size_t>(windowed.spec.kv_heads), kWindow);
      groups.push_back(alone("gpt-oss, full layer", full));
      groups.push_back(alone("gpt-oss, windowed layer", windowed));
    }
  return groups;
}

std::vector<Group> long_graph_cases(const Choice& choice) {
  constexpr int kPrepared = 131072, kLength = 200;
  std::vector<int> batches;
  for (const auto& [batch, len] : chosen_or<BatchLen>(choice.batch_len, {{1, 0}, {8, 0}, {64, 0}}))
    if (std::find(batches.begin(), batches.end(), batch) == batches.end()) batches.push_back(batch);
  std::vector<Group> groups;
  for (const HeadShape& shape : chosen_or<HeadShape>(choice.shapes, {kShapes.front()}))
    for (const int page : chosen_or<int>(choice.pages, {kPages.front()}))
      for (const int batch : batches) {
        const DecodeCell captured{.spec = spec_of(shape, page), .batch = batch, .len = kLength};
        DecodeCell prepared = captured;
        prepared.prepared_len = kPrepared;
        groups.push_back({"graphs for 131072 and 200: " + text_of(captured),
                          {prepared, captured},
                          {{"graph for 131072", prepared, {0}, {call_shape(batch, kPrepared, 0)}},  // at its capture nobody knows the lengths
                           {"graph for 200", captured, {1}, {call_shape(batch, kLength, int64_t{batch} * kLength)}}}});
      }
  return groups;
}

int64_t cache_bytes(const DecodeCell& cell) {
  int64_t tokens = 0;
  for (const int len : lengths_of(cell)) tokens += (int64_t{len} + cell.spec.page_size - 1) / cell.spec.page_size * cell.spec.page_size;
  return kv_bytes(cell.spec, tokens);
}

}  // namespace pagetune::bench
