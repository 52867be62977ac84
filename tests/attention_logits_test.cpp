// What happens to a logit: sink logits, soft cap, ALiBi, and all of them beside masks.
#include <cmath>

#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

class Logits : public DeviceTest {
 protected:
  AttentionSpec spec_with(std::initializer_list<bool AttentionSpec::*> features, int q_heads = 4, int kv_heads = 2) {
    AttentionSpec spec = decode_spec(q_heads, kv_heads, 64, 16, DType::fp16);
    for (bool AttentionSpec::*feature : features) spec.*feature = true;
    return spec;
  }
};

TEST_F(Logits, EveryPlan) {
  const AttentionSpec spec = spec_with({&AttentionSpec::sinks, &AttentionSpec::soft_cap, &AttentionSpec::alibi}, 12, 2);
  require_supported(spec);
  expect_right_in_every_plan(device(), {.spec = spec, .lens = {0, 1, 16, 300, 1000}});
}

// Sinks never bound, taken for base 2, or counted once for every split.
TEST_F(Logits, SinksJoinTheDenominatorOnce_B115) {
  const AttentionSpec spec = spec_with({&AttentionSpec::sinks}, 3, 1);
  require_supported(spec);
  const float ln4 = std::log(4.0F);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {4}, .sinks = {0, ln4, 2}});
  const double expected[] = {1.2, 0.75, 0.5268};
  for (int h = 0; h < 3; ++h) EXPECT_NEAR(out_at(spec, outputs, 0, h, 0), expected[h], 2e-3);
  EXPECT_NEAR(outputs.lse[1], std::log(8.0), 1e-4);
  for (const int len : {1, 63, 64, 500, 2000}) expect_right(device(), {.spec = spec, .lens = {len, 0, len + 1}, .sinks = {0, ln4, 2}});
}

// One sink for each query head, not for each KV head.
TEST_F(Logits, SinksByQueryHead_B115) {
  const AttentionSpec spec = spec_with({&AttentionSpec::sinks}, 64, 8);
  require_supported(spec);
  ProblemShape shape{.spec = spec, .lens = {4, 100}};
  for (int h = 0; h < 64; ++h) shape.sinks.push_back(static_cast<float>(h) / 64);
  const Outputs outputs = expect_right_probe(device(), shape);
  for (int h = 0; h < 64; ++h) EXPECT_NEAR(out_at(spec, outputs, 0, h, 0), 6 / (4 + std::exp(h / 64.0)), 2e-3) << h;
}

// Rows without a key: 0, and the sink as LSE. A sink far above or below every logit.
TEST_F(Logits, SinksOfEmptyRowsAndExtremes_B115) {
  const AttentionSpec spec = spec_with({&AttentionSpec::sinks});
  require_supported(spec);
  const Outputs outputs = expect_right(device(), {.spec = spec, .lens = {0, 100, 700}, .sinks = {-5, 0, 80, -80}});
  for (int h = 0; h < 4; ++h) EXPECT_EQ(out_at(spec, outputs, 0, h, 0), 0);
  EXPECT_EQ(outputs.lse[0], -5);
  EXPECT_EQ(outputs.lse[2], 80);
  HostProblem absent({.spec = spec, .lens = {40}, .sinks = {-5, 0, 80, -80}});
  for (int slot = 0; slot < 3; ++slot) absent.table_entry(0, slot) = -1;
  EXPECT_EQ(expect_right(device(), absent).lse[3], -80);
}

// tanh as a quotient of exponentials: NaN beyond 88; the cap before the scale.
TEST_F(Logits, SoftCap_B116_B118) {
  const AttentionSpec spec = spec_with({&AttentionSpec::soft_cap}, 1, 1);
  require_supported(spec);
  const double scores[] = {1, 100, 1000, 3000, 5000, 10000, -1, -10000, 4400}, capped[] = {0.9999, 48.20, 50, 50, 50, 50, -0.9999, -50, 50};
  for (size_t i = 0; i < std::size(scores); ++i) {
    HostProblem problem({.spec = spec, .lens = {1}, .scale = 1, .soft_cap = 50});
    problem.fill_q([&](int, int, int dim) { return dim == 0 ? scores[i] / 16 : 0; });
    problem.fill_k([](int64_t, int, int, int dim) { return dim == 0 ? 16 : 0; });
    EXPECT_NEAR(expect_right(device(), problem).lse[0], capped[i], 5e-3) << scores[i];
  }
  HostProblem order({.spec = spec, .lens = {1}, .soft_cap = 50});
  order.fill_q([](int, int, int) { return 2.5; });
  order.fill_k([](int64_t, int, int, int) { return 2.5; });
  EXPECT_NEAR(expect_right(device(), order).lse[0], 38.0797, 2e-3);
  for (const float cap : {0.5F, 5.F, 30.F, 1000.F}) expect_right(device(), {.spec = spec, .lens = {1, 63, 0, 700}, .soft_cap = cap});
}

// Distances from the wrong end: invisible in the output, wrong by a constant in the LSE.
TEST_F(Logits, AlibiIsAnchoredAtTheQuery_B119) {
  const AttentionSpec spec = spec_with({&AttentionSpec::alibi}, 1, 1);
  require_supported(spec);
  const Outputs outputs = expect_right_probe(device(), {.spec = spec, .lens = {3}, .alibi_slopes = {0.5F}});
  EXPECT_NEAR(out_at(spec, outputs, 0, 0, 0), 1.32017, 2e-3);
  EXPECT_NEAR(outputs.lse[0], 0.68027, 1e-4);
}

TEST_F(Logits, AlibiByQueryHeadAndToken) {
  AttentionSpec spec = spec_with({&AttentionSpec::alibi}, 12, 4);
  spec.q_len = 3;
  require_supported(spec);
  expect_right(device(), {.spec = spec, .lens = {1, 2, 40, 0, 500, 2000}});
}

// Each feature beside all others.
TEST_F(Logits, EverythingAtOnce) {
  for (const MaskKind mask : {MaskKind::none, MaskKind::tree, MaskKind::offset}) {
    for (const int q_len : {1, 5}) {
      if (mask == MaskKind::tree && q_len == 1) continue;
      AttentionSpec spec = spec_with({&AttentionSpec::sinks, &AttentionSpec::soft_cap, &AttentionSpec::alibi, &AttentionSpec::window, &AttentionSpec::sink_tokens, &AttentionSpec::headwise}, 6, 3);
      spec.mask = mask;
      spec.q_len = q_len;
      require_supported(spec);
      for (uint64_t seed = 1; seed < 4; ++seed) expect_right(device(), {.spec = spec, .lens = {1, 16, 77, 0, 300, 129}, .seed = seed});
    }
  }
}

}  // namespace
}  // namespace pagetune::testing_support
