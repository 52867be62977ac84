#include "tuner/cli/progress.hpp"

#include <csignal>
#include <cstdio>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace pagetune::cli {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

// "2026-12-01T00:15:42.123Z"
std::string utc_now() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", day, now.tv_nsec / 1'000'000);
}

extern "C" void on_interrupt(int) {
  stop_requested = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

ProgressLine::ProgressLine(bool quiet, std::string device) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1), device_(std::move(device)) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text, const char* name, const Event& event) {
  if (quiet_) return;
  if (!terminal_) return note(name, event);
  if (device_.empty())
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
  else
    std::fprintf(stderr, "%s: %s\n", device_.c_str(), text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::note(const char* name, const Event& event) const {
  if (quiet_ || terminal_) return;
  Event line{{"event", name}, {"time", utc_now()}};
  if (!device_.empty()) line["device"] = device_;
  line.update(event);
  // One write, so that the lines of several devices do not mix.
  const std::string text = line.dump(-1, ' ', false, Event::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!shown_ || !terminal_ || !device_.empty()) return;
  std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void catch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return stop_requested != 0; }

}  // namespace pagetune::cli
