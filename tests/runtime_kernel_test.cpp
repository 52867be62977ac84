// get_kernel(), prepare(), launch() and the C ABI on the device under test.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "codegen/default_config.hpp"
#include "codegen_testing.hpp"
#include "pagetune/pagetune.h"
#include "pagetune/pagetune.hpp"
#include "runtime/launch.hpp"
#include "runtime_binaries.hpp"
#include "runtime_kernel_support.hpp"
#include "tuner/numeric.hpp"

namespace pagetune::testing_support {
namespace {

using testing::error_text;
using testing::expect_mentions;

// Device memory for the length of a test.
class Memory {
 public:
  Memory(Device& device, size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~Memory() { device_.release(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

// Fault: every call of get_kernel() makes a kernel, or two specs, or two stores, share one.
TEST_F(RuntimeKernel, TheSameArgumentsGiveTheSameObject) {
  const AttentionSpec a = decode_spec(4, 2, 64, 16), b = decode_spec(4, 2, 64, 32);
  const Stats before = stats();
  auto first = kernel_of(a);
  EXPECT_EQ(kernel_of(a), first);
  EXPECT_NE(kernel_of(b), first);
  EXPECT_NE(get_kernel(a, {.device = test_device_id(), .cache_dir = ":memory:"}), first);
  EXPECT_EQ(first->spec(), a);
  EXPECT_EQ(first->device(), test_device_id());
  EXPECT_EQ(stats().kernel_hits - before.kernel_hits, 1u);
  EXPECT_EQ(stats().kernel_misses - before.kernel_misses, 3u);
  EXPECT_EQ(kernel_of(a)->digest(), get_kernel(a, {.device = test_device_id(), .cache_dir = ":memory:"})->digest());
  const std::weak_ptr<Kernel> gone = first;
  first.reset();
  EXPECT_TRUE(gone.expired()) << "the registry keeps kernels alive";
}

// Fault: a race of first calls compiles one kernel several times, makes two objects, or launches a module that is not loaded yet.
TEST_F(RuntimeKernel, SixteenThreadsCompileEachBinaryOnceAndAreRight) {
  const HostProblem problems[] = {HostProblem({.spec = served_spec(64, DType::bf16), .lens = {200, 1, 33}}), HostProblem({.spec = served_spec(128, DType::bf16), .lens = {150}})};
  const Reference expected[] = {reference(problems[0].spec(), problems[0].params()), reference(problems[1].spec(), problems[1].params())};
  const Stats before = stats();
  std::atomic<int> waiting{16};
  std::vector<std::string> wrong(16);
  std::mutex one_launch;  // racecheck loses track of kernels that several threads launch
  std::vector<std::shared_ptr<Kernel>> kernels(16);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 16; ++t)
      threads.emplace_back([&, t] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        try {
          kernels[t] = kernel_of(problems[t % 2].spec());
          if (t % 4 < 2) kernels[t]->prepare(kMaxBatch, kMaxLen);  // the others compile in their first launch
          const auto turn = sanitized() ? std::unique_lock(one_launch) : std::unique_lock<std::mutex>();
          wrong[t] = verdict(*kernels[t], problems[t % 2], expected[t % 2]);
        } catch (const std::exception& error) {
          wrong[t] = error.what();
        }
      });
  }
  for (size_t t = 0; t < 16; ++t) {
    EXPECT_EQ(wrong[t], "") << t;
    EXPECT_EQ(kernels[t], kernels[t % 2]) << t;
  }
  EXPECT_EQ(stats().kernel_misses - before.kernel_misses, 2u);
  EXPECT_EQ(stats().kernel_hits - before.kernel_hits, 14u);
  const int64_t binaries = binaries_of(device(), {problems[0].spec(), problems[1].spec()});
  EXPECT_GE(binaries, 4) << "V1 and V2 of two specs";
  EXPECT_EQ(Store::open(cache())->usage().binaries, binaries);
  EXPECT_EQ(stats().compiles - before.compiles, static_cast<uint64_t>(binaries));
}

// Fault: a kernel that is asked for again after its release is compiled again.
TEST_F(RuntimeKernel, ASecondKernelFindsWhatTheFirstCompiled) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  auto kernel = kernel_of(spec);
  kernel->prepare(kMaxBatch, kMaxLen);
  const std::string digest = kernel->digest();
  kernel.reset();
  const Stats before = stats();
  kernel = kernel_of(spec);
  kernel->prepare(kMaxBatch, kMaxLen);
  EXPECT_EQ(stats().compiles, before.compiles);
  EXPECT_GT(stats().binaries_loaded_from_store, before.binaries_loaded_from_store);
  EXPECT_EQ(kernel->digest(), digest);
  EXPECT_EQ(verdict(*kernel, {100, 7}), "");
}

// Fault: a launch beyond what was prepared compiles in the middle of serving, or one user's prepare() takes away what another's gave.
TEST_F(RuntimeKernel, LaunchesBeyondThePreparedMaximaAreErrors) {
  const auto kernel = kernel_of(decode_spec(4, 2, 64, 16));
  kernel->prepare(4, 64);
  EXPECT_EQ(verdict(*kernel, {64, 1, 1, 1}), "");
  expect_mentions(error_text([&] { verdict(*kernel, {1, 1, 1, 1, 1}); }, ErrorCode::mismatch), {"batch 5", "4 and 64", "prepare()"});
  expect_mentions(error_text([&] { verdict(*kernel, {65}); }, ErrorCode::mismatch), {"max_len 65", "4 and 64"});
  kernel->prepare(1, 16);
  EXPECT_EQ(verdict(*kernel, {64, 1, 1, 1}), "");
  kernel->prepare(8, 16);
  EXPECT_EQ(verdict(*kernel, {64, 1, 1, 1, 1, 1, 1, 1}), "");
  for (const auto& maxima : {std::pair{0, 5}, {5, 0}, {-1, 5}}) {
    const int batch = maxima.first, len = maxima.second;
    expect_mentions(error_text([&] { kernel->prepare(batch, len); }), {std::to_string(batch), std::to_string(len), "at least 1"});
    expect_mentions(error_text([&] { kernel->workspace_bytes(batch, len); }), {std::to_string(batch), std::to_string(len), "at least 1"});
  }
}

// Fault: an index of another kernel reads past the list of configs.
TEST_F(RuntimeKernel, ASelectionMustBeOfThisKernel) {
  const auto kernel = kernel_of(decode_spec(4, 2, 64, 16));
  const HostProblem problem({.spec = kernel->spec(), .lens = {20}});
  DeviceProblem on_device(device(), problem);
  expect_mentions(error_text([&] { on_device.run(*kernel, {.index = 60000, .source = Source::tuned}); }), {"60000", "configs"});
  expect_mentions(error_text([&] { on_device.run(*kernel, {.index = 0, .source = static_cast<Source>(9)}); }), {"9", "select()"});
  on_device.run(*kernel, kernel->select(1, 20, 0));
  EXPECT_EQ(on_device.check(reference(problem.spec(), problem.params())).what, "");
}

// Fault: the size of the workspace is not looked at, and the kernel writes behind it.
TEST_F(RuntimeKernel, ASmallWorkspaceIsAnError) {
  AttentionSpec spec = decode_spec(4, 2, 64, 16);
  spec.checked = true;
  const auto kernel = kernel_of(spec);
  const HostProblem problem({.spec = spec, .lens = {20}});
  DeviceProblem on_device(device(), problem);
  on_device.run(*kernel);
  pt_decode_params p = on_device.params();
  p.workspace_bytes = 100;
  expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }), {"100 bytes", "workspace_bytes("});
  p.workspace = nullptr;
  expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }), {"workspace is null"});
  expect_mentions(error_text([&] { kernel->check(nullptr, device().stream()); }), {"workspace is null"});
  EXPECT_EQ(verdict(*kernel, {20}), "");
  expect_mentions(error_text([&] { kernel_of(decode_spec(4, 2, 64, 16))->check(on_device.params().workspace, device().stream()); }, ErrorCode::mismatch), {"checked"});
}

