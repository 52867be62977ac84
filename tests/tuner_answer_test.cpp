// Why a source of configs answers or does not: on made-up rows, no device.
#include "tuner/answer.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/default_config.hpp"
#include "codegen/generate.hpp"
#include "codegen/space.hpp"
#include "codegen_testing.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

using testing::expect_mentions;

const AttentionSpec kSpec = testing::decode_spec(32, 8, 128);
const Target kTarget = Target::by_name("sm_90a");
const MeasurePolicy kPolicy;
const Bucket kBucket{3, 12};  // 8x4096

KernelConfig even_share() { return default_config(kSpec, kTarget, Bucket{6, 13}); }

// A row as this build would make it.
Winner current(Bucket bucket, const KernelConfig& config = even_share()) {
  Winner made;
  made.bucket = bucket;
  made.config = config;
  made.policy_hash = kPolicy.hash();
  made.generator_hash = generator_hash();
  made.space_hash = ConfigSpace::builtin().hash(ConfigSpace::builtin().family(Kind::decode, Backend::cuda));
  return made;
}

struct Measured {
  Winner winner;
  bool other_device = false;
  Measured(Winner w, bool elsewhere = false) : winner(std::move(w)), other_device(elsewhere) {}  // NOLINT(google-explicit-constructor): the device's own is the usual case
};

StoredRows stored(const std::vector<Measured>& all, const Blocklist& blocked = {}) {
  StoredRows made;
  made.blocked = blocked;
  made.env_key = "here";
  for (const Measured& one : all) {
    made.winners.emplace_back(one.winner, one.other_device);
    Store::Row row{one.winner, {}, kSpec};
    row.winner.env_key = one.other_device ? "elsewhere" : "here";
    made.rows.push_back(row);
  }
  return made;
}

std::vector<SourceAnswer> ask(const StoredRows& rows, const CallShape& call = kBucket, const AttentionSpec& spec = kSpec) {
  auto answers = answers_of(spec, kTarget, kPolicy, rows, call);
  EXPECT_EQ(answers.size(), 4U);
  return answers;
}

// Fault: explain names another source than the launch takes, or none, or two.
TEST(Answers, ExactlyTheSourceThatDispatchSelectsAnswers) {
  Random random(17);
  const auto configs = ConfigSpace::builtin().candidates(kSpec, kTarget).configs;
  int by_source[4] = {};
  for (int round = 0; round < 40; ++round) {
    std::vector<Measured> given;
    for (int i = random.below(9); i > 0; --i) {
      const Bucket bucket{random.below(9), Bucket::kMinLenLog2 + random.below(9)};
      if (std::none_of(given.begin(), given.end(), [&](const Measured& one) { return one.winner.bucket == bucket; }))
        given.emplace_back(current(bucket, configs[static_cast<size_t>(random.below(static_cast<int>(configs.size())))]), random.below(3) == 0);
    }
    if (!given.empty() && round % 3 == 0) given.front().winner.config.set("NUM_WARPS", 5);
    const StoredRows rows = stored(given);
    const DispatchTable table(kSpec, kTarget, rows.winners);
    for (int i = 0; i < 8; ++i) {
      const bool known = !rows.winners.empty() && i % 2 == 0;
      const Bucket bucket = known ? rows.winners[static_cast<size_t>(random.below(static_cast<int>(rows.winners.size())))].winner.bucket : Bucket{random.below(9), Bucket::kMinLenLog2 + random.below(9)};
      const CallShape call(bucket, random.below(2) == 0);
      for (const SourceAnswer& answer : ask(rows, call)) {
        EXPECT_EQ(answer.answers, answer.source == table.at(call).source) << answer.why;
        EXPECT_EQ(answer.why.rfind(answer.answers ? "yes: " : "no: ", 0), 0U) << answer.why;
        if (!answer.answers || answer.source == Source::analytic_default) continue;
        ASSERT_TRUE(answer.winner);
        EXPECT_EQ(answer.winner->config, table.configs()[table.at(call).index]) << "another row than the one that answers";
      }
      ++by_source[static_cast<size_t>(table.at(call).source)];
    }
  }
  for (const int count : by_source) EXPECT_GT(count, 20);
}

