#include "runtime/cpu/linker.hpp"

#include <cmath>
#include <cstring>
#include <mutex>

#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/TaskDispatch.h>
#include <llvm/Support/MemoryBuffer.h>

#include "pagetune/error.hpp"
#include "runtime/cpu/llvm_setup.hpp"

// Conversions that code for a CPU without F16C calls; in the compiler's own support library.
extern "C" void __extendhfsf2();  // NOLINT(bugprone-reserved-identifier)
extern "C" void __truncsfhf2();   // NOLINT(bugprone-reserved-identifier)

namespace pagetune {
namespace orc = llvm::orc;

struct Linker::Session {
  std::unique_ptr<orc::ExecutionSession> execution;
  std::unique_ptr<orc::ObjectLinkingLayer> layer;
  orc::SymbolMap allowed;
  std::mutex mutex;
  std::string problems;  // what JITLink reported since the last look-up that failed

  template <class Function> void allow(const char* name, Function* function) {
    allowed[execution->intern(name)] = {orc::ExecutorAddr::fromPtr(function), llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  }
};

namespace {

[[noreturn]] void cannot_link(const std::string& why) {
  throw Error(ErrorCode::io, "the CPU object cannot be linked: " + why + "; it must be compiled again");
}

}  // namespace

class Linker::LinkedDylib final : public Linker::Linked {
 public:
  LinkedDylib(std::shared_ptr<Linker> linker, orc::JITDylib& dylib) : linker_(std::move(linker)), dylib_(dylib) {}
  ~LinkedDylib() override { llvm::consumeError(linker_->session_->execution->removeJITDylib(dylib_)); }
  LinkedDylib(const LinkedDylib&) = delete;
  LinkedDylib& operator=(const LinkedDylib&) = delete;

  void* address(const std::string& symbol) const override {
    Session& session = *linker_->session_;
    auto found = session.execution->lookup({&dylib_}, session.execution->intern(symbol));
    if (found) return found->getAddress().toPtr<void*>();
    std::string why = text_of(found.takeError());
    const std::scoped_lock lock(session.mutex);
    why += session.problems;
    session.problems.clear();
    cannot_link(why);
  }

 private:
  std::shared_ptr<Linker> linker_;
  orc::JITDylib& dylib_;
};

Linker::Linker() : session_(std::make_unique<Session>()) {
  // Linking runs on the thread that asks for a symbol: no threads of LLVM's own.
  auto control = orc::SelfExecutorProcessControl::Create(nullptr, std::make_unique<orc::InPlaceTaskDispatcher>());
  if (!control) throw Error(ErrorCode::no_device, "LLVM cannot load code into this process: " + text_of(control.takeError()));
  session_->execution = std::make_unique<orc::ExecutionSession>(std::move(*control));
  session_->execution->setErrorReporter([session = session_.get()](llvm::Error error) {
    const std::scoped_lock lock(session->mutex);
    session->problems += "; " + text_of(std::move(error));
  });
  session_->layer = std::make_unique<orc::ObjectLinkingLayer>(*session_->execution);
  // All that LLVM may call on its own account, and log2f. Nothing else of the process can be reached from an object.
  session_->allow("memcpy", static_cast<void* (*)(void*, const void*, size_t)>(std::memcpy));
  session_->allow("memmove", static_cast<void* (*)(void*, const void*, size_t)>(std::memmove));
  session_->allow("memset", static_cast<void* (*)(void*, int, size_t)>(std::memset));
  session_->allow("log2f", static_cast<float (*)(float)>(::log2f));
  session_->allow("__extendhfsf2", &__extendhfsf2);
  session_->allow("__truncsfhf2", &__truncsfhf2);
}

Linker::~Linker() { llvm::consumeError(session_->execution->endSession()); }

std::unique_ptr<Linker::Linked> Linker::link(std::string_view elf) {
  orc::JITDylib& dylib = session_->execution->createBareJITDylib("kernel" + std::to_string(next_name_++));
  auto linked = std::make_unique<LinkedDylib>(shared_from_this(), dylib);
  llvm::cantFail(dylib.define(orc::absoluteSymbols(session_->allowed)));
  auto buffer = llvm::MemoryBuffer::getMemBufferCopy(llvm::StringRef(elf.data(), elf.size()), "kernel");
  if (auto error = session_->layer->add(dylib, std::move(buffer))) cannot_link(text_of(std::move(error)));
  return linked;
}

}  // namespace pagetune