// Fault: what is timed was never launched, or only when it was recorded; a graph's launches go to another stream than eager ones.
TEST_F(RuntimeKernel, ARecordingLaunchesWithEveryReplayAsAGraphAndEagerly) {
  const HostProblem problem({.spec = decode_spec(4, 2, 64, 16), .lens = {200, 33}});
  const Reference expected = reference(problem.spec(), problem.params());
  const auto kernel = kernel_of(problem.spec());
  kernel->prepare(kMaxBatch, kMaxLen);
  const size_t bytes = kernel->workspace_bytes(2, 200);
  for (const Device::Launches launches : {Device::Launches::graph, Device::Launches::eager}) {
    DeviceProblem on_device(device(), problem);
    on_device.poison(bytes);
    const auto recording = device().record([&](void* stream) { kernel->launch(on_device.params(), stream); }, launches);
    for (int replay = 0; replay < 2; ++replay) {
      on_device.poison(bytes);
      EXPECT_GT(recording->replay_us(), 0);
      EXPECT_EQ(on_device.check(expected).what, "") << replay;
    }
  }
}

// Fault: a spec without a kernel runs something else, or its error says only "unsupported".
TEST_F(RuntimeKernel, UnsupportedSpecsAreRefusedWithTheReason) {
  AttentionSpec spec = decode_spec(4, 2, 64, 16);
  spec.kv_scale = ScaleGranularity::tensor;
  expect_mentions(error_text([&] { kernel_of(spec); }, ErrorCode::unsupported), {"kv_scale"});
  spec = decode_spec(4, 2, 64, 16);
  spec.kv_dtype = DType::fp8_e4m3;
  expect_mentions(error_text([&] { kernel_of(spec); }, ErrorCode::unsupported), {"fp8_e4m3"});
  expect_mentions(error_text([&] { kernel_of(decode_spec(4, 2, 68, 16)); }, ErrorCode::unsupported), {"68"});
}