// Faults: the reason of another case; a source without one.
TEST(Answers, EachSourceSaysWhyItDoesNotAnswer) {
  auto none = ask(stored({}));
  expect_mentions(none[0].why, {"no layer has a winner of bucket 8x4096"});
  expect_mentions(none[1].why, {"no layer has a winner of this kernel on this device"});
  expect_mentions(none[2].why, {"on another device of its class"});
  expect_mentions(none[3].why, {"yes"});

  const Measured relative(current({3, 13}), true);
  auto other = ask(stored({relative, current({12, 18})}));
  expect_mentions(other[1].why, {"none of the 1 winners"});
  expect_mentions(other[2].why, {"yes: 8x8192 is the nearest of 1 winners of other devices of this class"});
  expect_mentions(ask(stored({relative, current(kBucket)}))[2].why, {"no: this device has a winner in reach"});

  auto own = ask(stored({current(kBucket), current({4, 12})}));
  expect_mentions(own[0].why, {"yes", "measured for this bucket"});
  expect_mentions(own[1].why, {"winner of its own"});
  EXPECT_FALSE(own[1].winner);

  auto near = ask(stored({current({3, 13}), current({5, 12}), current({9, 12})}));
  expect_mentions(near[1].why, {"yes: 8x8192 is the nearest of 3 winners", "also in reach", "32x4096"});
  EXPECT_EQ(near[1].why.find("512x4096"), std::string::npos) << "six octaves away";

  auto far = ask(stored({current({8, 12}), current({12, 12})}));
  expect_mentions(far[1].why, {"none of the 2 winners", "2 octaves", "the closest is 256x4096"});

  Winner broken = current(kBucket);
  broken.config.set("NUM_WARPS", 5);
  auto refused = ask(stored({broken, current({3, 13})}));
  expect_mentions(refused[0].why, {"not supported here", "NUM_WARPS"});
  expect_mentions(refused[1].why, {"yes: 8x8192"});
  expect_mentions(ask(stored({broken}))[1].why, {"of the 1 winners", "not supported here"});

  const KernelConfig fixed = default_config(kSpec, kTarget, Bucket{0, 10});
  ASSERT_FALSE(fixed.even_share());
  expect_mentions(ask(stored({current(kBucket, fixed)}), {kBucket, false})[0].why, {"8x4096", "sequences of one length", "--total-len"});
  expect_mentions(ask(stored({current({3, 13}, fixed)}), {kBucket, false})[1].why, {"8x8192", "sequences of one length"});
  EXPECT_TRUE(ask(stored({current(kBucket, fixed)}), {kBucket, true})[0].answers);

  AttentionSpec invariant = kSpec;
  invariant.batch_invariant = true;
  auto one = ask(stored({current(kBucket)}), kBucket, invariant);
  for (int source : {0, 1, 2}) expect_mentions(one[static_cast<size_t>(source)].why, {"batch-invariant"});
}

// Fault: a row that counts although something has changed since is not told from a current one, or what changed is another thing than said.
TEST(Answers, RowsThatAreNotCurrentSayWhatChanged) {
  EXPECT_TRUE(ask(stored({current(kBucket)}))[0].remarks.empty());
  const std::pair<std::string Winner::*, const char*> fields[] = {{&Winner::policy_hash, "another measuring policy"}, {&Winner::space_hash, "another config space"}, {&Winner::generator_hash, "another kernel generator"}};
  for (const auto& [field, what] : fields) {
    Winner old = current(kBucket);
    old.*field = "0";
    const auto remarks = ask(stored({old}))[0].remarks;
    ASSERT_EQ(remarks.size(), 1U) << what;
    expect_mentions(remarks[0], {"8x4096 is not current", what, "pagetune tune"});
    EXPECT_EQ(remarks[0].find(','), std::string::npos) << "more than one thing: " << remarks[0];
  }
  Winner old = current({3, 13});
  old.policy_hash = old.space_hash = "0";
  expect_mentions(ask(stored({old}))[1].remarks.at(0), {"8x8192", "another measuring policy, another config space"});
}

// Fault: explain says that a winner answers which dispatch left out as blocked, or not why it does not.
TEST(Answers, ABlockedWinnerDoesNotAnswerAndSaysWhy) {
  const auto with = [](const KernelConfig& config, const std::string& reason, const CallShape& call = kBucket) { return ask(stored({current(kBucket)}, Blocklist({{config, reason}})), call); };
  const std::string reason = Blocklist::text("wrong result: half of the output is missing");
  const auto own = with(even_share(), reason);
  EXPECT_FALSE(own[0].answers);
  EXPECT_TRUE(own[3].answers);
  expect_mentions(own[0].why, {"no: blocked since it was measured", "half of the output is missing"});
  const auto near = with(even_share(), reason, Bucket{3, 13});
  EXPECT_FALSE(near[1].answers);
  expect_mentions(near[1].why, {"blocked"});
  EXPECT_TRUE(with(even_share(), "wrong result (generator 000000000000)")[0].answers) << "another build's kernel";
  EXPECT_TRUE(with(default_config(kSpec, kTarget, Bucket{0, 10}), reason)[0].answers) << "another kernel";
}

}  // namespace
}  // namespace pagetune
