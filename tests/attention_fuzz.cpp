// Random specs, configs and problems against the fp64 oracle, on poisoned guarded memory.
//   attention_fuzz --count N --seed S [--device D] [--threads T] [--kernel K]
// N problems, eight for each compiled kernel. Kernels are compiled and references computed on T threads, launches come from one. The same
// numbers give the same cases on the same target; --kernel runs one kernel's problems alone. Status 1 after a mismatch, 2 for a bad command line.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "codegen/launch_plan.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "runtime/build.hpp"
#include "runtime/device.hpp"
#include "runtime/launch.hpp"
#include "tuner/numeric.hpp"
#include "tuner/problem.hpp"

namespace pagetune {
namespace {

constexpr int kProblemsPerKernel = 8;
constexpr int kMismatchLimit = 10;
// Products of one problem's reference: about 20 ms of one core.
constexpr int64_t kWorkLimit = 20'000'000;

struct Options {
  int count = 80;
  uint64_t seed = 1;
  std::string device = "cpu";
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int kernel = -1;
};

class Draw : public Random {
 public:
  using Random::Random;
  bool percent(int share) { return below(100) < share; }
  int between(int least, int most) { return least + below(most - least + 1); }
  template <class T>
  T one_of(std::initializer_list<T> values) { return values.begin()[below(static_cast<int>(values.size()))]; }
};

int random_dim(Draw& draw) { return draw.percent(40) ? draw.one_of({64, 128}) : 8 * draw.between(1, 32); }

AttentionSpec random_spec(Draw& draw) {
  AttentionSpec spec;
  spec.kv_heads = draw.percent(90) ? draw.between(1, 4) : draw.one_of({5, 8});
  const int group = draw.percent(90) ? draw.between(1, 16) : draw.one_of({17, 24, 33, 71});
  spec.q_heads = spec.kv_heads * group;
  spec.head_dim_k = random_dim(draw);
  spec.head_dim_v = draw.percent(75) ? spec.head_dim_k : random_dim(draw);
  spec.page_size = draw.percent(50) ? 16 : draw.one_of({1, 2, 3, 5, 7, 8, 12, 32, 33, 64, 128, 528});
  spec.q_len = draw.percent(50) ? 1 : draw.between(2, 16);
  spec.kv_dtype = spec.q_dtype = draw.one_of({DType::bf16, DType::fp16, DType::fp32});
  spec.out_dtype = draw.percent(80) ? spec.q_dtype : draw.one_of({DType::bf16, DType::fp16, DType::fp32});
  spec.layout = draw.percent(50) ? Layout::nhd : Layout::hnd;
  spec.headwise = draw.percent(35);
  if (spec.headwise && draw.percent(50)) spec.address_map = AddressMap::flat;
  spec.window = draw.percent(40);
  spec.sink_tokens = spec.window && draw.percent(40);
  spec.chunk = draw.percent(15);
  spec.sinks = draw.percent(25);
  spec.soft_cap = draw.percent(20);
  spec.alibi = draw.percent(20);
  spec.block_sparse = draw.percent(12);
  if (spec.q_len > 1 && draw.percent(25)) spec.mask = MaskKind::tree;
  else if (draw.percent(12)) spec.mask = MaskKind::offset;
  spec.lse = draw.percent(75);
  spec.checked = draw.percent(10);
  spec.batch_invariant = draw.percent(10);
  return spec;
}

int random_length(Draw& draw, const AttentionSpec& spec, int most) {
  int length = 0;
  switch (draw.below(6)) {
    case 0: length = draw.between(0, 2); break;
    case 1: length = spec.page_size * draw.between(0, 4) + draw.between(-1, 1); break;
    case 2: length = 16 * draw.between(0, 20) + draw.between(-1, 1); break;
    case 3: length = draw.between(0, spec.q_len + 2); break;
    case 4: length = most; break;
    default: length = draw.between(0, most);
  }
  return std::clamp(length, 0, most);
}

ProblemShape random_problem(Draw& draw, const AttentionSpec& spec) {
  ProblemShape shape{.spec = spec, .seed = draw.next() >> 1};
  const int batch = draw.percent(20) ? 1 : draw.between(1, 7);
  const int64_t per_token = int64_t{batch} * spec.rows() * spec.kv_heads * (spec.head_dim_k + spec.head_dim_v);
  const int most = static_cast<int>(std::clamp<int64_t>(kWorkLimit / per_token, 4, draw.percent(10) ? 3000 : 700));
  if (spec.headwise && draw.percent(50)) {
    for (int i = 0; i < batch * spec.kv_heads; ++i) shape.head_lens.push_back(random_length(draw, spec, most));
  } else {
    for (int i = 0; i < batch; ++i) shape.lens.push_back(random_length(draw, spec, most));
  }
  if (spec.q_len > 1 && draw.percent(50)) {
    const int beyond = draw.percent(10) ? 2 : 0;
    for (int i = 0; i < batch; ++i) shape.q_lens.push_back(draw.between(0, spec.q_len + beyond));
  }
  shape.placement = draw.one_of({Placement::contiguous, Placement::padded, Placement::interleaved, Placement::sliced});
  if (spec.head_dim_k != spec.head_dim_v && (shape.placement == Placement::interleaved || shape.placement == Placement::sliced)) shape.placement = Placement::padded;
  shape.unseen = draw.one_of({Unseen::mixed, Unseen::recycled, Unseen::kept});
  if (!spec.headwise && draw.percent(20)) shape.shared_pages = draw.between(1, 4);
  if (draw.percent(20)) shape.absent = draw.one_of({0.1, 0.5, 0.9});
  if (draw.percent(10)) shape.table_width = draw.between(1, 1 + most / spec.page_size);
  if (draw.percent(20)) shape.scale = static_cast<float>(draw.uniform(-1, 1));
  if (draw.percent(30)) {
    shape.q_stride_token = int64_t{spec.q_heads + 2 * spec.kv_heads} * spec.head_dim_k;
    shape.out_stride_token = int64_t{spec.q_heads} * spec.head_dim_v + 8 * draw.between(0, 9);
  }
  if (shape.q_lens.empty() && draw.percent(20)) {
    const auto dense = [&](int64_t token, int dim) { return spec.q_len * (token != 0 ? token : int64_t{spec.q_heads} * dim); };
    shape.q_stride_seq = dense(shape.q_stride_token, spec.head_dim_k) + 8 * draw.between(0, 9);
    shape.out_stride_seq = dense(shape.out_stride_token, spec.head_dim_v) + 8 * draw.between(0, 9);
  }
  return shape;
}

struct Problem {
  std::unique_ptr<HostProblem> host;
  Reference expected;
  unsigned flags = 0;
};

// One kernel and its problems, made by a worker.
struct Case {
  int index = 0;
  AttentionSpec spec;
  KernelConfig config;
  std::optional<Binary> binary;
  std::vector<Problem> problems;
  std::string failure;  // why there is no kernel
};

class Fuzzer {
 public:
  Fuzzer(const Options& options, Device& device) : options_(options), device_(device), store_(Store::open(":memory:")) {}

