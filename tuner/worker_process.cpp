#include "tuner/worker_process.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tuner/budget.hpp"
#include "tuner/worker_messages.hpp"

extern char** environ;

namespace pagetune {
namespace {

using Json = nlohmann::json;

// Far above the longest message, which names all configs of a bucket.
constexpr size_t kMostBytes = 4 << 20;
// A process that has closed its socket ends at once; one that was killed ends when the driver lets it.
constexpr double kEndingS = 1, kKilledS = 10;

// Signals by which a process ends for what it did itself. All others come from somebody else: a user, the kernel out of memory.
bool is_own_fault(int signal) {
  constexpr int kOwn[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
  return std::find(std::begin(kOwn), std::end(kOwn), signal) != std::end(kOwn);
}

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string excerpt(const std::string& answer) {
  std::string text = answer.substr(0, 60);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw WorkerUnavailable(ErrorCode::internal, fmt::format("no socket for a worker process: {}", std::strerror(errno)));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  // A process group of its own: Ctrl-C at the terminal is for the session to answer.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int failure = posix_spawn(&pid_, command.front().c_str(), &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  socket_ = ends[0];
  if (failure != 0) {
    close(socket_);
    throw WorkerUnavailable(ErrorCode::internal, fmt::format("the worker process '{}' cannot be started: {}", command.front(), std::strerror(failure)));
  }
}

WorkerProcess::~WorkerProcess() {
  close(socket_);
  kill_and_reap();
}

Json WorkerProcess::ask(const char* what, Json request, double timeout_s) {
  const double end_s = steady_seconds() + timeout_s;
  request["do"] = what;
  request["id"] = ++requests_;
  send(request.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", end_s, timeout_s);
  const std::string line = receive(end_s, timeout_s);
  WorkerAnswer answer;
  try {
    answer = answer_from_line(line, requests_);
  } catch (const std::exception&) {
    lose(fmt::format("gave an answer that is none: '{}'", excerpt(line)));
  }
  if (!answer.error) return std::move(answer.ok);
  // Such a process answers with errors for ever.
  if (answer.error->code() == ErrorCode::context_lost) lose(fmt::format("lost its device context: {}", answer.error->what()));
  throw Error(*answer.error);
}

void WorkerProcess::send(const std::string& line, double end_s, double timeout_s) {
  for (size_t done = 0; done < line.size();) {
    wait_ready(POLLOUT, end_s, timeout_s);
    const ssize_t sent = ::send(socket_, line.data() + done, line.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0)
      done += static_cast<size_t>(sent);
    else if (errno != EINTR && errno != EAGAIN)
      lose_ended();
  }
}

std::string WorkerProcess::receive(double end_s, double timeout_s) {
  std::string text;
  while (text.empty() || text.back() != '\n') {
    wait_ready(POLLIN, end_s, timeout_s);
    char buffer[4096];
    const ssize_t got = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) lose_ended();
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMostBytes) lose(fmt::format("gave an answer of more than {} MiB", kMostBytes >> 20));
  }
  return text;
}

void WorkerProcess::wait_ready(short events, double end_s, double timeout_s) {
  for (;;) {
    const double left_s = end_s - steady_seconds();
    if (left_s <= 0) lose(fmt::format("did not answer within {:.3g} s", timeout_s));
    pollfd ready{socket_, events, 0};
    if (poll(&ready, 1, static_cast<int>(std::min(left_s, 1e6) * 1e3) + 1) > 0) return;
  }
}

void WorkerProcess::lose(const std::string& what) {
  kill_and_reap();
  throw WorkerLost(what, true);
}

void WorkerProcess::lose_ended() {
  const int status = reap(kEndingS);
  if (status == -1) lose("closed its connection");
  if (WIFSIGNALED(status)) throw WorkerLost("was killed by " + signal_text(WTERMSIG(status)), is_own_fault(WTERMSIG(status)));
  throw WorkerLost(fmt::format("ended with exit code {}", WEXITSTATUS(status)), true);
}

int WorkerProcess::reap(double seconds) {
  const double end_s = steady_seconds() + seconds;
  while (pid_ > 0) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno != EINTR)) {
      pid_ = -1;
      return ended < 0 ? -1 : status;
    }
    if (steady_seconds() >= end_s) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return -1;
}

void WorkerProcess::kill_and_reap() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  reap(kKilledS);
}

bool WorkerSocket::read_line(std::string& line) {
  for (;;) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return true;
    }
    if (pending_.size() > kMostBytes) throw Error(ErrorCode::io, fmt::format("a request of more than {} MiB", kMostBytes >> 20));
    char buffer[4096];
    const ssize_t got = recv(socket_, buffer, sizeof buffer, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) pending_.append(buffer, static_cast<size_t>(got));
  }
}

void WorkerSocket::write_line(const std::string& line) const {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t sent = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) throw Error(ErrorCode::io, fmt::format("the answer could not be sent: {}", std::strerror(errno)));
    done += static_cast<size_t>(std::max<ssize_t>(sent, 0));
  }
}

// Not PR_SET_PDEATHSIG: that follows the thread that started the process, and compiles are started by threads that end before their workers do.
void die_with_parent(int socket) {
  std::thread([socket] {
    pollfd closed{socket, 0, 0};  // the end of a connection is always reported
    while (poll(&closed, 1, -1) <= 0) {
    }
    _exit(1);
  }).detach();
}

}  // namespace pagetune
