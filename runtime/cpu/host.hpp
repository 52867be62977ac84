// What this machine's CPU is and can do, as LLVM and the environment's fingerprint want it.
#pragma once
#include <string>
#include <vector>

#include "codegen/environment.hpp"
#include "codegen/target.hpp"

namespace pagetune {

// threads: of the device's pool. It is the `processors` of both, because winners measured with other numbers of threads do not carry over.
Target host_target(int threads);
Environment host_environment(int threads);

// Which of the features ("+a,+b") or, if there are none, of the named CPU's features this host lacks. Empty: code for them runs here.
std::vector<std::string> missing_features(const std::string& arch, const std::string& features);

int64_t available_memory_bytes();

}  // namespace pagetune
