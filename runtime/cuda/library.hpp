// A shared library found at run time.
#pragma once
#include <string>
#include <vector>

namespace pagetune::cuda {

// The first of `candidates` that dlopen takes; nullptr if none. `tried` collects the loader's reasons.
void* open_library(const std::vector<std::string>& candidates, std::string& tried);

}  // namespace pagetune::cuda
