#include "runtime/cpu/llvm_setup.hpp"

#include <llvm/Config/llvm-config.h>
#include <llvm/Support/Error.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>

namespace pagetune {
namespace {

// LLVM itself is built without exceptions but with unwind tables. What it leaks on the way is the price of a live process; the other
// choice is exit(1) inside of an inference server.
void throw_fatal_error(void*, const char* reason, bool) {
  throw Error(ErrorCode::internal, std::string("LLVM gave up with '") + reason + "'; report this together with the kernel's spec and config");
}

}  // namespace

void set_up_llvm() {
  static const bool ready = [] {
    llvm::install_fatal_error_handler(throw_fatal_error);
    return !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter() && !llvm::InitializeNativeTargetAsmParser();
  }();
  if (!ready) throw Error(ErrorCode::no_device, "this LLVM was built without the host's own target");
}

std::string text_of(llvm::Error error) { return llvm::toString(std::move(error)); }

std::string llvm_version() { return LLVM_VERSION_STRING; }

}  // namespace pagetune
