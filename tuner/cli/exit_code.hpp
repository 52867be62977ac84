// How the program ends, and the one exception for a wrong command line.
#pragma once
#include <stdexcept>
#include <string>

namespace pagetune::cli {

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kPartly = 3, kNoDevice = 4 };

// A value on the command line that cannot be.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pagetune::cli
