#include "tuner/verify.hpp"

#include <algorithm>

#include "tuner/visibility.hpp"

namespace pagetune {

struct Verifier::Case {
  Case(Device& device, ProblemShape shape) : host(std::move(shape)), expected(reference(host.spec(), host.params())), on_device(device, host) {}
  HostProblem host;
  Reference expected;
  DeviceProblem on_device;
};

namespace {

// Lengths on both sides of every window's, chunk's and page's edge, pages outside recycled, and query tokens from none to all.
ProblemShape edges_of_masks(const AttentionSpec& spec) {
  constexpr int kWindows[] = {17, 0, 64, 1, 128};
  ProblemShape shape{.spec = spec, .seed = 0x5EED3, .unseen = Unseen::recycled};
  for (const int edge : {17, 32, 64, 81, 128, 145}) shape.lens.insert(shape.lens.end(), {edge - 1, edge, edge + 1});
  shape.lens.insert(shape.lens.end(), {300, 0, 1, 257});
  if (spec.window)
    for (int h = 0; h < spec.kv_heads; ++h) shape.windows.push_back(kWindows[h % 5]);
  if (spec.chunk) shape.chunk = 64;
  if (spec.headwise)
    for (size_t b = 0; b < shape.lens.size(); ++b)
      for (int h = 0; h < spec.kv_heads; ++h) shape.head_lens.push_back(shape.lens[(b + static_cast<size_t>(h) * 5) % shape.lens.size()]);
  if (spec.headwise) shape.lens.clear();  // the longest of each sequence's heads
  if (spec.q_len > 1) {
    const int tokens[] = {spec.q_len, 1, spec.q_len - 1, 0, spec.q_len / 2 + 1};
    const size_t batch = spec.headwise ? shape.head_lens.size() / static_cast<size_t>(spec.kv_heads) : shape.lens.size();
    for (size_t b = 0; b < batch; ++b) shape.q_lens.push_back(tokens[b % 5]);
  }
  return shape;
}

}  // namespace

Verifier::Verifier(Device& device, const AttentionSpec& spec) {
  // Around every power of two that a tile, a warp's unit or a page can be, each side by one; a padding row at either end.
  std::vector<int> lens = {0, 1, 2};
  for (int edge : {8, 16, 32, 64, 128, 256}) lens.insert(lens.end(), {edge - 1, edge, edge + 1});
  constexpr int kPageLimit = 2048;  // larger pages are met in part; filling them would only cost time
  if (spec.page_size <= kPageLimit) lens.insert(lens.end(), {spec.page_size - 1, spec.page_size, spec.page_size + 1, 2 * spec.page_size + 3});
  lens.insert(lens.end(), {1531, 0});
  ProblemShape ragged{.spec = spec, .lens = std::move(lens), .seed = 0x5EED1};
  cases_.push_back(std::make_unique<Case>(device, std::move(ragged)));

  // Strides that no dense array has, and holes in the table; lengths of an even share that ends within a tile.
  ProblemShape holes{.spec = spec, .lens = {333, 5, 0, 700}, .placement = Placement::padded, .seed = 0x5EED2};
  holes.absent = spec.checked ? 0 : 0.25;
  holes.q_stride_token = int64_t{spec.q_heads + 2 * spec.kv_heads} * spec.head_dim_k;  // q as a slice of a fused QKV projection
  holes.out_stride_token = int64_t{spec.q_heads} * spec.head_dim_v + 64;
  cases_.push_back(std::make_unique<Case>(device, std::move(holes)));

  if (has_masks(spec) || spec.headwise || spec.q_len > 1) cases_.push_back(std::make_unique<Case>(device, edges_of_masks(spec)));
}

Verifier::~Verifier() = default;

Check Verifier::check(const Module& module, LaunchPlan plan) const {
  Check worst;
  for (const auto& problem : cases_) {
    problem->on_device.run(module, plan);
    Check check = problem->on_device.check(problem->expected);
    const Outputs first = problem->on_device.outputs();
    problem->on_device.run_again(module, plan);
    if (check.ok && !(problem->on_device.outputs() == first)) {
      check.ok = false;
      check.what = "a second run on the same input, in the workspace that the first left, gave other bits";
    }
    worst.error = std::max(worst.error, check.error);
    worst.max_abs = std::max(worst.max_abs, check.max_abs);
    worst.lse_max_abs = std::max(worst.lse_max_abs, check.lse_max_abs);
    if (worst.ok && !check.ok) {
      worst.ok = false;
      worst.what = check.what;
    }
  }
  return worst;
}

Check verify(Device& device, const Module& module, const AttentionSpec& spec, LaunchPlan plan) {
  return Verifier(device, spec).check(module, plan);
}

}  // namespace pagetune
