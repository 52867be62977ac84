// From the template's bitcode and the constants of a KernelSource to an LLVM module that computes exactly one kernel.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "codegen/generate.hpp"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace pagetune {

// The embedded bitcode of templates/cpu/decode.cpp.
std::string_view decode_bitcode();

// Checks the constants and folds them, drops what no entry needs and makes the rest internal. Every constant of the template must be
// given, every given one must exist and be in its domain: Error invalid_argument names it.
std::unique_ptr<llvm::Module> specialise(llvm::LLVMContext&, const KernelSource&);

// The value of a source's constant; Error invalid_argument if it is absent.
int64_t constant_of(const KernelSource&, const std::string& name);

}  // namespace pagetune
