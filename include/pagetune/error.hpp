// The one exception type of pagetune, and the codes it shares with the C ABI (pt_status in pagetune.h).
#pragma once
#include <stdexcept>
#include <string>

namespace pagetune {

enum class ErrorCode : int {
  invalid_argument = 1,  // a value the caller gave is outside what is allowed
  unsupported = 2,       // supports() says no: the message holds its reason
  mismatch = 3,          // the call does not match the kernel it was made for
  not_prepared = 4,      // first use inside a stream capture: call prepare() before capturing
  no_device = 5,         // no such device, or no driver
  compile_failed = 6,    // the message holds the compiler's log
  device_error = 7,      // the driver reported an error
  bad_table = 8,         // a checked kernel met a bad block-table entry
  io = 9,                // a file could not be read or written
  internal = 10,
  context_lost = 11,     // a fault on the device ended its context: nothing works there any more until the process is started anew
};

// what(): one sentence saying what is wrong, which value, what is allowed, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(printable(message)), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  // A message may quote what a file holds: what() would end at a NUL, and a terminal obeys other control characters.
  static std::string printable(std::string message) {
    constexpr char kDelete = 0x7f;
    for (char& c : message)
      if ((static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t') || c == kDelete) c = '?';
    return message;
  }

  ErrorCode code_;
};

}  // namespace pagetune