// Fault: a misspelt device falls back to another one.
TEST_F(RuntimeKernel, UnknownDevicesAreErrors) {
  const AttentionSpec spec = decode_spec(4, 2, 64, 16);
  for (const char* id : {"gpu", "", "CPU", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0"})
    expect_mentions(error_text([&] { get_kernel(spec, {.device = id, .cache_dir = cache()}); }), {std::string("'") + id + "'", "auto, cpu, cuda:N"});
  const std::string absent = error_text([&] { get_kernel(spec, {.device = "cuda:99", .cache_dir = cache()}); }, ErrorCode::no_device);
  EXPECT_FALSE(absent.empty());
  if (!on_cpu()) expect_mentions(absent, {"cuda:99", "this machine has"});
}

// A call whose parameters stay valid: its workspace and outputs are its own.
class Call {
 public:
  Call(Device& device, Kernel& kernel, const HostProblem& problem)
      : device_(device), problem_(problem), inputs_(device, problem), workspace_(device, std::max<size_t>(256, kernel.workspace_bytes(8, 4096))),
        out_(device, problem.out_bytes()), lse_(device, rows() * 4), params_(inputs_.params()), expected_(reference(problem.spec(), problem.params())) {
    params_.workspace = workspace_.data();
    params_.workspace_bytes = static_cast<long long>(kernel.workspace_bytes(8, 4096));
    params_.out = out_.data();
    params_.lse = static_cast<float*>(lse_.data());
    clear();
  }
  const pt_decode_params& params() const { return params_; }
  void clear() {
    device_.upload(out_.data(), std::vector<char>(problem_.out_bytes(), '\xff').data(), problem_.out_bytes());
    device_.upload(lse_.data(), std::vector<char>(rows() * 4, '\xff').data(), rows() * 4);
  }
  std::string verdict() {
    device_.synchronize();
    Outputs outputs;
    outputs.out.resize(problem_.out_bytes());
    outputs.lse.resize(rows());
    device_.download(outputs.out.data(), out_.data(), outputs.out.size());
    device_.download(outputs.lse.data(), lse_.data(), rows() * 4);
    return compare(problem_.spec(), params_.batch, outputs, expected_).what;
  }

 private:
  size_t rows() const { return static_cast<size_t>(problem_.params().batch) * static_cast<size_t>(problem_.spec().q_heads); }
  Device& device_;
  const HostProblem& problem_;
  DeviceProblem inputs_;
  Memory workspace_, out_, lse_;
  pt_decode_params params_;
  Reference expected_;
};

// Fault: a first launch inside a capture breaks the capture, or is recorded without its kernel. (The CPU has no captures: there the
// first launch compiles wherever it stands.)
TEST_F(RuntimeKernel, AFirstLaunchInACaptureIsAnErrorThatLeavesTheCaptureUsable_B166) {
  const HostProblem problem_a({.spec = decode_spec(4, 2, 64, 16), .lens = {300, 5, 0}}), problem_b({.spec = decode_spec(4, 2, 128, 16), .lens = {77}});
  const auto late = kernel_of(problem_a.spec()), ready = kernel_of(problem_b.spec());
  ready->prepare(8, 4096);
  Call a(device(), *late, problem_a), b(device(), *ready, problem_b);
  const Stats before = stats();
  std::string refusal;
  auto recording = device().record([&](void* stream) {
    try {
      late->launch(a.params(), stream);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_prepared);
      refusal = error.what();
    }
    ready->launch(b.params(), stream);
  });
  if (on_cpu()) {
    EXPECT_EQ(refusal, "");
  } else {
    expect_mentions(refusal, {"prepare(max_batch, max_len)", "capture is still usable"});
    EXPECT_EQ(stats().capture_refusals - before.capture_refusals, 1u);
    EXPECT_EQ(stats().compiles, before.compiles);
  }
  recording->replay_us();
  EXPECT_EQ(b.verdict(), "");

  late->prepare(8, 4096);
  recording = device().record([&](void* stream) {
    late->launch(a.params(), stream);
    ready->launch(b.params(), stream);
  });
  for (int replay = 0; replay < 2; ++replay) {
    a.clear();
    b.clear();
    recording->replay_us();
    EXPECT_EQ(a.verdict(), "");
    EXPECT_EQ(b.verdict(), "");
  }
}

// Fault: a window given to a kernel that was compiled without one leaves only what its tiles skip.
TEST_F(RuntimeKernel, FeaturesGivenToAKernelWithoutThemAreErrors_B85) {
  const HostProblem problem({.spec = decode_spec(4, 2, 64, 16), .lens = {300}});
  const auto kernel = kernel_of(problem.spec());
  Call call(device(), *kernel, problem);
  pt_decode_params p = call.params();
  p.window = p.seq_lens;
  expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }, ErrorCode::mismatch), {"window was given", "set window"});
  p = call.params();
  p.soft_cap = 30;
  expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }, ErrorCode::mismatch), {"soft_cap was given"});
  p = call.params();
  p.cu_seqlens_q = p.seq_lens;
  expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }, ErrorCode::mismatch), {"cu_seqlens_q was given"});
  kernel->launch(call.params(), device().stream());
  EXPECT_EQ(call.verdict(), "");
}

