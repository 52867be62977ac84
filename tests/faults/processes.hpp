// Starting other processes, and running a piece of a test in a child of its own.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace pagetune {

// Programs that wait for the end of their standard input: go() starts them all.
class Herd {
 public:
  Herd() {
    if (pipe2(gate_, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  }
  ~Herd() {
    go();
    ::close(gate_[0]);
  }
  Herd(const Herd&) = delete;
  Herd& operator=(const Herd&) = delete;

  pid_t start(std::vector<std::string> command, const std::string& output = "/dev/null") {
    std::vector<char*> argv;
    for (auto& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, gate_[0], STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0) << command[0];
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  void go() {
    if (gate_[1] >= 0) ::close(gate_[1]);
    gate_[1] = -1;
  }

 private:
  int gate_[2];
};

inline int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

inline std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline void wait_for_lines(const std::string& path, size_t count) {
  while (lines_of(path).size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A program in an environment of its own, whose variables (NAME=VALUE) come in addition.
inline std::vector<std::string> with_variables(std::vector<std::string> variables, const std::vector<std::string>& command) {
  variables.insert(variables.begin(), "/usr/bin/env");
  variables.insert(variables.end(), command.begin(), command.end());
  return variables;
}

// Runs `work` in a forked child; its result ("" = all right), or what became of the child.
inline std::string in_child(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "pipe2 failed";
  pid_t pid = fork();
  if (pid == 0) {
    std::string said;
    try {
      said = work();
    } catch (const std::exception& error) {
      said = std::string("exception: ") + error.what();
    }
    ssize_t written = write(ends[1], said.data(), said.size());
    _exit(written == static_cast<ssize_t>(said.size()) ? 0 : 9);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = wait_for(pid);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) said += " [the child ended with status " + std::to_string(status) + "]";
  return said;
}

}  // namespace pagetune
