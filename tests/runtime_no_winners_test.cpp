// What is said where no winner answers for a spec.
#include <gtest/gtest.h>

#include "codegen_testing.hpp"
#include "runtime/no_winners.hpp"
#include "store_samples.hpp"
#include "variable.hpp"

namespace pagetune {
namespace {

Environment device(const std::string& name, const std::string& arch, int processors) {
  Environment env = sample_environment();
  env.device = name;
  env.arch = arch;
  env.processors = processors;
  return env;
}
const Environment kOwn = device("NVIDIA GeForce RTX 3090", "sm_86", 82);
const Environment kH100 = device("NVIDIA H100 80GB HBM3", "sm_90a", 132);

// Faults: nothing is said; neither what was wanted, nor what there is, nor what to do; a device that is farther is called the nearest.
TEST(NoWinners, TheSentenceNamesWhatWasWantedTheNearestAndTheRemedy_B187) {
  const std::string none = no_winners_sentence(kOwn, {}, {}, 0);
  testing::expect_mentions(none, {"NVIDIA GeForce RTX 3090", canonical_json(AttentionSpec{}), "no device has winners", "pagetune tune", "analytic default"});
  EXPECT_EQ(none.find("other spec"), std::string::npos);
  EXPECT_EQ(none.find('\n'), std::string::npos);
  testing::expect_mentions(no_winners_sentence(kOwn, {}, {}, 3), {"3 other specs have winners here"});

  std::vector<Store::Row> rows{sample_row({1, 10}, {}, kH100), sample_row({2, 10}, {}, kH100)};
  testing::expect_mentions(no_winners_sentence(kOwn, {}, rows, 0), {"the nearest are 2 for NVIDIA H100 80GB HBM3 (sm_90a", "do not carry over"});
  // The same architecture before more winners; the same class before all.
  rows.push_back(sample_row({1, 10}, {}, device("NVIDIA RTX A6000", "sm_86", 84)));
  testing::expect_mentions(no_winners_sentence(kOwn, {}, rows, 0), {"the nearest are 1 for NVIDIA RTX A6000", "do not carry over"});
  Environment other_driver = kOwn;
  other_driver.driver = "12.8";
  rows.push_back(sample_row({1, 10}, {}, other_driver));
  testing::expect_mentions(no_winners_sentence(kOwn, {}, rows, 0), {"the nearest are 1 for NVIDIA GeForce RTX 3090", "blocked"});
}

// Faults: a line for each kernel of a model's layers; a second spec or device that is passed over; what cannot be silenced.
TEST(NoWinners, ItIsSaidOnceForEachSpecAndDevice_B187) {
  TempDir dir;
  const auto store = Store::open(dir.path());
  put(*store, sample_row({1, 10}, {}, kH100));
  AttentionSpec lse;
  lse.lse = true;
  const auto said = [&](const Environment& own, const AttentionSpec& spec) {
    ::testing::internal::CaptureStderr();
    say_no_winners(*store, own, spec);
    return ::testing::internal::GetCapturedStderr();
  };
  {
    const Variable quiet("PAGETUNE_QUIET", "1");
    EXPECT_EQ(said(kOwn, {}), "");
  }
  testing::expect_mentions(said(kOwn, {}), {"1 for NVIDIA H100"});
  EXPECT_EQ(said(kOwn, {}), "");
  testing::expect_mentions(said(kOwn, lse), {"no device has winners"});
  testing::expect_mentions(said(device("NVIDIA A100", "sm_80", 108), {}), {"NVIDIA A100"});
}

}  // namespace
}  // namespace pagetune