// Fault: the launch goes to the thread's current device, not to the kernel's.
TEST_F(RuntimeKernel, DevicesTakeTurns_B167) {
  const std::vector<std::string> ids = list_devices().ids;
  if (on_cpu() || std::find(ids.begin(), ids.end(), "cuda:1") == ids.end()) GTEST_SKIP() << "two GPUs are needed";
  const HostProblem problem({.spec = decode_spec(4, 2, 64, 16), .lens = {300, 5, 0}});
  const auto other = open_device("cuda:1");
  const auto here = kernel_of(problem.spec()), there = get_kernel(problem.spec(), {.device = "cuda:1", .cache_dir = cache()});
  Call a(device(), *here, problem), b(*other, *there, problem);
  for (int turn = 0; turn < 3; ++turn) {
    a.clear();
    b.clear();
    here->launch(a.params(), device().stream());
    there->launch(b.params(), other->stream());
    EXPECT_EQ(a.verdict(), "");
    EXPECT_EQ(b.verdict(), "");
  }
}

// Fault: memory of the host in a checked launch kills the context. (To the CPU, host memory is its own.)
TEST_F(RuntimeKernel, CheckedLaunchesLookAtWhoseMemoryItIs) {
  AttentionSpec spec = decode_spec(4, 2, 64, 16);
  spec.checked = true;
  const auto kernel = kernel_of(spec);
  const HostProblem problem({.spec = spec, .lens = {30, 2}});
  Call call(device(), *kernel, problem);
  pt_decode_params p = call.params();
  p.q = problem.params().q;
  p.seq_lens = problem.params().seq_lens;
  if (on_cpu()) {
    kernel->launch(p, device().stream());
  } else {
    expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }, ErrorCode::mismatch), {"q (", "not device memory", test_device_id()});
    p.q = call.params().q;
    expect_mentions(error_text([&] { kernel->launch(p, device().stream()); }, ErrorCode::mismatch), {"seq_lens ("});
    kernel->launch(call.params(), device().stream());
  }
  EXPECT_EQ(call.verdict(), "");
}

