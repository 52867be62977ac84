// A parser of data from outside under arbitrary bytes. Each fuzz_*.cpp defines fuzz_one(); libfuzzer.cpp feeds it what libFuzzer makes up, replay.cpp the files of its corpus.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "pagetune/error.hpp"

// Returns for input that is taken and for input that is refused with an Error of a user's making; anything else is a fault and ends the process.
void fuzz_one(const std::string& input);

namespace fuzz {

// A refusal must be an Error, name what is wrong, and not blame the program.
template <class Parse>
void refuses_with_a_sentence(const Parse& parse) {
  try {
    parse();
  } catch (const pagetune::Error& error) {
    const std::string text = error.what();
    if (error.code() != pagetune::ErrorCode::internal && text.size() > 10) return;
    std::fprintf(stderr, "refused with code %d: '%s'\n", static_cast<int>(error.code()), text.c_str());
    std::abort();
  }
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace fuzz
