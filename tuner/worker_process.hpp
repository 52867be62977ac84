// WorkerProcess: a fresh process that answers one request at a time over a socket, may die at any of them, and never outlives this process.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

#include "pagetune/error.hpp"

namespace pagetune {

// A worker died or fell silent at a request. what(): "was killed by SIGSEGV", "did not answer within 10 s".
class WorkerLost : public Error {
 public:
  // by_request: false if somebody else ended it (SIGKILL, SIGTERM, …), which says nothing about what it was asked.
  WorkerLost(const std::string& what, bool by_request) : Error(ErrorCode::device_error, what), by_request_(by_request) {}
  bool by_request() const noexcept { return by_request_; }

 private:
  bool by_request_;
};

// No worker can be had, whatever it is asked: the session cannot go on.
class WorkerUnavailable : public Error {
 public:
  using Error::Error;
};

class WorkerProcess {
 public:
  // command: program and arguments; the socket is the process's standard input. Its standard output is this process's standard error.
  // Error WorkerUnavailable if the program cannot be started.
  explicit WorkerProcess(const std::vector<std::string>& command);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // The "ok" of the answer. An "error" of the answer is thrown as the Error that it was. WorkerLost: the process is gone.
  nlohmann::json ask(const char* what, nlohmann::json request, double timeout_s);
  pid_t pid() const { return pid_; }

 private:
  void send(const std::string& line, double end_s, double timeout_s);
  std::string receive(double end_s, double timeout_s);
  void wait_ready(short events, double end_s, double timeout_s);
  [[noreturn]] void lose(const std::string& what);
  // How the process ended, once its end of the socket is closed.
  [[noreturn]] void lose_ended();
  // Waits for the end of the process, at most this long; its status, or -1.
  int reap(double seconds);
  void kill_and_reap();

  pid_t pid_ = -1;
  int socket_ = -1;
  int64_t requests_ = 0;
};

// The other side: requests come in through `socket`, one JSON document a line.
class WorkerSocket {
 public:
  explicit WorkerSocket(int socket) : socket_(socket) {}
  // The next line; false at the end. Throws Error io for a line longer than any request is.
  bool read_line(std::string& line);
  void write_line(const std::string& line) const;

 private:
  int socket_;
  std::string pending_;
};

// Ends this process as soon as the other end of `socket` is closed, whatever the other threads do.
void die_with_parent(int socket);

}  // namespace pagetune
