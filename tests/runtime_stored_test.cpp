// What kernels do with the winners and blocks of their store, and the counts that they leave in it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cache_db/blocklist.hpp"
#include "codegen/default_config.hpp"
#include "codegen_testing.hpp"
#include "runtime/launch.hpp"
#include "runtime_binaries.hpp"
#include "runtime_kernel_support.hpp"
#include "tuner/numeric.hpp"

namespace pagetune::testing_support {
namespace {

using testing::error_text;
using testing::expect_mentions;

// Winners with many splits in some cells, for launches that dispatch sends there.
Store::Row many_splits(Device& device, const AttentionSpec& spec, Bucket bucket, int splits) {
  Store::Row row = sample_row(bucket, spec, device.environment());
  row.winner.config = default_shape(spec, device.target());
  row.winner.config.set("VARIANT", splits == 1 ? 1 : 2);
  row.winner.config.set("NUM_SPLITS", splits);
  return row;
}

// Fault: the workspace query misses a choice of select() (a ragged batch, a bucket's upper edge), and a launch within the maxima fails;
// every number of splits loads a module of its own.
TEST_F(RuntimeKernel, TheWorkspaceHoldsWhateverSelectPicks) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  const auto store = Store::open(cache());
  for (const auto& [bucket, splits] : {std::pair{Bucket{0, 10}, 32}, {Bucket{3, 8}, 24}, {Bucket{6, 12}, 2}}) put(*store, many_splits(device(), spec, bucket, splits));
  const auto kernel = kernel_of(spec);
  Random random(31);
  std::set<int> picked;
  for (int round = 0; round < 200; ++round) {
    const int max_batch = 1 + random.below(1 << (1 + random.below(12))), max_len = 1 + random.below(1 << (1 + random.below(16)));
    const size_t enough = kernel->workspace_bytes(max_batch, max_len);
    EXPECT_EQ(enough % 256, 0u);
    EXPECT_LE(enough, kernel->workspace_bytes(max_batch + 1, max_len));
    EXPECT_LE(enough, kernel->workspace_bytes(max_batch, max_len * 2));
    for (int i = 0; i < 100; ++i) {
      const int batch = 1 + random.below(max_batch), len = 1 + random.below(max_len);
      const int64_t totals[] = {0, int64_t{len} + random.below(batch * 4), int64_t{batch} * len};
      const int64_t total = totals[random.below(3)];
      const Selection selection = kernel->select(batch, len, total);
      const int splits = KernelConfig::from_json(kernel->config_json(selection)).num_splits();
      picked.insert(splits);
      ASSERT_LE(workspace_bytes(spec, batch, splits), enough) << batch << " x " << len << ", total " << total << " within " << max_batch << " x " << max_len;
    }
  }
  EXPECT_GT(picked.size(), 3u);

  // Configs that differ only in their splits are one module: looked up once by the compile pool and once to be loaded.
  const Stats before = stats();
  kernel->prepare(kMaxBatch, kMaxLen);
  const Stats after = stats();
  const auto binaries = static_cast<uint64_t>(store->usage().binaries);
  EXPECT_EQ(after.compiles - before.compiles, binaries);
  EXPECT_LE(after.binaries_loaded_from_store - before.binaries_loaded_from_store, binaries);
}

// Fault: what the tuner stored is not what the kernel runs.
TEST_F(RuntimeKernel, AStoredWinnerIsRunAndCounted) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  const Store::Row row = many_splits(device(), spec, {1, 8}, 3);
  put(*Store::open(cache()), row);
  const auto kernel = kernel_of(spec);
  const Selection selection = kernel->select(2, 256, 512);
  EXPECT_EQ(selection.source, Source::tuned);
  EXPECT_EQ(kernel->config_json(selection), row.winner.config.canonical_json());
  const Stats before = stats();
  EXPECT_EQ(verdict(*kernel, {256, 200}), "");
  EXPECT_EQ(verdict(*kernel, {400, 390, 380}), "");
  EXPECT_EQ(stats().selected_tuned - before.selected_tuned, 1u);
  EXPECT_EQ(stats().selected_nearest - before.selected_nearest, 1u);
  EXPECT_EQ(verdict(*kernel, {400, 300, 1}), "");
  EXPECT_NE(kernel->digest(), get_kernel(spec, {.device = test_device_id(), .cache_dir = ":memory:"})->digest());
}

