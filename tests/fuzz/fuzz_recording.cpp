#include "one.hpp"
#include "tuner/recording.hpp"

using namespace pagetune;

void fuzz_one(const std::string& input) {
  fuzz::refuses_with_a_sentence([&] {
    for (const RecordedRace& race : recorded_races(input)) fuzz::require(recorded_races(to_json(race)).size() == 1, "a race that was read can be written and read again");
  });
}
