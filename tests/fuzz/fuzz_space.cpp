#include "codegen/space.hpp"
#include "one.hpp"

using namespace pagetune;

void fuzz_one(const std::string& input) {
  fuzz::refuses_with_a_sentence([&] {
    const ConfigSpace space = ConfigSpace::parse(input);
    for (const Family& family : space.families()) space.hash(family);
  });
}
