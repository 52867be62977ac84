#include "tuner/remote_workbench.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <stdlib.h>

#include "codegen/launch_plan.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::json;

// A process that ends before its first answer may have met a passing want of memory; twice in a row is the machine.
constexpr int kStarts = 2;
// Times what reading memory once should take: no candidate worth timing is slower.
constexpr double kSlack = 30;
// Bytes per second that the slowest GPU, and a CPU with other work, read.
double slow_memory(Backend backend) { return backend == Backend::cuda ? 200e9 : 2e9; }

// Calls `start` until it succeeds, at most kStarts times.
void started(const std::string& device_id, const std::function<void()>& start) {
  for (int n = 1;; ++n) {
    try {
      return start();
    } catch (const WorkerUnavailable&) {
      throw;
    } catch (const Error& failure) {
      if (n < kStarts) continue;
      const char* said = dynamic_cast<const WorkerLost*>(&failure) != nullptr ? "it " : "";
      throw WorkerUnavailable(failure.code(), fmt::format("no worker process for {} can be had: {}{}", device_id, said, failure.what()));
    }
  }
}

WorkerLost lost_while(const WorkerLost& lost, const char* doing) { return {fmt::format("its worker {} while it was {}", lost.what(), doing), lost.by_request()}; }

class RemoteWorkbench final : public Workbench {
 public:
  RemoteWorkbench(Workers& workers, const AttentionSpec& spec, const MeasurePolicy& policy) : workers_(workers), task_(workers.task(spec, policy)) {}

  LaunchFacts build(const KernelConfig& config) override {
    workers_.compile(task_, config);
    const std::lock_guard lock(mutex_);
    return load(config);
  }

  Verdict verify(const KernelConfig& config) override {
    load_if_new(config);
    return decoded(verdict_from_json, "verify", "verified", {{"config", config.canonical_json()}}, workers_.limits().verify_s);
  }

  void open(Bucket bucket, const std::vector<KernelConfig>& configs) override {
    workers_.end_compilers();
    const Opened wanted{bucket, configs};
    ask("open", "opened", opening(wanted), open_s(bucket));
    opened_ = wanted;
  }

  void close() override {
    const double limit_s = opened_ ? open_s(opened_->bucket) : 0;
    opened_.reset();
    if (!begun_) return;
    try {
      workers_.measuring()->ask("close", Json::object(), limit_s);
    } catch (const WorkerLost&) {
      drop();  // and its problem with it
    }
  }

  double sample_us(const KernelConfig& config) override {
    load_if_new(config);
    return decoded(real_from_text, "sample", "timed", {{"config", config.canonical_json()}}, sample_s());
  }

 private:
  struct Opened {
    Bucket bucket;
    std::vector<KernelConfig> configs;
  };

  double bytes(Bucket bucket) const { return static_cast<double>(kv_bytes(task_.spec, static_cast<int64_t>(bucket.batch()) * bucket.len())); }
  double read_s(Bucket bucket) const { return bytes(bucket) / slow_memory(task_.target.backend); }
  double open_s(Bucket bucket) const { return workers_.limits().open_s + kSlack * bytes(bucket) / slow_memory(Backend::cpu); }
  double sample_s() const {
    const double expected_s = opened_ ? task_.policy.launches_per_sample * read_s(opened_->bucket) : 0;
    return std::max(workers_.limits().sample_s, kSlack * expected_s);
  }

  static Json opening(const Opened& opened) { return {{"bucket", bucket_to_json(opened.bucket)}, {"configs", configs_to_json(opened.configs)}}; }

  LaunchFacts load(const KernelConfig& config) {
    const LaunchFacts facts = decoded(facts_from_json, "build", "loaded", {{"config", config.canonical_json()}}, workers_.limits().build_s);
    loaded_.insert(shape_of(config));
    return facts;
  }

  // A new process has no kernels; the store has.
  void load_if_new(const KernelConfig& config) {
    ready();
    if (loaded_.count(shape_of(config)) == 0) load(config);
  }