// Fault: an exception crosses the C boundary, a code or a text is lost, or one thread reads another's message.
TEST_F(RuntimeKernel, CFunctionsReturnCodesAndAMessagePerThread) {
  static_assert(PT_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument) && PT_UNSUPPORTED == static_cast<int>(ErrorCode::unsupported) &&
                PT_MISMATCH == static_cast<int>(ErrorCode::mismatch) && PT_NOT_PREPARED == static_cast<int>(ErrorCode::not_prepared) &&
                PT_NO_DEVICE == static_cast<int>(ErrorCode::no_device) && PT_COMPILE_FAILED == static_cast<int>(ErrorCode::compile_failed) &&
                PT_DEVICE_ERROR == static_cast<int>(ErrorCode::device_error) && PT_BAD_TABLE == static_cast<int>(ErrorCode::bad_table) &&
                PT_IO == static_cast<int>(ErrorCode::io) && PT_INTERNAL == static_cast<int>(ErrorCode::internal) && PT_CONTEXT_LOST == static_cast<int>(ErrorCode::context_lost));
  const std::string device = test_device_id();
  const auto get = [&](const char* json, const char* where, pt_kernel** out) { return pt_get_kernel(json, where, cache().c_str(), out); };
  pt_kernel* kernel = nullptr;
  EXPECT_EQ(get(R"({"head_dim_k":64,"head_dim_v":64,"kv_dtype":"fp8_e4m3"})", device.c_str(), &kernel), PT_UNSUPPORTED);
  expect_mentions(pt_last_error(), {"kv_dtype"});
  EXPECT_EQ(kernel, nullptr);
  std::jthread([&] {
    EXPECT_STREQ(pt_last_error(), "");
    EXPECT_EQ(get("{\"heads\":3}", device.c_str(), &kernel), PT_INVALID_ARGUMENT);
    expect_mentions(pt_last_error(), {"heads"});
  }).join();
  expect_mentions(pt_last_error(), {"kv_dtype"});
  EXPECT_EQ(get("{", device.c_str(), &kernel), PT_INVALID_ARGUMENT);
  EXPECT_EQ(get("{}", "gpu", &kernel), PT_INVALID_ARGUMENT);
  EXPECT_EQ(get("{}", "cuda:99", &kernel), PT_NO_DEVICE);
  EXPECT_EQ(get(nullptr, device.c_str(), &kernel), PT_INVALID_ARGUMENT);
  expect_mentions(pt_last_error(), {"spec_json is null"});
  EXPECT_EQ(get("{}", device.c_str(), nullptr), PT_INVALID_ARGUMENT);
  expect_mentions(pt_last_error(), {"out is null"});

  ASSERT_EQ(get("{}", device.c_str(), &kernel), PT_OK) << pt_last_error();
  pt_decode_params params;
  pt_decode_params_init(&params);
  pt_decode_params_init(nullptr);
  size_t bytes = 0;
  int index = 0;
  char digest[65];
  const std::pair<const char*, pt_status> null_calls[] = {
      {"kernel", pt_set_contiguous_strides(nullptr, 4, &params)}, {"params", pt_set_contiguous_strides(kernel, 4, nullptr)}, {"kernel", pt_workspace_bytes(nullptr, 1, 1, &bytes)},
      {"bytes", pt_workspace_bytes(kernel, 1, 1, nullptr)},       {"kernel", pt_prepare(nullptr, 1, 1)},                     {"kernel", pt_select(nullptr, 1, 1, 0, &index)},
      {"config_index", pt_select(kernel, 1, 1, 0, nullptr)},      {"kernel", pt_launch(nullptr, &params, nullptr)},          {"params", pt_launch(kernel, nullptr, nullptr)},
      {"kernel", pt_check(nullptr, &bytes, nullptr)},             {"kernel", pt_digest(nullptr, digest)},                    {"out", pt_digest(kernel, nullptr)},
      {"kernel", pt_snapshot(nullptr, digest, &bytes)},           {"size", pt_snapshot(kernel, digest, nullptr)},
  };
  for (const auto& [what, status] : null_calls) EXPECT_EQ(status, PT_INVALID_ARGUMENT) << what;
  EXPECT_EQ(pt_digest(kernel, nullptr), PT_INVALID_ARGUMENT);
  EXPECT_STREQ(pt_last_error(), "out is null");
  EXPECT_EQ(pt_check(kernel, &bytes, nullptr), PT_MISMATCH);
  EXPECT_EQ(pt_workspace_bytes(kernel, 0, 1, &bytes), PT_INVALID_ARGUMENT);
  params.struct_size = 8;
  EXPECT_EQ(pt_launch(kernel, &params, nullptr), PT_MISMATCH);
  expect_mentions(pt_last_error(), {"size 8"});
  pt_kernel_release(kernel);
  pt_kernel_release(nullptr);
}

