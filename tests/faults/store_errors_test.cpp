// Every system call of the store on its files fails once, and then from some call on for ever: the answers stay right, nothing that was stored is lost, and it is said.
#include <cerrno>
#include <set>
#include <tuple>

#include "../store_expect.hpp"
#include "../variable.hpp"
#include "answers.hpp"
#include "calls.hpp"

namespace pagetune {
namespace {

// What stands in the directory before: nothing; a store with a winner of another spec and a binary; that store with a damaged winners.db.
enum class Before { nothing, store, damage };

Store::Row stored_row() {
  AttentionSpec other;
  other.lse = true;
  return sample_row({5, 5}, other);
}

void prepare(const std::string& dir, Before before) {
  if (before == Before::nothing) return;
  put(*Store::open(dir), stored_row());
  Store::open(dir)->put_binary(sample_binary("stored"));
  if (before == Before::damage) write_file(dir + "/winners.db", "not a database at all\n");
}

// One run in which the nth call fails. False if there were not that many.
bool run_with(const Failure& failure, int nth, Before before) {
  SCOPED_TRACE(failure.call + " " + strerrorname_np(failure.code) + (failure.from_then_on ? " from " : " at ") + std::to_string(nth) + ", before " + std::to_string(static_cast<int>(before)));
  TempDir dir;
  const std::string cache = real_path(dir / "cache");
  prepare(cache, before);
  Herd herd;
  const pid_t pid = herd.start(with_failure(failure, nth, cache, dir / "mark", {STORE_HELPER, "answers", cache}), dir / "said");
  herd.go();
  EXPECT_EQ(wait_for(pid), 0);
  std::set<std::string> said;  // without the reasons: each may be said once
  for (const std::string& problem : lines_of(dir / "said")) {
    if (problem.find(" was damaged; ") != std::string::npos) continue;
    EXPECT_TRUE(said.insert(problem.substr(0, problem.find(": "))).second) << problem;
  }
  EXPECT_LE(said.size(), failure.from_then_on ? 5u : 1u) << ::testing::PrintToString(said);

  auto store = Store::open(cache);
  EXPECT_LE(store->problems().size(), before == Before::damage ? 1u : 0u) << ::testing::PrintToString(store->problems());
  if (before != Before::nothing) {
    EXPECT_TRUE(store->find_binary(sample_binary("stored").key)) << "a stored binary is lost";
  }
  const std::vector<Winner> kept = store->winners(stored_row().winner.env_key, stored_row().winner.spec_key);
  EXPECT_EQ(kept, before == Before::store ? std::vector<Winner>{stored_row().winner} : std::vector<Winner>{});
  if (said.empty()) {
    EXPECT_EQ(store->winners(sample_row().winner.env_key, sample_row().winner.spec_key).size(), 1u) << "a winner is lost, and nothing was said";
    EXPECT_TRUE(store->find_binary(sample_binary("new").key)) << "a binary is lost, and nothing was said";
  }
  EXPECT_EQ(wrong_answers(*store), "");
  return std::filesystem::exists(dir / "mark");
}

class StoreErrors : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

// Fault: an error of the system that ends the program, is taken for damage of a sound file, loses what was stored, or is said at every call or not at all.
TEST_P(StoreErrors, OfAnyCallLeaveTheAnswersRight_B151_B152) {
  const auto [call, code] = GetParam();
  for (const Before before : {Before::nothing, Before::store, Before::damage}) {
    if (before == Before::damage && code != EIO && call != std::string("rename")) continue;
    for (const bool from_then_on : {false, true}) {
      if (from_then_on && call == std::string("lock")) continue;  // locks that never come: StoreWaits
      for (int nth = 1; run_with({call, code, from_then_on}, nth, before);) ++nth;
    }
  }
}

// The same with winners as lines: after nothing, and after a store that kept them in a database.
TEST_P(StoreErrors, OfAnyCallLeaveTheAnswersOfLinesRight_B149_B152) {
  const auto [call, code] = GetParam();
  const Variable variable("PAGETUNE_WINNERS", "lines");
  for (const Before before : {Before::nothing, Before::store})
    for (const bool from_then_on : {false, true})
      if (!from_then_on || call != std::string("lock"))
        for (int nth = 1; run_with({call, code, from_then_on}, nth, before);) ++nth;
}

INSTANTIATE_TEST_SUITE_P(Calls, StoreErrors,
                         ::testing::Combine(::testing::Values("open", "read", "write", "sync", "truncate", "lock", "rename", "link", "unlink"), ::testing::Values(EIO, ENOSPC, ESTALE, EBUSY)),
                         [](const auto& test) { return std::string(std::get<0>(test.param)) + "_" + strerrorname_np(std::get<1>(test.param)); });

}  // namespace
}  // namespace pagetune
