#include <exception>

#include "codegen/json.hpp"
#include "one.hpp"
#include "tuner/worker_messages.hpp"

using namespace pagetune;

// A worker that a kernel's fault has damaged may answer anything; whoever reads it takes any exception for a broken worker. The first byte says which message is expected.
void fuzz_one(const std::string& input) {
  if (input.empty()) return;
  const std::string text = input.substr(1);
  try {
    if (input[0] % 6 == 5) {
      answer_from_line(text, 1);
      return;
    }
    const nlohmann::json json = parse_json(text, "the message");
    switch (input[0] % 6) {
      case 0: task_from_json(json); break;
      case 1: facts_from_json(json); break;
      case 2: verdict_from_json(json); break;
      case 3: configs_from_json(json); break;
      default: bucket_from_json(json); break;
    }
  } catch (const std::exception&) {
  }
}
