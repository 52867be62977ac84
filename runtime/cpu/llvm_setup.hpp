#pragma once
#include <string>

#include "pagetune/error.hpp"

namespace llvm {
class Error;
}

namespace pagetune {

// Registers the native target and makes LLVM's fatal errors exceptions (Error internal) where they would end the process. Once per process.
void set_up_llvm();

// The text of a failed llvm::Error; consumes it.
std::string text_of(llvm::Error);

// "19.1.7"
std::string llvm_version();

}  // namespace pagetune