// Faults: a kernel that runs on defaults in silence; a sentence where winners answer, where a snapshot does, or where none may.
TEST_F(RuntimeKernel, AKernelWithoutWinnersSaysSo_B187) {
  AttentionSpec spec = decode_spec(6, 2, 64, 16);
  const auto said = [&](const KernelOptions& options) {
    ::testing::internal::CaptureStderr();
    get_kernel(spec, options);
    return ::testing::internal::GetCapturedStderr();
  };
  put(*Store::open(cache()), many_splits(device(), spec, {1, 8}, 3));
  KernelOptions given{.device = test_device_id(), .cache_dir = ":memory:"};
  given.snapshot = kernel_of(spec)->snapshot();
  EXPECT_EQ(said({.device = test_device_id(), .cache_dir = cache()}), "");
  EXPECT_EQ(said(given), "");
  spec.batch_invariant = true;
  EXPECT_EQ(said({.device = test_device_id(), .cache_dir = ":memory:"}), "");
  spec.batch_invariant = false;
  expect_mentions(said({.device = test_device_id(), .cache_dir = ":memory:"}), {canonical_json(spec), "analytic default", "pagetune tune"});
}

// Faults: a rank with an empty store that is given another's snapshot runs other kernels, or agrees on another digest, or shares a kernel object with one that was made from the store.
TEST_F(RuntimeKernel, ASnapshotBringsTheSameKernelsToAnEmptyStore) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  const Store::Row row = many_splits(device(), spec, {1, 8}, 3);
  put(*Store::open(cache()), row);
  const auto tuned = kernel_of(spec);
  const KernelOptions empty{.device = test_device_id(), .cache_dir = ":memory:"};
  KernelOptions given = empty;
  given.snapshot = tuned->snapshot();
  const auto untuned = get_kernel(spec, empty), same = get_kernel(spec, given);
  EXPECT_NE(untuned->digest(), tuned->digest());
  EXPECT_EQ(same->digest(), tuned->digest());
  EXPECT_EQ(same->snapshot(), tuned->snapshot());
  EXPECT_EQ(same->config_json(same->select(2, 256, 512)), row.winner.config.canonical_json());
  EXPECT_EQ(verdict(*same, {256, 200}), "");
  EXPECT_EQ(get_kernel(spec, given), same);
  EXPECT_EQ(get_kernel(spec, empty), untuned);
  given.snapshot += " ";
  EXPECT_EQ(get_kernel(spec, given)->digest(), tuned->digest());
  given.snapshot = "{}";
  expect_mentions(error_text([&] { get_kernel(spec, given); }, ErrorCode::invalid_argument), {"snapshot"});
  AttentionSpec other = spec;
  other.lse = !spec.lse;
  given.snapshot = tuned->snapshot();
  expect_mentions(error_text([&] { get_kernel(other, given); }, ErrorCode::mismatch), {"another spec"});
}

