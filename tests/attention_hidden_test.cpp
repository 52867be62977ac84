// A key that one query row sees may be hidden from another: whatever it holds, it must not reach that one.
#include <cmath>
#include <limits>

#include "attention_support.hpp"

namespace pagetune::testing_support {
namespace {

class Hidden : public DeviceTest {
 protected:
  Outputs run(const HostProblem& problem, const NamedPlan& plan) {
    DeviceProblem on_device(device(), problem);
    on_device.run(*module_of(device(), problem.spec(), plan), plan.plan);
    return on_device.outputs();
  }

  // The last key's K and V are `value`; all rows but the last must not notice.
  void expect_unnoticed(const AttentionSpec& spec, const std::vector<int>& lens, double value) {
    const ProblemShape shape{.spec = spec, .lens = lens};
    HostProblem tame(shape), wild(shape);
    const auto fill = [&](HostProblem& problem, double last) {
      const auto at_end = [&](int64_t position) { return position == lens.front() - 1; };
      problem.fill_k([&](int64_t position, int, int head, int dim) { return at_end(position) ? last : hashed(position, head, dim); });
      problem.fill_v([&](int64_t position, int, int head, int dim) { return at_end(position) ? last : hashed(position, head, dim, 1); });
    };
    fill(tame, 0.5);
    fill(wild, value);
    for (const NamedPlan& plan : plans_of(device(), spec, Plans::all)) {
      const Outputs expected = run(tame, plan), actual = run(wild, plan);
      for (int row = 0; row + 1 < spec.q_len; ++row)
        for (int head = 0; head < spec.q_heads; ++head) {
          const auto at = static_cast<size_t>(row) * static_cast<size_t>(spec.q_heads) + static_cast<size_t>(head);
          ASSERT_EQ(actual.lse.at(at), expected.lse.at(at)) << plan.name << ", row " << row << ", head " << head;
          for (int d = 0; d < spec.head_dim_v; ++d)
            ASSERT_EQ(out_at(spec, actual, row, head, d), out_at(spec, expected, row, head, d)) << plan.name << ", row " << row << ", head " << head << ", dim " << d << ", value " << value;
        }
      // The last row does see it.
      EXPECT_FALSE(std::isfinite(out_at(spec, actual, spec.q_len - 1, 0, 0))) << plan.name;
    }
  }
};

// Fault: masked weights are 0 and multiply what V holds; 0 * NaN and 0 * Inf are NaN.
TEST_F(Hidden, LaterTokensOfTheStepDoNotReachEarlierOnes) {
  struct Case {
    int head_dim, group, q_len;
  };
  for (const auto& [head_dim, group, q_len] : {Case{64, 3, 3}, Case{72, 3, 3}, Case{128, 9, 5}}) {
    AttentionSpec spec = decode_spec(2 * group, 2, head_dim, 16);
    spec.q_len = q_len;
    build_all(device(), {spec}, Plans::all);
    for (const double value : {static_cast<double>(std::numeric_limits<float>::quiet_NaN()), static_cast<double>(std::numeric_limits<float>::infinity())})
      expect_unnoticed(spec, {77}, value);
  }
}

}  // namespace
}  // namespace pagetune::testing_support
