// The CPU's Compiler: bitcode template + constants -> object code, in this process, by LLVM.
#pragma once
#include <string>

#include "runtime/device.hpp"

namespace pagetune {

class LlvmCompiler final : public Compiler {
 public:
  LlvmCompiler();
  // "llvm 19.1.7 bitcode <12 hex digits>": the bitcode's bytes cover the clang that made them and its options.
  std::string identity() const override { return identity_; }
  Binary compile(const KernelSource&) override;
  LaunchFacts read_facts(const std::string& data) override;
  // "ir" (optimised LLVM IR) or "asm".
  std::string listing(const KernelSource&, const std::string& stage) override;

 private:
  std::string identity_;
};

}  // namespace pagetune
