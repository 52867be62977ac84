// The `pagetune` program.
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "pagetune/error.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/verbs.hpp"

int main(int argc, char** argv) {
  using namespace pagetune;
  using namespace pagetune::cli;
  CLI::App app{"Generates, tunes and serves attention kernels for paged KV caches.\nExit codes: 0 done, 1 failed, 2 usage, 3 partly done, 4 no device."};
  app.require_subcommand(1);
  Run run;
  for (auto add : {add_info, add_tune, add_plan, add_prewarm, add_bench, add_ab, add_export, add_merge, add_import, add_report, add_explain, add_gen, add_fastdeploy, add_simulate, add_doctor, add_stats,
                   add_verify, add_gc, add_worker})
    add(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    return app.exit(wrong) == 0 ? kDone : kUsage;
  }
  try {
    return run();
  } catch (const UsageError& wrong) {
    fmt::print(stderr, "pagetune: {}\n", wrong.what());
    return kUsage;
  } catch (const Error& failure) {
    fmt::print(stderr, "pagetune: {}\n", failure.what());
    return failure.code() == ErrorCode::no_device ? kNoDevice : kFailed;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "pagetune: {}\n", failure.what());
    return kFailed;
  }
}