  int run() {
    const int kernels = options_.kernel >= 0 ? 1 : (options_.count + kProblemsPerKernel - 1) / kProblemsPerKernel;
    std::vector<std::thread> workers;
    for (int t = 0; t < options_.threads; ++t) {
      workers.emplace_back([&] {
        for (int i; (i = next_.fetch_add(1)) < kernels;) put(make(options_.kernel >= 0 ? options_.kernel : i));
      });
    }
    for (int done = 0; done < kernels; ++done) launch(take());
    for (std::thread& worker : workers) worker.join();
    fmt::print("{} problems on {} kernels, {} wrong; {} specs drawn that {} refuses\n", problems_, kernels, mismatches_, refused_.load(), device_.id());
    return mismatches_ > 0 ? 1 : 0;
  }

 private:
  Case make(int index) {
    Case result;
    result.index = index;
    try {
      Draw draw(options_.seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(index));
      constexpr int kDraws = 2000;
      for (int i = 0;; ++i) {
        result.spec = random_spec(draw);
        if (supports(result.spec, device_.target())) break;
        refused_.fetch_add(1);
        if (i == kDraws) throw Error(ErrorCode::unsupported, fmt::format("{} specs in a row are refused, the last one since {}", kDraws, supports(result.spec, device_.target()).reason));
      }
      const std::vector<KernelConfig> configs = ConfigSpace::builtin().candidates(result.spec, device_.target()).configs;
      if (configs.empty()) throw Error(ErrorCode::internal, "the config space admits no config");
      result.config = configs[static_cast<size_t>(draw.below(static_cast<int>(configs.size())))];
      result.binary = build_binary(device_.compiler(), *store_, result.spec, result.config, device_.target());
      for (int i = 0; i < kProblemsPerKernel; ++i) {
        Problem problem;
        problem.host = std::make_unique<HostProblem>(random_problem(draw, result.spec));
        problem.expected = reference_here(result.spec, problem.host->params());
        problem.flags = draw.percent(30) ? PT_LAUNCH_OVERLAP : 0;
        result.problems.push_back(std::move(problem));
      }
    } catch (const std::exception& error) {
      result.failure = error.what();
    }
    return result;
  }

