// Sessions whose candidates run in worker processes, against workers that crash, hang and lie. Store, config space and clock are the real ones.
#include "tuner/remote_workbench.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "codegen/space.hpp"
#include "faults/processes.hpp"
#include "tuner/session.hpp"
#include "tuner/worker_messages.hpp"
#include "tuner_worker_faults.hpp"

namespace pagetune::testing_support {
namespace {

namespace fs = std::filesystem;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Workshop {
 public:
  // device: a store in memory is shared by the process, so each test has a device of its own.
  explicit Workshop(const std::string& device, const Faults& faults = {}) {
    std::string name = (fs::temp_directory_path() / "pagetune-workers-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    dir = name;
    std::ofstream(dir / "faults.json") << nlohmann::json(faults);
    store = Store::open(":memory:");
    command = {TUNER_WORKER_HELPER, "serve", dir};
    context.target = Target::by_name("sm_90a");
    context.environment.backend = "cuda";
    context.environment.device = device;
    context.environment.arch = "sm_90a";
    context.store = store.get();
    context.now_s = now_s;
    context.interrupted = [] { return false; };
    context.workbench = [this](const AttentionSpec& spec) { return make_remote_workbench(workers(), spec, options.policy); };
    works.push_back({AttentionSpec{}, Bucket{3, 8}, {0}});
  }
  ~Workshop() {
    made_.reset();
    fs::remove_all(dir);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  Workers& workers() {
    if (!made_) made_ = std::make_unique<Workers>(command, device_id, context.target, store->dir(), limits);
    return *made_;
  }
  SessionReport run() { return run_session(context, options, works); }
  std::vector<Winner> stored() const { return store->winners(context.environment.key(), spec_key(AttentionSpec{})); }
  std::vector<std::pair<KernelConfig, std::string>> blocked() const { return store->blocked(context.environment.key(), spec_key(AttentionSpec{})); }

  fs::path dir;
  std::shared_ptr<Store> store;
  std::vector<std::string> command;
  std::string device_id = "pretended";
  WorkerLimits limits{.start_s = 20, .build_s = 0.9, .verify_s = 0.9, .open_s = 5, .sample_s = 0.9};
  SessionContext context;
  SessionOptions options;
  std::vector<Work> works;

 private:
  std::unique_ptr<Workers> made_;
};

// The fastest config where nothing goes wrong, and the time of the fastest of another shape.
struct Fastest {
  KernelConfig config;
  double others_us = 1e9;
};
const Fastest& fastest() {
  static const Fastest found = [] {
    Workshop calm("calm");
    EXPECT_EQ(calm.run().count(Outcome::tuned), 1);
    Fastest made{calm.stored().at(0).config};
    for (const KernelConfig& config : ConfigSpace::builtin().candidates(AttentionSpec{}, calm.context.target, calm.works[0].bucket).configs)
      if (shape_of(config) != shape_of(made.config)) made.others_us = std::min(made.others_us, pretended_us(config));
    return made;
  }();
  return found;
}
Faults fault(const std::string& what) { return {{shape_of(fastest().config).canonical_json(), what}}; }

// One config of every shape.
std::vector<KernelConfig> shapes() {
  const Workshop calm("shapes");
  std::map<KernelConfig, KernelConfig> found;
  for (const KernelConfig& config : ConfigSpace::builtin().candidates(AttentionSpec{}, calm.context.target, calm.works[0].bucket).configs)
    found.emplace(shape_of(config), config);
  std::vector<KernelConfig> configs;
  for (const auto& [shape, config] : found) configs.push_back(config);
  return configs;
}
Faults fault_everywhere(const std::string& what) {
  Faults faults;
  for (const KernelConfig& config : shapes()) faults.emplace(shape_of(config).canonical_json(), what);
  return faults;
}

// Another shape won, and it is as good as any other.
void expect_next_best(const Workshop& shop, const SessionReport& report) {
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  ASSERT_EQ(shop.stored().size(), 1U);
  const KernelConfig winner = shop.stored()[0].config;
  EXPECT_NE(shape_of(winner), shape_of(fastest().config));
  EXPECT_LE(pretended_us(winner), fastest().others_us * 1.025);
}

// One sentence that names the config, and the reason.
void expect_names_it(const std::vector<std::string>& sentences, const std::string& reason) {
  ASSERT_EQ(sentences.size(), 1U);
  const std::string& said = sentences[0];
  EXPECT_EQ(shape_of(KernelConfig::from_json(said.substr(0, said.find('}') + 1))), shape_of(fastest().config)) << said;
  EXPECT_NE(said.find(reason), std::string::npos) << said;
}

struct Crash {
  const char* fault;
  const char* reason;
};
void PrintTo(const Crash& crash, std::ostream* out) { *out << crash.fault; }

// Fault: a candidate's crash ends the session, takes others with it, is not blocked, or is said without the config and what happened.
class Crashes : public ::testing::TestWithParam<Crash> {};
TEST_P(Crashes, BlockTheCandidateAndNothingElse) {
  Workshop shop(std::string("crash ") + GetParam().fault, fault(GetParam().fault));
  const double begin = now_s();
  const SessionReport report = shop.run();
  EXPECT_LT(now_s() - begin, 20) << "a hang of 60 s was waited for";
  expect_next_best(shop, report);
  expect_names_it(report.wrong, GetParam().reason);
  EXPECT_TRUE(report.left_out.empty());
  EXPECT_FALSE(report.complete());
  ASSERT_EQ(shop.blocked().size(), 1U);
  EXPECT_EQ(shape_of(shop.blocked()[0].first), shape_of(fastest().config));
  EXPECT_NE(shop.blocked()[0].second.find(GetParam().reason), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(Steps, Crashes,
                         ::testing::Values(Crash{"compile segv", "its worker was killed by SIGSEGV while it was compiled"},
                                           Crash{"compile hang", "its worker did not answer within 0.9 s while it was compiled"},
                                           Crash{"build segv", "its worker was killed by SIGSEGV while it was loaded"},
                                           Crash{"verify segv", "its worker was killed by SIGSEGV while it was verified"},
                                           Crash{"verify abort", "its worker was killed by SIGABRT"},
                                           Crash{"verify exit", "its worker ended with exit code 0"},
                                           Crash{"verify hang", "its worker did not answer within 0.9 s"},
                                           Crash{"verify garbage", "its worker gave an answer that is none: '? half of an answer"},
                                           Crash{"verify context", "its worker lost its device context: the CUDA context is lost"},
                                           Crash{"verify wrong", "half of the output is missing"},
                                           Crash{"sample segv", "its worker was killed by SIGSEGV while it was timed"},
                                           Crash{"sample hang", "its worker did not answer within 0.9 s while it was timed"},
                                           Crash{"sample exit", "its worker ended with exit code 0"}));

// Fault: one lost worker is enough to lose a good candidate; a new worker lacks the spec, the kernels or the open problem.
class Once : public ::testing::TestWithParam<const char*> {};
TEST_P(Once, IsForgiven) {
  Workshop shop(std::string("once ") + GetParam(), fault(GetParam()));
  const SessionReport report = shop.run();
  EXPECT_EQ(report.count(Outcome::tuned), 1);
  EXPECT_TRUE(fs::exists(shop.dir / "faulted"));
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(shop.stored().at(0).config, fastest().config);
  EXPECT_TRUE(report.wrong.empty() && report.left_out.empty() && shop.blocked().empty());
}
INSTANTIATE_TEST_SUITE_P(Steps, Once, ::testing::Values("compile segv once", "build segv once", "verify segv once", "sample segv once", "sample hang once"));

// Fault: an impossible time wins, ends the session, or turns into another number on its way.
class Times : public ::testing::TestWithParam<const char*> {};
TEST_P(Times, ThatCannotBeLeaveTheCandidateOut) {
  Workshop shop(std::string("time ") + GetParam(), fault(std::string("sample ") + GetParam()));
  const SessionReport report = shop.run();
  expect_next_best(shop, report);
  const std::string reasons = nlohmann::json(report.works[0].rejected).dump();
  EXPECT_NE(reasons.find("us cannot be"), std::string::npos) << reasons;
  EXPECT_TRUE(shop.blocked().empty()) << "a clock may have jumped";
}
INSTANTIATE_TEST_SUITE_P(Of, Times, ::testing::Values("zero", "negative", "nan", "infinite"));

// Fault: a kernel that does not compile or does not fit counts as a crash, or is raced.
TEST(Workers, WhatDoesNotBuildIsLeftOut) {
  for (const auto& [what, reason] : {std::pair{"compile refuse", "does not build: no such instruction"}, std::pair{"build large", "bytes of shared memory"}}) {
    Workshop shop(what, fault(what));
    const SessionReport report = shop.run();
    expect_next_best(shop, report);
    const std::string reasons = nlohmann::json(report.works[0].rejected).dump();
    EXPECT_NE(reasons.find(reason), std::string::npos) << reasons;
    EXPECT_TRUE(report.wrong.empty() && shop.blocked().empty());
  }
}

// Fault: what somebody else ended, a user or the kernel out of memory, blocks a candidate for good or is not said.
TEST(Workers, AnOutsidersKillBlocksNobody) {
  Workshop shop("outsider", fault("verify outsider"));
  const SessionReport report = shop.run();
  expect_next_best(shop, report);
  expect_names_it(report.left_out, "was killed by SIGKILL");
  EXPECT_FALSE(report.complete());
  EXPECT_TRUE(report.wrong.empty() && shop.blocked().empty());
}

// Fault: a worker that is lost while the user stops the session blocks its candidate.
TEST(Workers, AnInterruptBlocksNobody) {
  Workshop shop("interrupt", fault("verify segv"));
  shop.context.interrupted = [&] { return fs::exists(shop.dir / "faulted"); };
  const SessionReport report = shop.run();
  EXPECT_TRUE(report.interrupted);
  EXPECT_FALSE(report.complete());
  EXPECT_TRUE(report.wrong.empty() && shop.blocked().empty());
}

// Fault: where no worker can be had, every candidate is blamed, or the session fails without the reason.
TEST(Workers, ThatCannotStartEndTheSessionWithOneError) {
  const auto said = [](Workshop& shop) -> std::pair<ErrorCode, std::string> {
    try {
      shop.run();
    } catch (const WorkerUnavailable& failure) {
      EXPECT_TRUE(shop.blocked().empty() && shop.stored().empty());
      return {failure.code(), failure.what()};
    }
    return {};
  };
  Workshop missing("missing program");
  missing.command = {"/no/such/program"};
  EXPECT_NE(said(missing).second.find("'/no/such/program' cannot be started: No such file"), std::string::npos);
  Workshop broken("broken program");
  std::ofstream(broken.dir / "broken") << "";
  EXPECT_NE(said(broken).second.find("no worker process for pretended can be had: it ended with exit code 7"), std::string::npos);
  Workshop absent("absent device");
  absent.device_id = "absent";
  EXPECT_EQ(said(absent).first, ErrorCode::no_device);
  // Everywhere: a compiler that was started before the break would go on with the other shapes, and a session with what it compiles.
  for (const char* step : {"compile break", "verify break", "sample break"}) {
    Workshop later(step, fault_everywhere(step));
    EXPECT_NE(said(later).second.find("ended with exit code 7"), std::string::npos) << step;
  }
}

// Fault: compiles wait for each other, or share a process so that a crash blames those beside it.
TEST(Workers, CompileSideBySide) {
  std::vector<KernelConfig> configs = shapes();
  ASSERT_GE(configs.size(), 8U);
  configs.resize(8);
  Workshop shop("side by side", fault_everywhere("compile slow"));
  const auto bench = make_remote_workbench(shop.workers(), AttentionSpec{}, MeasurePolicy{});
  const double begin = now_s();
  {
    std::vector<std::jthread> threads;
    for (const KernelConfig& config : configs) threads.emplace_back([&] { bench->build(config); });
  }
  EXPECT_LT(now_s() - begin, 8 * 0.2);
}

// Fault: Ctrl-C at the terminal, which signals the foreground group, reaches a worker.
TEST(Workers, AreNotInTheTerminalsGroup) {
  const Workshop shop("group");
  const WorkerProcess worker(shop.command);
  EXPECT_EQ(getpgid(worker.pid()), worker.pid());
  EXPECT_NE(getpgid(worker.pid()), getpgrp());
}

// Fault: a session that is killed leaves workers behind that hold the device, also one that hangs in a candidate.
TEST(Workers, DieWithTheSession) {
  const Workshop shop("orphan", fault("verify hang"));
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Herd herd;
  const std::string said = shop.dir / "said";
  const pid_t session = herd.start({TUNER_WORKER_HELPER, "parent", shop.dir, fastest().config.canonical_json()}, said);
  pid_t worker = 0;
  for (const double end = now_s() + 20; now_s() < end && !fs::exists(shop.dir / "faulted"); usleep(1000)) {
  }
  std::ifstream(said) >> worker;
  ASSERT_GT(worker, 0);
  ASSERT_EQ(kill(worker, 0), 0);
  kill(session, SIGKILL);
  wait_for(session);
  pid_t ended = 0;
  for (const double end = now_s() + 10; now_s() < end && ended == 0; usleep(1000)) ended = waitpid(worker, nullptr, WNOHANG);
  EXPECT_EQ(ended, worker);
  if (ended == 0) kill(worker, SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// Fault: devices that are tuned side by side mix up their workers, their winners or their blocked candidates.
TEST(Workers, OfTwoDevicesSideBySideFindWhatTheyFindAlone) {
  const auto table = [](const Workshop& shop) {
    std::ostringstream text;
    for (const Winner& winner : shop.stored()) text << winner.bucket.text() << winner.config.canonical_json() << winner.median_us << winner.reason << winner.tied << '\n';
    for (const auto& [config, reason] : shop.blocked()) text << config.canonical_json() << reason << '\n';
    return text.str();
  };
  std::vector<std::string> alone, together;
  for (const bool side_by_side : {false, true}) {
    const std::string when = side_by_side ? " together" : " alone";
    Workshop first("first" + when, fault("sample segv")), second("second" + when);
    for (Workshop* shop : {&first, &second}) shop->works.push_back({AttentionSpec{}, Bucket{0, 10}, {0}});
    {
      std::jthread other([&] { first.run(); });
      if (!side_by_side) other.join();
      second.run();
    }
    (side_by_side ? together : alone) = {table(first), table(second)};
  }
  EXPECT_EQ(together, alone);
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_EQ(std::count(alone[0].begin(), alone[0].end(), '\n'), 3) << alone[0];
}

// Fault: a number changes on its way to another process.
TEST(WorkerMessages, KeepEveryBitOfANumber) {
  for (const double value : {0.1, -0.0, 1.0 / 3, 5e-324, 1.7976931348623157e308, std::numeric_limits<double>::infinity()}) {
    const double back = real_from_text(real_text(value));
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
  EXPECT_TRUE(std::isnan(real_from_text(real_text(std::numeric_limits<double>::quiet_NaN()))));
  EXPECT_THROW(real_from_text("12 apples"), Error);
  EXPECT_THROW(real_from_text(std::string("12\0 apples", 10)), Error);
}

// Fault: what a damaged worker writes ends this process, or is taken for the answer to another request or for a number that it is not.
TEST(WorkerMessages, OnlyAnAnswerIsTaken) {
  EXPECT_EQ(answer_from_line(R"({"id":7,"ok":[1]})", 7).ok, nlohmann::json::array({1}));
  const WorkerAnswer failed = answer_from_line(R"({"id":7,"error":{"code":6,"message":"no such instruction"}})", 7);
  ASSERT_TRUE(failed.error);
  EXPECT_EQ(failed.error->code(), ErrorCode::compile_failed);
  EXPECT_STREQ(failed.error->what(), "no such instruction");
  for (const char* line : {"", "\x01 half of an answer", "[]", R"({"ok":1})", R"({"id":8,"ok":1})", R"({"id":7})", R"({"id":7,"error":"x"})", R"({"id":7,"error":[6,"x"]})",
                           R"({"id":7,"error":{"code":6}})", R"({"id":7,"error":{"code":0,"message":"x"}})", R"({"id":7,"error":{"code":12,"message":"x"}})", R"({"id":7,"error":{"code":1e300,"message":"x"}})"})
    EXPECT_THROW(answer_from_line(line, 7), std::exception) << line;
  constexpr size_t kDeep = 1'000'000;  // copies of it would exhaust the stack
  EXPECT_THROW(answer_from_line("{\"id\":7,\"ok\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + "}", 7), std::exception);
  EXPECT_EQ(bucket_from_json(bucket_to_json({3, 12})), (Bucket{3, 12}));
  for (const char* number : {"4294967299", "1e300", "3.5"})
    EXPECT_THROW(bucket_from_json(nlohmann::json::parse(fmt::format(R"({{"batch_log2":{},"len_log2":12}})", number))), Error) << number;
}

// Fault: a field of what a worker works on is lost, and it compiles or measures another thing.
TEST(WorkerMessages, KeepTheTask) {
  WorkerTask task{"cuda:3", Target::by_name("sm_90a"), "/some/where", AttentionSpec{}, MeasurePolicy::for_backend(Backend::cpu)};
  task.target.processors = 78;
  task.target.vector_bits = 512;
  task.target.cpu_features = "+a,-b";
  task.spec.page_size = 7;
  const WorkerTask back = task_from_json(nlohmann::json::parse(task_to_json(task).dump()));
  EXPECT_EQ(back.device_id, task.device_id);
  EXPECT_EQ(back.target, task.target);
  EXPECT_EQ(back.store_dir, task.store_dir);
  EXPECT_EQ(canonical_json(back.spec), canonical_json(task.spec));
  EXPECT_EQ(back.policy, task.policy);
  LaunchFacts facts;
  facts.params_size = 1;
  facts.static_shared_bytes = 2;
  const LaunchFacts same = facts_from_json(facts_to_json(facts));
  EXPECT_EQ(facts_to_json(same), facts_to_json(facts));
  EXPECT_EQ(facts_to_json(facts).size() * sizeof(int), sizeof(LaunchFacts)) << "a fact that is not sent";
}

}  // namespace
}  // namespace pagetune::testing_support
