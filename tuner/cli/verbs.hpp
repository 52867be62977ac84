// The verbs of the program. Each add_…() declares a subcommand whose callback sets `run`.
#pragma once
#include <functional>

#include <CLI/CLI.hpp>

namespace pagetune::cli {

using Run = std::function<int()>;  // returns an ExitCode

void add_info(CLI::App&, Run&);
void add_tune(CLI::App&, Run&);
void add_plan(CLI::App&, Run&);
void add_prewarm(CLI::App&, Run&);
void add_bench(CLI::App&, Run&);
void add_ab(CLI::App&, Run&);
void add_export(CLI::App&, Run&);
void add_merge(CLI::App&, Run&);
void add_import(CLI::App&, Run&);
void add_explain(CLI::App&, Run&);
void add_report(CLI::App&, Run&);
void add_gen(CLI::App&, Run&);
void add_fastdeploy(CLI::App&, Run&);
void add_simulate(CLI::App&, Run&);
void add_doctor(CLI::App&, Run&);
void add_stats(CLI::App&, Run&);
void add_verify(CLI::App&, Run&);
void add_gc(CLI::App&, Run&);
void add_worker(CLI::App&, Run&);  // not for users: what `tune` starts

}  // namespace pagetune::cli
