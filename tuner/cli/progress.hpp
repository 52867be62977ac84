// What happens, on stderr: one line that is rewritten on a terminal, for people; elsewhere events, each a line of JSON. And the request to stop.
#pragma once
#include <string>

#include <nlohmann/json.hpp>

namespace pagetune::cli {

class ProgressLine {
 public:
  using Event = nlohmann::ordered_json;

  // `quiet`: nothing is shown. `device`: of one among several that are shown at a time; on a terminal these are plain lines that begin with it.
  explicit ProgressLine(bool quiet, std::string device = "");
  ~ProgressLine();
  // `text` on a terminal, elsewhere {"event": name, "time": UTC, "device": … (of one among several)} and the fields of `event`.
  void show(const std::string& text, const char* name, const Event& event);
  // Only elsewhere: what people are told in another way.
  void note(const char* name, const Event& event) const;
  // Removes the line from the terminal, so that other output starts clean.
  void clear();

 private:
  bool quiet_, terminal_, shown_ = false;
  std::string device_;
};

// From now on Ctrl-C only sets a flag; a second one ends the program as usual.
void catch_interrupt();
bool interrupted();

}  // namespace pagetune::cli
