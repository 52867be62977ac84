// A cold start as the ranks of an engine make it: fresh processes on one empty store, started together, each of which needs the same twelve kernels.
//   bench_cold_start [--device auto|cpu|cuda:N | --target sm_90a] [--processes 8] [--rounds 5] [--out FILE]
// With a device each process does what an engine does at model load, get_kernel() and prepare() for each kind of layer; with a target it compiles what those would, without a device.
// One line: the median over the rounds until all have their kernels, for one process and for several on empty stores and for several on a full one, and who compiled how much.
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "codegen/launch_plan.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/build.hpp"
#include "runtime/dispatch.hpp"
#include "scratch.hpp"
#include "tuner/bench_line.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/statistics.hpp"
#include "tuner/worker_process.hpp"

namespace pagetune::bench {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kKernels = 12;
constexpr int kMaxBatch = 1, kMaxLen = 4096;  // one sequence: three to seven kernels for each kind of layer of a GPU

// What prepare() of a kernel without winners builds: a config for each binary.
std::vector<KernelConfig> configs_of(const AttentionSpec& spec, const Target& target) {
  const DispatchTable table(spec, target, {});
  std::map<KernelConfig, KernelConfig> shapes;
  for (const CallShape& call : DispatchTable::reachable(kMaxBatch, kMaxLen)) {
    const KernelConfig& config = table.configs()[table.at(call).index];
    shapes.emplace(shape_of(config), config);
  }
  std::vector<KernelConfig> configs;
  for (const auto& [shape, config] : shapes) configs.push_back(config);
  return configs;
}

// Kinds of layers that need twelve kernels together.
std::vector<AttentionSpec> layers_of(const Target& target) {
  std::vector<AttentionSpec> chosen;
  size_t kernels = 0;
  for (const DType type : {DType::bf16, DType::fp16})
    for (const auto [q_heads, kv_heads, dim] : {std::array{28, 4, 128}, {64, 8, 64}, {8, 1, 128}, {32, 8, 128}, {16, 16, 128}, {8, 4, 256}}) {
      AttentionSpec spec;
      spec.q_heads = q_heads;
      spec.kv_heads = kv_heads;
      spec.head_dim_k = spec.head_dim_v = dim;
      spec.q_dtype = spec.kv_dtype = spec.out_dtype = type;
      const size_t more = configs_of(spec, target).size();
      if (kernels + more > kKernels) continue;
      kernels += more;
      chosen.push_back(spec);
    }
  if (kernels != kKernels) throw Error(ErrorCode::internal, fmt::format("on {} the bench's kinds of layers need {} kernels, not {}: add others to layers_of()", target.arch, kernels, kKernels));
  return chosen;
}

// What every process needs: on a device, or compiled for a target.
struct Work {
  std::string device, target;  // one of them is empty
  std::vector<AttentionSpec> layers;
};

// The store's compiles of a process that has all of its kernels.
uint64_t load_all(const Work& work, const std::string& store_dir) {
  const auto store = Store::open(store_dir);
  std::vector<std::shared_ptr<Kernel>> kernels;
  for (const AttentionSpec& spec : work.layers) {
    if (work.target.empty()) {
      kernels.push_back(get_kernel(spec, {.device = work.device, .cache_dir = store_dir}));
      kernels.back()->prepare(kMaxBatch, kMaxLen);
    } else {
      const Target target = Target::by_name(work.target);
      build_binaries(compiler_for(target), *store, spec, configs_of(spec, target), target);
    }
  }
  if (!store->problems().empty()) throw Error(ErrorCode::io, store->problems()[0]);
  return store->counters().compiles;
}

Json work_to_json(const Work& work) {
  Json layers = Json::array();
  for (const AttentionSpec& spec : work.layers) layers.push_back(canonical_json(spec));
  return {{"device", work.device}, {"target", work.target}, {"layers", layers}};
}
Work work_from_json(const Json& json) {
  Work work{json.at("device"), json.at("target"), {}};
  for (const Json& text : json.at("layers")) work.layers.push_back(spec_from_json(text.get<std::string>()));
  return work;
}

// The other side of a started process: it does nothing before it is asked.
int serve() {
  die_with_parent(STDIN_FILENO);
  WorkerSocket requests(STDIN_FILENO);
  for (std::string line; requests.read_line(line);) {
    const Json request = Json::parse(line);
    Json answer{{"id", request.at("id")}};
    try {
      answer["ok"] = request.at("do") == "load" ? load_all(work_from_json(request), request.at("store")) : 0;
    } catch (const Error& failure) {
      answer["error"] = {{"code", static_cast<int>(failure.code())}, {"message", failure.what()}};
    }
    requests.write_line(answer.dump());
  }
  return 0;
}

struct Start {
  double seconds = 0;
  std::vector<uint64_t> compiles;  // of each process
};

Start start(const Work& work, int processes, const std::filesystem::path& store) {
  constexpr double kLimitS = 600;
  std::vector<std::unique_ptr<WorkerProcess>> started;
  for (int p = 0; p < processes; ++p) {
    started.push_back(std::make_unique<WorkerProcess>(std::vector<std::string>{"/proc/self/exe", "--serve"}));
    started.back()->ask("wait", Json::object(), kLimitS);
  }
  Json request = work_to_json(work);
  request["store"] = store.string();
  std::barrier gate(processes + 1);
  std::vector<std::future<uint64_t>> answers;
  for (const auto& process : started)
    answers.push_back(std::async(std::launch::async, [&gate, &process, &request] {
      gate.arrive_and_wait();
      return process->ask("load", request, kLimitS).get<uint64_t>();
    }));
  gate.arrive_and_wait();
  const auto begin = Clock::now();
  for (const auto& answer : answers) answer.wait();
  Start done{std::chrono::duration<double>(Clock::now() - begin).count(), {}};
  for (auto& answer : answers) done.compiles.push_back(answer.get());
  return done;
}

// Several rounds of one kind of start.
struct Rounds {
  std::vector<double> seconds;
  uint64_t most_compiles = 0;    // in all processes of a round
  double compiling_processes = 0;  // that compiled at least one kernel: mean over the rounds