  // The measuring process as the session believes it to be: begun with this spec, with the open problem.
  void ready() {
    if (begun_) return;
    started(task_.device_id, [&] {
      try {
        WorkerProcess& process = workers_.measuring() != nullptr ? *workers_.measuring() : workers_.start_measuring();
        process.ask("begin", {{"task", task_to_json(task_)}}, workers_.limits().start_s);
        process.ask("open_device", Json::object(), workers_.limits().start_s);
        if (opened_) process.ask("open", opening(*opened_), open_s(opened_->bucket));
        begun_ = true;
      } catch (const Error&) {
        drop();
        throw;
      }
    });
  }

  void drop() {
    workers_.drop_measuring();
    begun_ = false;
    loaded_.clear();
  }

  Json ask(const char* what, const char* doing, const Json& request, double limit_s) {
    return decoded([](const Json& answer) { return answer; }, what, doing, request, limit_s);
  }

  // An answer that cannot be decoded is a crash like any other: what wrote it is not to be trusted any more.
  template <class Decode>
  auto decoded(const Decode& decode, const char* what, const char* doing, const Json& request, double limit_s) -> decltype(decode(Json())) {
    ready();
    try {
      const Json answer = workers_.measuring()->ask(what, request, limit_s);
      try {
        return decode(answer);
      } catch (const std::exception&) {
        throw WorkerLost(fmt::format("gave an answer that is none: '{}'", answer.dump().substr(0, 60)), true);
      }
    } catch (const WorkerLost& lost) {
      drop();
      try {
        ready();  // now, so that the start of a worker is no part of the next candidate's time
      } catch (const WorkerUnavailable&) {
        // The next call says so.
      }
      throw lost_while(lost, doing);
    }
  }

  Workers& workers_;
  WorkerTask task_;
  std::mutex mutex_;                 // of builds, which are called from several threads
  bool begun_ = false;               // the measuring process works on task_
  std::optional<Opened> opened_;
  std::set<KernelConfig> loaded_;    // shapes that the process has
};

}  // namespace

Workers::Workers(std::vector<std::string> command, std::string device_id, Target target, const std::string& store_dir, WorkerLimits limits)
    : command_(std::move(command)), device_id_(std::move(device_id)), target_(std::move(target)), store_dir_(store_dir), limits_(limits) {
  if (store_dir != ":memory:") return;
  std::string made = (std::filesystem::temp_directory_path() / "pagetune-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) throw WorkerUnavailable(ErrorCode::io, fmt::format("no directory '{}' can be made for what the workers compile", made));
  own_store_ = store_dir_ = made;
}

Workers::~Workers() {
  end_compilers();
  drop_measuring();
  std::error_code ignored;
  if (!own_store_.empty()) std::filesystem::remove_all(own_store_, ignored);
}

WorkerTask Workers::task(const AttentionSpec& spec, const MeasurePolicy& policy) const { return {device_id_, target_, store_dir_, spec, policy}; }

WorkerProcess& Workers::start_measuring() {
  measuring_ = std::make_unique<WorkerProcess>(command_);
  return *measuring_;
}

void Workers::compile(const WorkerTask& task, const KernelConfig& config) {
  std::unique_ptr<WorkerProcess> process;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_compilers_.empty()) {
      process = std::move(idle_compilers_.back());
      idle_compilers_.pop_back();
    }
  }
  started(device_id_, [&] {
    if (!process) process = std::make_unique<WorkerProcess>(command_);
    try {
      process->ask("begin", {{"task", task_to_json(task)}}, limits_.start_s);
    } catch (const WorkerLost&) {
      process.reset();
      throw;
    }
  });
  const auto keep = [&] {
    const std::lock_guard lock(mutex_);
    idle_compilers_.push_back(std::move(process));
  };
  try {
    process->ask("compile", {{"config", config.canonical_json()}}, limits_.build_s);
  } catch (const WorkerLost& lost) {
    throw lost_while(lost, "compiled");
  } catch (const Error&) {
    keep();
    throw;
  }
  keep();
}

void Workers::end_compilers() {
  const std::lock_guard lock(mutex_);
  idle_compilers_.clear();
}

std::unique_ptr<Workbench> make_remote_workbench(Workers& workers, const AttentionSpec& spec, const MeasurePolicy& policy) {
  return std::make_unique<RemoteWorkbench>(workers, spec, policy);
}

}  // namespace pagetune