  void launch(Case made) {
    if (mismatches_ >= kMismatchLimit) return;
    if (!made.failure.empty()) return report(made, nullptr, made.failure);
    try {
      const auto module = device_.load(*made.binary);
      const LaunchPlan plan(made.config, device_.target());
      for (const Problem& problem : made.problems) {
        ++problems_;
        DeviceProblem on_device(device_, *problem.host);
        on_device.set_flags(problem.flags);
        on_device.run(*module, plan);
        const Check check = on_device.check(problem.expected);
        if (!check.ok) report(made, &problem, check.what);
        const Outputs first = on_device.outputs();
        on_device.run(*module, plan);
        if (check.ok && !(on_device.outputs() == first)) report(made, &problem, "a second run gave other bits");
      }
    } catch (const std::exception& error) {
      report(made, nullptr, error.what());
    }
  }

  void report(const Case& made, const Problem* problem, const std::string& what) {
    ++mismatches_;
    fmt::print("WRONG: --seed {} --kernel {}{}: {}\n  config {}\n  {}\n", options_.seed, made.index, problem != nullptr ? fmt::format(", problem {}", problem - made.problems.data()) : "", what,
               made.config.canonical_json(), problem != nullptr ? text_of(problem->host->shape()) : canonical_json(made.spec));
    std::fflush(stdout);
  }

  // A few cases wait for their launch, no more: they hold memory.
  void put(Case made) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_.size() < 2 * static_cast<size_t>(options_.threads); });
    ready_.push(std::move(made));
    changed_.notify_all();
  }
  Case take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    Case made = std::move(ready_.front());
    ready_.pop();
    changed_.notify_all();
    return made;
  }

  const Options& options_;
  Device& device_;
  std::shared_ptr<Store> store_;
  std::atomic<int> next_{0}, refused_{0};
  int problems_ = 0, mismatches_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Case> ready_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw Error(ErrorCode::invalid_argument, name + " needs a value");
    const char* value = argv[i + 1];
    char* end = nullptr;
    const long long number = std::strtoll(value, &end, 10);
    if (name == "--device") {
      options.device = value;
      continue;
    }
    if (*value == '\0' || *end != '\0' || number < 0) throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}': it must be a number", name, value));
    if (name == "--count") options.count = static_cast<int>(number);
    else if (name == "--seed") options.seed = static_cast<uint64_t>(number);
    else if (name == "--threads") options.threads = static_cast<int>(std::max(1LL, number));
    else if (name == "--kernel") options.kernel = static_cast<int>(number);
    else throw Error(ErrorCode::invalid_argument, fmt::format("{} is unknown: allowed are --count, --seed, --device, --threads, --kernel", name));
  }
  return options;
}

}  // namespace
}  // namespace pagetune

int main(int argc, char** argv) {
  try {
    const pagetune::Options options = pagetune::parse(argc, argv);
    return pagetune::Fuzzer(options, *pagetune::open_device(options.device)).run();
  } catch (const pagetune::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