  void add(const Start& one) {
    seconds.push_back(one.seconds);
    uint64_t all = 0;
    for (const uint64_t compiles : one.compiles) {
      all += compiles;
      compiling_processes += compiles > 0 ? 1 : 0;
    }
    most_compiles = std::max(most_compiles, all);
  }
};

struct Arguments {
  std::string device = "auto", target, out;
  int processes = 8, rounds = 5;
  bool serve = false;
};

int run(const Arguments& arguments) {
  const std::string id = arguments.target.empty() ? cli::device_ids(arguments.device).at(0) : "";
  const std::shared_ptr<Device> device = id.empty() ? nullptr : open_device(id);
  const Target target = device ? device->target() : Target::by_name(arguments.target);
  const Work work{id, arguments.target, layers_of(target)};
  Lines lines(arguments.out);
  Rounds one, many, full;
  for (int round = 0; round < arguments.rounds; ++round) {
    const Scratch scratch;
    one.add(start(work, 1, scratch.path() / "one"));
    many.add(start(work, arguments.processes, scratch.path() / "many"));
    full.add(start(work, arguments.processes, scratch.path() / "many"));
  }
  lines.write({{"bench", "cold_start"},
               {"device", device ? device->environment().device : "none: compiled only"},
               {"target", target.arch},
               {"compiler", compiler_for(target).identity()},
               {"cores", std::thread::hardware_concurrency()},
               {"commit", build_commit()},
               {"rounds", arguments.rounds},
               {"kernels", kKernels},
               {"one_s", median(one.seconds)},
               {"processes", arguments.processes},
               {"many_s", median(many.seconds)},
               {"ratio", median(many.seconds) / median(one.seconds)},
               {"full_store_s", median(full.seconds)},
               {"one_compiles", one.most_compiles},
               {"many_compiles", many.most_compiles},
               {"full_store_compiles", full.most_compiles},
               {"compiling_processes", many.compiling_processes / arguments.rounds}});
  const bool each_once = one.most_compiles == kKernels && many.most_compiles == kKernels && full.most_compiles == 0;
  if (!each_once) fmt::print(stderr, "bench_cold_start: {} kernels are due once on an empty store and never on a full one\n", kKernels);
  return each_once ? cli::kDone : cli::kFailed;
}

}  // namespace
}  // namespace pagetune::bench

int main(int argc, char** argv) {
  using namespace pagetune;
  bench::Arguments arguments;
  CLI::App app("Measures how long processes that start together on an empty store take until each has its kernels");
  CLI::Option* target = app.add_option("--target", arguments.target, "Only compile, for this target (sm_90a, cpu); needs no device");
  cli::add_device_option(app, arguments.device);
  app.get_option("--device")->excludes(target);
  app.add_option("--processes", arguments.processes, "How many start together")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "Of which the medians are taken")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--out", arguments.out, "Also write the line to this file, after a first line with the command");
  app.add_flag("--serve", arguments.serve, "Be one of the started processes: a socket is the standard input")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    return app.exit(wrong) == 0 ? cli::kDone : cli::kUsage;
  }
  try {
    return arguments.serve ? bench::serve() : bench::run(arguments);
  } catch (const cli::UsageError& wrong) {
    fmt::print(stderr, "bench_cold_start: {}\n", wrong.what());
    return cli::kUsage;
  } catch (const Error& failure) {
    fmt::print(stderr, "bench_cold_start: {}\n", failure.what());
    return failure.code() == ErrorCode::no_device ? cli::kNoDevice : cli::kFailed;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "bench_cold_start: {}\n", failure.what());
    return cli::kFailed;
  }
}
