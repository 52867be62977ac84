// Decode attention over head shapes, batches, lengths and pages: the tables of docs/decode.md, one JSON line per measurement.
//   bench_decode [--shapes 32/8/128] [--batch-len 1x1024,8x8192] [--pages 16,64] [--uniform] [--ragged] [--headwise] [--gpt-oss] [--long-graph]
//                [--tune SECONDS] [--configs tuned|default|both] [--out FILE]
//   bench_decode --prepare sm_90a [the same choice]      compiles the candidates ahead, without a device
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "codegen/support.hpp"
#include "decode_cases.hpp"
#include "decode_kernels.hpp"
#include "pagetune/error.hpp"
#include "tuner/bench_line.hpp"
#include "tuner/budget.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/options.hpp"
#include "tuner/cli/progress.hpp"
#include "tuner/cli/tune.hpp"

namespace pagetune::bench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Arguments {
  std::vector<std::string> shapes, batch_len;
  std::vector<int> pages;
  bool uniform = false, ragged = false, headwise = false, gpt_oss = false, long_graph = false;
  double limit_gib = 0, tune_s = 0;
  std::string configs = "tuned", out, peers, device = "auto", prepare;
  bool brief = false;
};

// "32/8/128" and "8x1024": positive numbers with `separator` between them.
std::vector<int> numbers_of(const std::string& text, char separator, size_t count, const char* option) {
  std::vector<int> numbers;
  for (const std::string& word : CLI::detail::split(text, separator)) {
    const bool digits = !word.empty() && word.size() < 8 && word.find_first_not_of("0123456789") == std::string::npos;
    numbers.push_back(digits ? std::stoi(word) : 0);
  }
  if (numbers.size() != count || *std::min_element(numbers.begin(), numbers.end()) < 1)
    throw cli::UsageError(fmt::format("{}: '{}' is not {} numbers above zero with '{}' between them", option, text, count, separator));
  return numbers;
}

std::vector<Group> cases_of(const Arguments& arguments) {
  Choice choice;
  choice.pages = arguments.pages;
  for (const std::string& text : arguments.shapes) {
    const std::vector<int> n = numbers_of(text, '/', 3, "--shapes");
    if (n[0] % n[1] != 0) throw cli::UsageError(fmt::format("--shapes: in '{}' the query heads are no multiple of the KV heads", text));
    choice.shapes.push_back({n[0], n[1], n[2]});
  }
  for (const std::string& text : arguments.batch_len) {
    const std::vector<int> n = numbers_of(text, 'x', 2, "--batch-len");
    choice.batch_len.emplace_back(n[0], n[1]);
  }
  const bool all = !(arguments.uniform || arguments.ragged || arguments.headwise || arguments.gpt_oss || arguments.long_graph);
  std::vector<Group> groups;
  const auto add = [&](const std::vector<Group>& more) { groups.insert(groups.end(), more.begin(), more.end()); };
  if (all || arguments.uniform) add(plain_cases(choice, false));
  if (all || arguments.ragged) add(plain_cases(choice, true));
  if (all || arguments.headwise) add(headwise_cases(choice));
  if (all || arguments.gpt_oss) add(gpt_oss_cases(choice));
  if (all || arguments.long_graph) add(long_graph_cases(choice));
  return groups;
}

// Removes the groups that cannot be measured here; says why and returns how many.
int drop_unfit(std::vector<Group>& groups, const Target& target, size_t memory_limit) {
  const auto reason_of = [&](const Group& group) -> std::string {
    for (const DecodeCell& cell : group.cells) {
      if (const Support support = supports(cell.spec, target); !support) return support.reason;
      const auto bytes = static_cast<double>(cache_bytes(cell));
      if (bytes > static_cast<double>(memory_limit)) return fmt::format("K and V of {:.1f} GiB do not fit the limit of {:.1f} GiB", bytes / (1 << 30), static_cast<double>(memory_limit) / (1 << 30));
    }
    return "";
  };
  const size_t before = groups.size();
  std::erase_if(groups, [&](const Group& group) {
    const std::string reason = reason_of(group);
    if (!reason.empty()) fmt::print(stderr, "left out: {}: {}\n", group.text, reason);
    return !reason.empty();
  });
  return static_cast<int>(before - groups.size());
}