// Fault: the C functions take other paths than the C++ ones and compute something else.
TEST_F(RuntimeKernel, AWholeDecodeThroughCIsRight) {
  const HostProblem problem({.spec = decode_spec(4, 2, 64, 16), .lens = {300, 5, 0, 64}});
  const std::string json = canonical_json(problem.spec());
  pt_kernel* kernel = nullptr;
  ASSERT_EQ(pt_get_kernel(json.c_str(), test_device_id().c_str(), cache().c_str(), &kernel), PT_OK) << pt_last_error();
  ASSERT_EQ(pt_prepare(kernel, 4, 512), PT_OK) << pt_last_error();
  const auto same = kernel_of(problem.spec());
  Call call(device(), *same, problem);

  pt_decode_params p;
  pt_decode_params_init(&p);
  ASSERT_EQ(pt_set_contiguous_strides(kernel, call.params().block_table_width, &p), PT_OK);
  p.q = call.params().q;
  p.k_cache = call.params().k_cache;
  p.v_cache = call.params().v_cache;
  p.out = call.params().out;
  p.lse = call.params().lse;
  p.block_tables = call.params().block_tables;
  p.seq_lens = call.params().seq_lens;
  p.block_table_stride = call.params().block_table_stride;
  p.batch = 4;
  p.max_len = 300;
  p.num_pages = call.params().num_pages;
  size_t bytes = 0;
  ASSERT_EQ(pt_workspace_bytes(kernel, 4, 512, &bytes), PT_OK);
  EXPECT_EQ(bytes, same->workspace_bytes(4, 512));
  const Memory workspace(device(), std::max<size_t>(bytes, 256));
  p.workspace = workspace.data();
  p.workspace_bytes = static_cast<long long>(bytes);
  int index = -1;
  EXPECT_EQ(pt_select(kernel, 4, 300, 0, &index), PT_OK);
  EXPECT_EQ(index, same->select(4, 300).index);
  char digest[65];
  EXPECT_EQ(pt_digest(kernel, digest), PT_OK);

  // Another rank gets the bytes.
  size_t size = 0;
  ASSERT_EQ(pt_snapshot(kernel, nullptr, &size), PT_OK);
  std::string snapshot(size, ' ');
  size_t room = size - 1;
  EXPECT_EQ(pt_snapshot(kernel, snapshot.data(), &room), PT_INVALID_ARGUMENT);
  EXPECT_EQ(room, size);
  ASSERT_EQ(pt_snapshot(kernel, snapshot.data(), &size), PT_OK);
  EXPECT_EQ(snapshot, same->snapshot());
  pt_kernel* copy = nullptr;
  ASSERT_EQ(pt_get_kernel_from_snapshot(json.c_str(), test_device_id().c_str(), ":memory:", snapshot.data(), snapshot.size(), &copy), PT_OK) << pt_last_error();
  char copied[65];
  EXPECT_EQ(pt_digest(copy, copied), PT_OK);
  EXPECT_STREQ(copied, digest);
  pt_kernel_release(copy);
  EXPECT_EQ(pt_get_kernel_from_snapshot(json.c_str(), test_device_id().c_str(), ":memory:", snapshot.data(), snapshot.size() - 1, &copy), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_get_kernel_from_snapshot(json.c_str(), test_device_id().c_str(), ":memory:", nullptr, 1, &copy), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_freeze(static_cast<pt_freeze_policy>(3)), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_freeze(PT_FREEZE_OFF), PT_OK);
  EXPECT_EQ(digest, same->digest());
  ASSERT_EQ(pt_launch(kernel, &p, device().stream()), PT_OK) << pt_last_error();
  EXPECT_EQ(call.verdict(), "");
  p.batch = 5;
  EXPECT_EQ(pt_launch(kernel, &p, device().stream()), PT_MISMATCH);
  pt_kernel_release(kernel);
  EXPECT_EQ(same->digest(), digest) << "the kernel lives as long as someone holds it";
}

}  // namespace
}  // namespace pagetune::testing_support
