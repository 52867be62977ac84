// Progress on stderr: one line that is rewritten on a terminal, plain lines elsewhere. And the request to stop.
#pragma once
#include <string>

namespace pagetune::cli {

class ProgressLine {
 public:
  // `quiet`: nothing is shown. `prefix`: before each text, of one among several that are shown at a time; they are plain lines everywhere.
  explicit ProgressLine(bool quiet, std::string prefix = "");
  ~ProgressLine();
  void show(const std::string& text);
  // Removes the line from the terminal, so that other output starts clean.
  void clear();

 private:
  bool quiet_, terminal_, shown_ = false;
  std::string prefix_;
};

// From now on Ctrl-C only sets a flag; a second one ends the program as usual.
void catch_interrupt();
bool interrupted();

}  // namespace pagetune::cli