class Run {
 public:
  Run(const Arguments& arguments, Device& device, Store& store, std::vector<Group> groups, size_t memory_limit)
      : arguments_(arguments), device_(device), store_(store), groups_(std::move(groups)), memory_limit_(memory_limit), peers_(open_peers(arguments.peers, name())),
        lines_(arguments.out, arguments.brief), policy_(MeasurePolicy::for_backend(device.target().backend)) {}

  int all(int left_out) {
    const auto begin = Clock::now();
    if (arguments_.tune_s > 0) tune();
    choose();
    build();
    KvPool pool(device_);
    for (size_t g = 0; g < groups_.size() && !cli::interrupted(); ++g) measure(groups_[g], lines_of_[g], pool);
    const double other = seconds_since(begin) - compiling_s_ - tuning_s_ - seconds_.building - seconds_.problems - seconds_.checks - seconds_.timing;
    fmt::print(stderr, "{} measured, {} failed, {} left out; compiling {}, tuning {}, problems {}, checks {}, timing {}, other {}\n", measured_, failed_, left_out,
               duration_text(compiling_s_ + seconds_.building), duration_text(tuning_s_), duration_text(seconds_.problems), duration_text(seconds_.checks), duration_text(seconds_.timing),
               duration_text(std::max(0.0, other)));
    cli::print_problems(store_);
    if (measured_ == 0) return cli::kFailed;
    return failed_ > 0 || cli::interrupted() ? cli::kPartly : cli::kDone;
  }

 private:
  const std::string& name() const { return device_.environment().device; }

  // One line of the output: a contender with the configs of its passes.
  struct Line {
    const Contender* contender;
    Way way;
    bool tuned;
  };

  // First the candidates of all specs side by side, so that the device does not wait for the compiler at each spec.
  void tune() {
    const auto begin = Clock::now();
    cli::Workset set{std::shared_ptr<Device>(&device_, [](Device*) {}), policy_, {}};
    set.list.works = works_of(groups_, memory_limit_);
    std::vector<Work> todo = set.list.works;
    std::erase_if(todo, [&](const Work& work) { return current_winner(store_, device_.environment().key(), work, device_.target(), policy_).has_value(); });
    const KernelList kernels = candidate_kernels(todo, device_.target(), store_, device_.environment().key());
    constexpr double kShare = 0.4;  // of the budget
    const int64_t built = build_kernels(device_.compiler(), store_, device_.target(), kernels, kShare * arguments_.tune_s);
    compiling_s_ += seconds_since(begin);
    fmt::print(stderr, "{} works, {} of them to do; {} kernels, {} of them ready after {}\n", set.list.works.size(), todo.size(), kernels.size(), built, duration_text(seconds_since(begin)));

    const auto start = Clock::now();
    const SessionReport report = cli::tune_workset(set, store_, std::max(1.0, arguments_.tune_s - seconds_since(begin)), false, false);
    tuning_s_ += seconds_since(start);
    for (const std::string& wrong : report.wrong) fmt::print(stderr, "blocked: {}\n", wrong);
    for (const WorkResult& work : report.works)
      if (work.outcome == Outcome::failed) fmt::print(stderr, "not tuned: {}, bucket {}: {}\n", spec_text(work.work.spec), work.work.bucket.text(), work.message);
    fmt::print(stderr, "{} tuned, {} stored before, {} failed, {} not reached\n", report.count(Outcome::tuned), report.count(Outcome::stored_before), report.count(Outcome::failed),
               report.count(Outcome::not_reached));
  }

