#include "tuner/cli/progress.hpp"

#include <csignal>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace pagetune::cli {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

extern "C" void on_interrupt(int) {
  stop_requested = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

ProgressLine::ProgressLine(bool quiet, std::string prefix)
    : quiet_(quiet), terminal_(prefix.empty() && isatty(STDERR_FILENO) == 1), prefix_(std::move(prefix)) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text) {
  if (quiet_) return;
  if (terminal_)
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
  else
    std::fprintf(stderr, "%s%s\n", prefix_.c_str(), text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_ || !terminal_) return;
  std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void catch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return stop_requested != 0; }

}  // namespace pagetune::cli