// Faults: a frozen engine compiles in the middle of serving without a word; prepared kernels are refused; a refused launch leaves the kernel unusable.
TEST_F(RuntimeKernel, AFrozenProcessLoadsNothingUnnoticed) {
  struct Thaw {
    ~Thaw() { freeze(Freeze::off); }
  } thaw;
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  put(*Store::open(cache()), many_splits(device(), spec, {1, 8}, 3));
  const auto kernel = kernel_of(spec);
  const uint64_t before = stats().frozen_misses;
  freeze(Freeze::error);
  for (int i = 0; i < 2; ++i) expect_mentions(error_text([&] { verdict(*kernel, {256, 200}); }, ErrorCode::not_prepared), {"frozen", "NUM_SPLITS", "prepare()"});
  error_text([&] { kernel->prepare(4, 512); }, ErrorCode::not_prepared);
  EXPECT_EQ(stats().frozen_misses - before, 3U);
  EXPECT_EQ(Store::open(cache())->usage().binaries, 0) << "nothing was compiled";

  freeze(Freeze::warn);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(verdict(*kernel, {256, 200}), "");
  EXPECT_EQ(verdict(*kernel, {256, 200}), "");
  const std::string said = ::testing::internal::GetCapturedStderr();
  expect_mentions(said, {"frozen, but kernel", "NUM_SPLITS"});
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(stats().frozen_misses - before, 4U);

  freeze(Freeze::off);
  kernel->prepare(4, 512);
  freeze(Freeze::error);
  EXPECT_EQ(verdict(*kernel, {400, 300, 1}), "") << "prepared";
  kernel->prepare(4, 512);
  EXPECT_EQ(stats().frozen_misses - before, 4U);
}

// Fault: the kernel of an earlier winner is run although a later session found it wrong.
TEST_F(RuntimeKernel, ABlockedWinnerIsNotRun) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  const Store::Row row = many_splits(device(), spec, {1, 8}, 3);
  put(*Store::open(cache()), row);
  Store::open(cache())->block(row.winner.env_key, row.winner.spec_key, row.winner.config, Blocklist::text("wrong result"));
  const auto kernel = kernel_of(spec);
  EXPECT_EQ(kernel->select(2, 256, 512).source, Source::analytic_default);
  EXPECT_EQ(verdict(*kernel, {256, 200}), "");
}

// Fault: calls that no winner answers for are lost, counted for the wrong bucket, or counted where a winner answers.
TEST_F(RuntimeKernel, CallsWithoutAWinnerAreCountedInTheStore) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  put(*Store::open(cache()), many_splits(device(), spec, {1, 8}, 3));
  const auto store = Store::open(cache());
  auto kernel = kernel_of(spec);
  for (const std::vector<int>& lens : {std::vector<int>{256, 200}, {400, 390, 380}, {400, 300, 390}, {30}}) EXPECT_EQ(verdict(*kernel, lens), "");
  kernel.reset();
  std::map<std::string, uint64_t> hits;
  for (const Store::Untuned& call : store->untuned()) {
    EXPECT_EQ(call.spec, spec);
    EXPECT_EQ(call.environment, device().environment());
    hits[call.bucket.text()] = call.hits;
  }
  EXPECT_EQ(hits, (std::map<std::string, uint64_t>{{"4x512", 2}, {"1x32", 1}}));
}

// Fault: the thread that writes counts takes a signal from the program, which waits for it with all its threads' signals blocked.
TEST_F(RuntimeKernel, TheThreadThatWritesCountsTakesNoSignals) {
  const auto kernel = kernel_of(decode_spec(4, 2, 64, 16));
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "pagetune-counts") continue;
    ++found;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line) && !line.starts_with("SigBlk:")) {
    }
    const uint64_t blocked = std::stoull(line.substr(line.find_first_not_of("SigBlk: \t")), nullptr, 16);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM}) EXPECT_TRUE((blocked >> (signal - 1)) & 1) << signal;
  }
  EXPECT_EQ(found, 1);
}

// Fault: a child of fork() waits at its end for a thread that only its parent has, or has none of its own for its kernels.
TEST_F(RuntimeKernel, CountsSurviveAFork) {
  if (device().target().backend == Backend::cuda) GTEST_SKIP() << "a process that has opened a GPU cannot be forked and use it";
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  const auto parents = kernel_of(decode_spec(4, 2, 64, 32));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const auto kernel = kernel_of(spec);
    const bool right = verdict(*kernel, {30}).empty();
    std::exit(right ? 0 : 1);  // with its kernel alive: the end of the process writes the counts
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const auto calls = Store::open(cache())->untuned();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].spec, spec);
  EXPECT_EQ(calls[0].hits, 1u);
}

}  // namespace
}  // namespace pagetune::testing_support
