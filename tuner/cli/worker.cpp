#include "tuner/worker.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

int run_worker() {
  struct stat input{};
  if (fstat(STDIN_FILENO, &input) != 0 || !S_ISSOCK(input.st_mode))
    throw UsageError("worker takes no commands: `pagetune tune` starts it, with a socket for its standard input");
  return serve_worker(STDIN_FILENO, *make_worker_host());
}

}  // namespace

void add_worker(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("worker", "Build, verify and time candidates for `pagetune tune`")->group("");
  verb->callback([&run] { run = run_worker; });
}

}  // namespace pagetune::cli
