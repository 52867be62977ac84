#include "tuner/worker.hpp"

#include <csignal>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <sys/prctl.h>

#include "pagetune/error.hpp"
#include "runtime/build.hpp"
#include "tuner/worker_process.hpp"

namespace pagetune {
namespace {

using Json = nlohmann::json;

class DeviceHost final : public WorkerHost {
 public:
  LaunchFacts compile(const WorkerTask& task, const KernelConfig& config) override {
    return build_binary(compiler_for(task.target), store(task), task.spec, config, task.target).facts;
  }
  std::unique_ptr<Workbench> workbench(const WorkerTask& task) override {
    if (!device_) device_ = open_device(task.device_id);
    return make_workbench(*device_, store(task), task.spec, task.policy);
  }

 private:
  Store& store(const WorkerTask& task) {
    if (!store_) store_ = Store::open(task.store_dir);
    return *store_;
  }
  std::shared_ptr<Store> store_;
  std::shared_ptr<Device> device_;
};

class Worker {
 public:
  explicit Worker(WorkerHost& host) : host_(host) {}

  Json answer(const Json& request) {
    const std::string what = request.at("do");
    if (what == "begin") {
      bench_.reset();
      task_ = task_from_json(request.at("task"));
      return true;
    }
    if (!task_) throw Error(ErrorCode::invalid_argument, fmt::format("a worker was asked for '{}' before 'begin'", what));
    const auto config = [&] { return KernelConfig::from_json(request.at("config")); };
    if (what == "compile") return facts_to_json(host_.compile(*task_, config()));
    if (what == "open_device") return bench(), Json(true);
    if (what == "build") return facts_to_json(bench().build(config()));
    if (what == "verify") return verdict_to_json(bench().verify(config()));
    if (what == "open") return bench().open(bucket_from_json(request.at("bucket")), configs_from_json(request.at("configs"))), Json(true);
    if (what == "close") return bench().close(), Json(true);
    if (what == "sample") return real_text(bench().sample_us(config()));
    throw Error(ErrorCode::invalid_argument, fmt::format("a worker was asked for '{}', which it does not know", what));
  }

 private:
  Workbench& bench() {
    if (!bench_) bench_ = host_.workbench(*task_);
    return *bench_;
  }

  WorkerHost& host_;
  std::optional<WorkerTask> task_;
  std::unique_ptr<Workbench> bench_;
};

Json error_json(ErrorCode code, const char* message) { return {{"code", static_cast<int>(code)}, {"message", message}}; }

}  // namespace

std::unique_ptr<WorkerHost> make_worker_host() { return std::make_unique<DeviceHost>(); }

int serve_worker(int socket, WorkerHost& host) {
  prctl(PR_SET_NAME, "pagetune worker");  // which was started as /proc/self/exe
  std::signal(SIGTTOU, SIG_IGN);  // what is said on a terminal's standard error must not stop a process of the background
  die_with_parent(socket);
  Worker worker(host);
  WorkerSocket requests(socket);
  std::string line;
  while (requests.read_line(line)) {
    const Json request = Json::parse(line, nullptr, false);
    Json answer{{"id", request.is_object() ? request.value("id", Json()) : Json()}};
    try {
      answer["ok"] = worker.answer(request);
    } catch (const Error& failure) {
      answer["error"] = error_json(failure.code(), failure.what());
    } catch (const std::exception& failure) {
      answer["error"] = error_json(ErrorCode::internal, failure.what());
    }
    requests.write_line(answer.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return 0;
}

}  // namespace pagetune
