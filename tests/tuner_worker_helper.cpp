// A worker process whose candidates misbehave as its directory says, and sessions that are killed.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "pagetune/error.hpp"
#include "tuner/remote_workbench.hpp"
#include "tuner/session.hpp"
#include "tuner/worker.hpp"
#include "tuner_worker_faults.hpp"

using namespace pagetune;
using namespace pagetune::testing_support;

namespace {

namespace fs = std::filesystem;

// True for the first process that asks.
bool first(const fs::path& mark) { return ::open(mark.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0; }

class Faulty {
 public:
  explicit Faulty(fs::path dir) : dir_(std::move(dir)) {
    std::ifstream file(dir_ / "faults.json");
    if (file) faults_ = nlohmann::json::parse(file).get<Faults>();
  }

  // Does what is to go wrong here; returns the fault's name if it is one of an answer.
  std::string at(const std::string& step, const KernelConfig& config) const {
    const auto found = faults_.find(shape_of(config).canonical_json());
    if (found == faults_.end() || !found->second.starts_with(step + " ")) return "";
    std::string fault = found->second.substr(step.size() + 1);
    const size_t once = fault.find(" once");
    if (once != std::string::npos) {
      fault.resize(once);
      if (!first(dir_ / "once")) return "";
    }
    first(dir_ / "faulted");
    if (fault == "break") {
      first(dir_ / "broken");
      fault = "segv";
    }
    if (fault == "segv") std::signal(SIGSEGV, SIG_DFL), raise(SIGSEGV);
    if (fault == "abort") std::signal(SIGABRT, SIG_DFL), std::abort();
    if (fault == "exit") _exit(0);
    if (fault == "outsider") raise(SIGKILL);
    if (fault == "hang") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (fault == "garbage" && write(STDIN_FILENO, "\x01 half of an answer\n", 20) == 20) std::this_thread::sleep_for(std::chrono::seconds(60));
    if (fault == "context") throw Error(ErrorCode::context_lost, "the CUDA context is lost");
    if (fault == "refuse") throw Error(ErrorCode::compile_failed, "no such instruction");
    return fault;
  }

 private:
  fs::path dir_;
  Faults faults_;
};

class PretendedBench final : public Workbench {
 public:
  explicit PretendedBench(const Faulty& faulty) : faulty_(faulty) {}
  LaunchFacts build(const KernelConfig& config) override {
    LaunchFacts facts;
    if (faulty_.at("build", config) == "large") facts.shared_bytes = 1 << 20;
    built_.insert({shape_of(config), true});
    return facts;
  }
  Verdict verify(const KernelConfig& config) override {
    require(config);
    if (faulty_.at("verify", config) == "wrong") return {false, 0.5, "half of the output is missing"};
    return {true, 1e-3, ""};
  }
  void open(Bucket, const std::vector<KernelConfig>&) override { open_ = true; }
  void close() override { open_ = false; }
  double sample_us(const KernelConfig& config) override {
    require(config);
    if (!open_) throw Error(ErrorCode::internal, "timed without a problem");
    const std::string fault = faulty_.at("sample", config);
    if (fault == "zero") return 0;
    if (fault == "negative") return -5;
    if (fault == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (fault == "infinite") return std::numeric_limits<double>::infinity();
    return pretended_us(config);
  }

 private:
  void require(const KernelConfig& config) const {
    if (built_.count(shape_of(config)) == 0) throw Error(ErrorCode::internal, "not built in this process");
  }

  const Faulty& faulty_;
  std::map<KernelConfig, bool> built_;
  bool open_ = false;
};

class PretendedHost final : public WorkerHost {
 public:
  explicit PretendedHost(const fs::path& dir) : faulty_(dir) {}
  LaunchFacts compile(const WorkerTask&, const KernelConfig& config) override {
    if (faulty_.at("compile", config) == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return {};
  }
  std::unique_ptr<Workbench> workbench(const WorkerTask& task) override {
    if (task.device_id == "absent") throw Error(ErrorCode::no_device, "there is no such device");
    return std::make_unique<PretendedBench>(faulty_);
  }

 private:
  Faulty faulty_;
};

// Starts a worker, says its process id and waits for a candidate that hangs.
int wait_to_be_killed(const char* program, const std::string& dir, const KernelConfig& config) {
  Workers workers({program, "serve", dir}, "pretended", Target::by_name("sm_90a"), dir);
  const auto bench = make_remote_workbench(workers, AttentionSpec{}, MeasurePolicy{});
  bench->build(config);
  std::printf("%d\n", workers.measuring()->pid());
  std::fflush(stdout);
  bench->verify(config);
  return 1;
}

// A session without workers on a store; each work that ended is a line of the log.
int run_session_on(const std::string& dir, const std::string& log) {
  const auto store = Store::open(dir);
  const Faulty faultless(dir);
  SessionContext context;
  context.target = Target::by_name("sm_90a");
  context.environment.backend = "cuda";
  context.environment.device = "pretended";
  context.environment.arch = "sm_90a";
  context.store = store.get();
  context.now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  context.interrupted = [] { return false; };
  context.workbench = [&](const AttentionSpec&) { return std::make_unique<PretendedBench>(faultless); };
  std::ofstream lines(log);
  context.ended = [&](const WorkResult& result) { lines << result.work.bucket.text() << ' ' << name_of(result.outcome) << std::endl; };
  std::vector<Work> works;
  for (int i = 0; i < 24; ++i) works.push_back({AttentionSpec{}, Bucket{i % 8, 10 + i / 8}, {0}});
  const SessionReport report = run_session(context, {}, works);
  for (const auto& problem : store->problems()) std::printf("%s\n", problem.c_str());
  return report.complete() && store->problems().empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "serve") {
    if (fs::exists(fs::path(argv[2]) / "broken")) return 7;
    PretendedHost host(argv[2]);
    return serve_worker(STDIN_FILENO, host);
  }
  if (verb == "parent" && argc == 4) return wait_to_be_killed(argv[0], argv[2], KernelConfig::from_json(argv[3]));
  if (verb == "session" && argc == 4) return run_session_on(argv[2], argv[3]);
  std::fprintf(stderr, "usage: tuner_worker_helper serve DIR | parent DIR CONFIG | session STORE LOG\n");
  return 2;
}
