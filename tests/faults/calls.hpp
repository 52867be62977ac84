// Which system call of a helper program fails, or where a signal reaches it: what failing_calls.c is told.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "processes.hpp"

namespace pagetune {

struct Failure {
  std::string call;           // a group of calls, as failing_calls.c has them
  int code = 0;               // an errno; a negative number is a signal, after which the call goes on
  bool from_then_on = false;  // all that follow, too
};

// The command, whose nth call of the group on a path under `dir` fails. `mark` is made when it is reached.
inline std::vector<std::string> with_failure(const Failure& failure, int nth, const std::string& dir, const std::string& mark, const std::vector<std::string>& command) {
  std::vector<std::string> variables = {"FAIL_UNDER=" + dir, "FAIL_CALL=" + failure.call, "FAIL_AT=" + std::to_string(nth), "FAIL_WITH=" + std::to_string(failure.code), "FAIL_MARK=" + mark};
  if (failure.from_then_on) variables.emplace_back("FAIL_ON=1");
  return with_variables(std::move(variables), command);
}

// As the system calls see it: without links.
inline std::string real_path(const std::string& path) { return std::filesystem::weakly_canonical(path).string(); }

}  // namespace pagetune
