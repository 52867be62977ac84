// A session of the program's own workers on a GPU whose store holds a kernel that faults, hangs, lies or does nothing, in the place of the one that would win.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "attention_support.hpp"
#include "codegen/default_config.hpp"
#include "runtime/build.hpp"
#include "store_samples.hpp"
#include "tuner/remote_workbench.hpp"
#include "tuner/session.hpp"

namespace pagetune::testing_support {
namespace {

namespace fs = std::filesystem;

const AttentionSpec& spec() {
  static const AttentionSpec made = [] {
    AttentionSpec spec;
    spec.q_heads = 8;
    spec.kv_heads = 2;
    return spec;
  }();
  return made;
}
constexpr Bucket kBucket{3, 11};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Faults : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (device().target().backend != Backend::cuda) GTEST_SKIP() << "the device under test is absent: these kernels are a GPU's";
    store_ = Store::open(dir_.path());
    context_.target = device().target();
    context_.environment = device().environment();
    context_.store = store_.get();
    context_.now_s = now_s;
    context_.interrupted = [] { return false; };
    const std::string program = (fs::read_symlink("/proc/self/exe").parent_path() / "pagetune").string();
    workers_ = std::make_unique<Workers>(std::vector<std::string>{program, "worker"}, device().id(), context_.target, store_->dir(),
                                         WorkerLimits{.start_s = 60, .build_s = 60, .verify_s = 8, .open_s = 30, .sample_s = 8});
    context_.workbench = [this](const AttentionSpec& of) { return make_remote_workbench(*workers_, of, options_.policy); };
  }

  SessionReport run() {
    options_.retune = true;
    return run_session(context_, options_, {{spec(), kBucket, {0}}});
  }
  KernelConfig victim() { return default_config(spec(), device().target(), kBucket); }

  // Puts into the store, in the place of the default's binary, one of the source in which `code` follows `place`.
  void plant(const std::string& place, const std::string& code) {
    const KernelSource source = generate(spec(), victim(), device().target());
    KernelSource faulty = source;
    const size_t at = faulty.text.find(place);
    ASSERT_NE(at, std::string::npos) << place;
    ASSERT_EQ(faulty.text.find(place, at + 1), std::string::npos) << place << " stands in the template twice";
    faulty.text.insert(at + place.size(), code);
    Binary binary = device().compiler().compile(faulty);
    binary.key = binary_key(source, device().compiler().identity());
    store_->put_binary(binary);
  }
  void plant_at_start(const std::string& code) { plant("ptx::let_next_kernel_start();", "\n  " + code + "\n"); }

  // The session goes to its end, another kernel wins, and the victim alone is blocked, with the reason.
  void expect_blocked(const std::string& reason) {
    const SessionReport report = run();
    ASSERT_EQ(report.count(Outcome::tuned), 1) << report.works.at(0).message;
    const auto blocked = store_->blocked(context_.environment.key(), spec_key(spec()));
    ASSERT_EQ(blocked.size(), 1u) << ::testing::PrintToString(report.wrong);
    EXPECT_EQ(shape_of(blocked[0].first), shape_of(victim()));
    EXPECT_NE(blocked[0].second.find(reason), std::string::npos) << blocked[0].second;
    ASSERT_EQ(report.wrong.size(), 1u);
    EXPECT_NE(report.wrong[0].find(reason), std::string::npos) << report.wrong[0];
    EXPECT_FALSE(report.complete());
    const auto winners = store_->winners(context_.environment.key(), spec_key(spec()));
    ASSERT_EQ(winners.size(), 1u);
    EXPECT_NE(shape_of(winners[0].config), shape_of(victim()));
    EXPECT_GT(winners[0].median_us, 0);
  }

  const TempDir dir_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Workers> workers_;
  SessionContext context_;
  SessionOptions options_;
};

// Fault: a kernel that ends its context ends the session, or takes the candidates after it along.
TEST_F(Faults, AnIllegalAccessInVerification) {
  plant_at_start("if (threadIdx.x == 0) *reinterpret_cast<volatile int*>(16) = 1;");
  expect_blocked("its worker lost its device context");
}
TEST_F(Faults, ATrapInVerification) {
  plant_at_start("if (blockIdx.x == 0) __trap();");
  expect_blocked("its worker lost its device context");
}
// Fault: what goes wrong only on the large problem is not noticed, or the problem is not opened again for the others.
TEST_F(Faults, AnIllegalAccessWhileItIsTimed) {
  plant_at_start("if (p.num_pages > 4096 && threadIdx.x == 0) *reinterpret_cast<volatile int*>(16) = 1;");
  expect_blocked("its worker lost its device context: ");
  EXPECT_NE(store_->blocked(context_.environment.key(), spec_key(spec()))[0].second.find("while it was timed"), std::string::npos);
}
// Fault: a kernel that never ends holds the session for ever, or the device after its worker was killed.
TEST_F(Faults, AHang) {
  plant_at_start("while (*const_cast<const volatile int*>(p.seq_lens) != -12345) {}");
  const double begin = now_s();
  expect_blocked("its worker did not answer within 8 s while it was verified");
  EXPECT_LT(now_s() - begin, 60);
}
// Fault: a kernel that does nothing, in no time at all, wins.
TEST_F(Faults, NothingInNoTime) {
  plant_at_start("if (p.batch >= 0) return;");
  expect_blocked("out is NaN or was not written");
}
// Fault: half of an output is taken for all of it.
TEST_F(Faults, HalfOfTheOutput) {
  plant("void write_result(const pt_decode_params& p, const Segment& s, const RowMap& rows, int row, int dim, float4 o, float lse) {", "\n  if (row % 2 == 1) return;\n");
  expect_blocked("out is NaN or was not written");
}
// Fault: what no block has room for is launched, or blocked for good although another device may have it.
TEST_F(Faults, MoreSharedMemoryThanThereIs) {
  plant("constexpr int kSharedBytes = kQueryAt + kQueryBytes", " + 300 * 1024");
  const SessionReport report = run();
  ASSERT_EQ(report.count(Outcome::tuned), 1) << report.works.at(0).message;
  EXPECT_TRUE(store_->blocked(context_.environment.key(), spec_key(spec())).empty());
  bool said = false;
  for (const auto& [reason, count] : report.works.at(0).rejected) said |= reason.find("bytes of shared memory") != std::string::npos;
  EXPECT_TRUE(said) << ::testing::PrintToString(report.works.at(0).rejected);
}
// Fault: a process that leaves the work to workers holds a context, and memory, of the device, which one that takes a single process would refuse to them.
TEST_F(Faults, TheSessionItselfHasNoContext) {
  ASSERT_EQ(run().count(Outcome::tuned), 1);
  EXPECT_GT(device().free_bytes(), 0u);
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto state = reinterpret_cast<int (*)(int, unsigned*, int*)>(dlsym(library, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 1;
  ASSERT_EQ(state(0, &flags, &active), 0);
  EXPECT_EQ(active, 0);
}

}  // namespace
}  // namespace pagetune::testing_support