  void choose() {
    const std::vector<std::string> sources = arguments_.configs == "both" ? std::vector<std::string>{"tuned", "default"} : std::vector<std::string>{arguments_.configs};
    ConfigChooser chooser(device_, store_);
    for (const Group& group : groups_) {
      std::vector<Line> lines;
      for (const Contender& contender : group.contenders) {
        const size_t first = lines.size();
        for (const std::string& source : sources) {
          Line line{&contender, {}, false};
          for (size_t k = 0; k < contender.passes.size(); ++k) {
            const size_t cell = contender.passes[k];
            const Chosen chosen = chooser.choose(source, group.cells[cell].spec, contender.calls[k]).front();
            line.way.push_back({cell, chosen.config});
            line.tuned |= chosen.tuned;
          }
          const auto same = [&](const Line& other) { return std::equal(line.way.begin(), line.way.end(), other.way.begin(), [](const Pass& a, const Pass& b) { return a.config == b.config; }); };
          if (std::none_of(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end(), same)) lines.push_back(line);
        }
      }
      lines_of_.push_back(std::move(lines));
    }
  }

  void build() {
    const auto begin = Clock::now();
    KernelList kernels;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (const Line& line : lines_of_[g])
        for (const Pass& pass : line.way) add_kernel(kernels, groups_[g].cells[pass.cell].spec, pass.config);
    build_kernels(device_.compiler(), store_, device_.target(), kernels, 1e9);
    compiling_s_ += seconds_since(begin);
  }

  void measure(const Group& group, const std::vector<Line>& lines, KvPool& pool) {
    try {
      std::vector<Way> ways;
      for (const Line& line : lines) ways.push_back(line.way);
      const std::vector<Measured> results = measure_ways(device_, store_, group.cells, ways, policy_, {memory_limit_, &pool, &seconds_});
      for (size_t i = 0; i < results.size(); ++i) {
        if (results[i].correct) {
          write(lines[i], results[i]);
          continue;
        }
        ++failed_;
        fmt::print(stderr, "wrong result: {}, {}: {}\n", group.text, results[i].config.canonical_json(), results[i].what);
      }
    } catch (const Error& failure) {
      ++failed_;
      fmt::print(stderr, "failed: {}: {}\n", group.text, failure.what());
    }
  }

  void write(const Line& line, const Measured& measured) {
    BenchLine json = line_of(name(), line.contender->cell, measured, line.tuned, policy_.overlap != 0, peers_);
    if (line.way.size() > 1) {
      std::string configs;
      for (const Pass& pass : line.way) configs += (configs.empty() ? "[" : ",") + pass.config.canonical_json();
      json["config"] = configs + "]";
    }
    if (!line.contender->name.empty()) json["case"] = line.contender->name;
    lines_.write(json);
    ++measured_;
  }

  const Arguments& arguments_;
  Device& device_;
  Store& store_;
  std::vector<Group> groups_;
  size_t memory_limit_;
  Peers peers_;
  Lines lines_;
  MeasurePolicy policy_;
  std::vector<std::vector<Line>> lines_of_;  // by group
  BenchSeconds seconds_;
  double compiling_s_ = 0, tuning_s_ = 0;
  int measured_ = 0, failed_ = 0;
};

// Needs no device: the store is carried to one, whose NVRTC must be of the same version.
int prepare(const Arguments& arguments, std::vector<Group> groups) {
  const Target target = Target::by_name(arguments.prepare);
  const size_t limit = arguments.limit_gib > 0 ? static_cast<size_t>(arguments.limit_gib * (1 << 30)) : SIZE_MAX;
  drop_unfit(groups, target, limit);
  const auto store = Store::open();
  cli::catch_interrupt();
  const auto begin = Clock::now();
  const KernelList kernels = candidate_kernels(works_of(groups, limit), target, *store, "");
  const int64_t built = build_kernels(compiler_for(target), *store, target, kernels, arguments.tune_s > 0 ? arguments.tune_s : 1e9);
  fmt::print("{} of {} kernels for {} are in {} after {}\n", built, kernels.size(), target.arch, store->dir(), duration_text(seconds_since(begin)));
  cli::print_problems(*store);
  return built == static_cast<int64_t>(kernels.size()) ? cli::kDone : cli::kPartly;
}

