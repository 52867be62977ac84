#include "runtime/cuda/library.hpp"

#include <dlfcn.h>

namespace pagetune::cuda {

void* open_library(const std::vector<std::string>& candidates, std::string& tried) {
  for (const auto& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    const char* reason = dlerror();
    tried += (tried.empty() ? "" : "; ") + (reason != nullptr ? std::string(reason) : name);
  }
  return nullptr;
}

}  // namespace pagetune::cuda