int run(const Arguments& arguments) {
  std::vector<Group> groups = cases_of(arguments);
  if (!arguments.prepare.empty()) return prepare(arguments, std::move(groups));
  const std::shared_ptr<Device> device = cli::one_device(arguments.device);
  const size_t free = device->free_bytes() / 10 * 9;
  const size_t limit = arguments.limit_gib > 0 ? std::min(free, static_cast<size_t>(arguments.limit_gib * (1 << 30))) : free;
  const int left_out = drop_unfit(groups, device->target(), limit);
  const auto store = Store::open();
  cli::catch_interrupt();
  return Run(arguments, *device, *store, std::move(groups), limit).all(left_out);
}

}  // namespace
}  // namespace pagetune::bench

int main(int argc, char** argv) {
  using namespace pagetune;
  bench::Arguments arguments;
  CLI::App app("Measures decode attention over head shapes, batches, lengths and pages; without a choice, everything");
  app.add_option("--shapes", arguments.shapes, "Query heads / KV heads / head dim: 32/8/128,64/8/64")->delimiter(',');
  app.add_option("--batch-len", arguments.batch_len, "Batch x longest length: 1x1024,8x8192")->delimiter(',');
  app.add_option("--pages", arguments.pages, "Tokens of a page: 16,64")->delimiter(',')->check(CLI::Range(1, 65536));
  app.add_flag("--uniform", arguments.uniform, "Sequences of one length");
  app.add_flag("--ragged", arguments.ragged, "Lengths spread from len / 16 to len");
  app.add_flag("--headwise", arguments.headwise, "20/4/128 with half of the KV heads windowed, against one table without windows and against two passes");
  app.add_flag("--gpt-oss", arguments.gpt_oss, "64/8/64 with learned sinks, windowed at 128 and full");
  app.add_flag("--long-graph", arguments.long_graph, "A graph prepared for 131072 tokens at a length of 200, against one captured for 200");
  app.add_option("--limit-gib", arguments.limit_gib, "Leave out what takes more memory")->check(CLI::PositiveNumber);
  app.add_option("--tune", arguments.tune_s, "Seconds to tune the chosen cells in first; winners go to the store")->check(CLI::PositiveNumber);
  app.add_option("--configs", arguments.configs, "tuned (what an engine gets), default (without any measurement), both")->check(CLI::IsMember({"tuned", "default", "both"}))->capture_default_str();
  app.add_option("--out", arguments.out, "Also write the lines to this file, after a first line with the command");
  app.add_option("--peers", arguments.peers, "File with other kernels' times; else the one of this device below bench/peers");
  app.add_flag("--brief", arguments.brief, "Short lines on stdout; the file of --out has the JSON lines");
  cli::add_device_option(app, arguments.device);
  app.add_option("--prepare", arguments.prepare, "Only compile the candidates of the chosen cells for a target (sm_90a) into the store; needs no device");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    return app.exit(wrong) == 0 ? cli::kDone : cli::kUsage;
  }
  try {
    return bench::run(arguments);
  } catch (const cli::UsageError& wrong) {
    fmt::print(stderr, "bench_decode: {}\n", wrong.what());
    return cli::kUsage;
  } catch (const Error& failure) {
    fmt::print(stderr, "bench_decode: {}\n", failure.what());
    return failure.code() == ErrorCode::no_device ? cli::kNoDevice : cli::kFailed;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "bench_decode: {}\n", failure.what());
    return cli::kFailed;
  }
}
