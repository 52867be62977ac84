#include "runtime/cpu/llvm_compiler.hpp"

#include <optional>

#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"
#include "runtime/cpu/llvm_setup.hpp"
#include "runtime/cpu/object_file.hpp"
#include "runtime/cpu/specialise.hpp"

namespace pagetune {
namespace {

// Features come from CPUID; the name is only a hint for scheduling, because a hypervisor may hide what the named CPU has. Without
// features the name (a psABI level such as x86-64-v3) stands for them.
struct Selection {
  std::string cpu;
  std::string tune;
  std::string features;
};

Selection selection_of(const KernelSource& source) {
  if (source.cpu_features.empty()) return {source.arch, source.arch, ""};
  return {"x86-64", source.arch, source.cpu_features};
}

// LLVM only prints a warning for names that it does not know.
void check_names(const llvm::Target& target, const std::string& triple, const KernelSource& source) {
  const std::unique_ptr<llvm::MCSubtargetInfo> subtarget(target.createMCSubtargetInfo(triple, "x86-64", ""));
  if (!subtarget->isCPUStringValid(source.arch))
    throw Error(ErrorCode::invalid_argument,
                "the CPU '" + source.arch + "' is unknown to LLVM " + llvm_version() + "; use a name that `llc -mcpu=help` lists");
  const std::string& list = source.cpu_features;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, end - at);
    at = end + 1;
    bool known = false;
    for (const auto& feature : subtarget->getAllProcessorFeatures()) known = known || item == std::string("+") + feature.Key;
    if (!known)
      throw Error(ErrorCode::invalid_argument, "the CPU feature '" + item + "' is unknown to LLVM " + llvm_version() +
                                                   "; allowed are names that `llc -mattr=help` lists, each after '+'");
  }
}

std::unique_ptr<llvm::TargetMachine> make_machine(const KernelSource& source) {
  std::string error;
  const std::string triple = llvm::sys::getProcessTriple();
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (target == nullptr) throw Error(ErrorCode::compile_failed, "LLVM makes no code for " + triple + ": " + error);
  check_names(*target, triple, source);
  const Selection selection = selection_of(source);
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(triple, selection.cpu, selection.features, llvm::TargetOptions{},
                                                                           llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                           llvm::CodeGenOptLevel::Aggressive, /*JIT=*/true));
  if (machine == nullptr) throw Error(ErrorCode::compile_failed, "LLVM has no code generator for " + triple);
  return machine;
}

// On functions, not only on the machine: the template's were built for a baseline, and inlining wants them alike.
void set_target(llvm::Module& module, const llvm::TargetMachine& machine, const KernelSource& source) {
  module.setTargetTriple(machine.getTargetTriple().str());
  module.setDataLayout(machine.createDataLayout());
  const Selection selection = selection_of(source);
  const std::string width = std::to_string(constant_of(source, "config.vector_bits"));
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr("target-cpu", selection.cpu);
    function.addFnAttr("tune-cpu", selection.tune);
    function.addFnAttr("target-features", selection.features);
    function.addFnAttr("prefer-vector-width", width);
    function.addFnAttr("min-legal-vector-width", width);
  }
}

void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3).run(module, modules);
}

// pt_facts is computed by an initialiser; with all constants known the optimiser turns it into data, and no code runs at load time.
void check_facts_are_data(const llvm::Module& module) {
  const llvm::GlobalVariable* facts = module.getNamedGlobal("pt_facts");
  const llvm::GlobalVariable* initialisers = module.getNamedGlobal("llvm.global_ctors");
  const bool none_left = initialisers == nullptr || initialisers->getValueType()->getArrayNumElements() == 0;
  if (facts == nullptr || !facts->hasInitializer() || !facts->isConstant() || !none_left)
    throw Error(ErrorCode::compile_failed, "the facts of pt_decode did not fold to data; this build's LLVM does not fit its template");
}

struct Specialised {
  std::unique_ptr<llvm::LLVMContext> context;  // one per compile: contexts are not thread-safe
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::Module> module;
};

Specialised optimised_module(const KernelSource& source) {
  if (source.backend != Backend::cpu)
    throw Error(ErrorCode::invalid_argument, std::string("the CPU compiler was given a source for ") + name_of(source.backend));
  if (source.options != std::vector<std::string>{"-O3"})
    throw Error(ErrorCode::invalid_argument, "the CPU compiler has exactly one option, -O3; the source has other ones");
  Specialised result;
  result.context = std::make_unique<llvm::LLVMContext>();
  result.machine = make_machine(source);
  result.module = specialise(*result.context, source);
  set_target(*result.module, *result.machine, source);
  optimise(*result.module, *result.machine);
  check_facts_are_data(*result.module);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(*result.module, &stream)) throw Error(ErrorCode::compile_failed, "pt_decode is not valid IR: " + problem);
  return result;
}

std::string emit(Specialised& code, llvm::CodeGenFileType type) {
  llvm::SmallString<0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  if (code.machine->addPassesToEmitFile(passes, stream, nullptr, type))
    throw Error(ErrorCode::compile_failed, "LLVM cannot emit this kind of file for " + code.machine->getTargetTriple().str());
  passes.run(*code.module);
  return std::string(bytes.str());
}

}  // namespace

LlvmCompiler::LlvmCompiler() : identity_("llvm " + llvm_version() + " bitcode " + sha256_hex(decode_bitcode()).substr(0, 12)) {}

Binary LlvmCompiler::compile(const KernelSource& source) {
  Specialised code = optimised_module(source);
  Binary binary;
  binary.key = binary_key(source, identity_);
  binary.arch = source.arch;
  binary.kind = "object";
  binary.data = seal_object(emit(code, llvm::CodeGenFileType::ObjectFile), {source.arch, source.cpu_features, identity_});
  binary.sha256 = sha256_hex(binary.data);
  binary.facts = read_facts(binary.data);
  return binary;
}

LaunchFacts LlvmCompiler::read_facts(const std::string& data) { return open_object(data, identity_).facts; }

std::string LlvmCompiler::listing(const KernelSource& source, const std::string& stage) {
  if (stage != "ir" && stage != "asm")
    throw Error(ErrorCode::invalid_argument, "the CPU compiler has no listing '" + stage + "'; allowed: ir, asm");
  Specialised code = optimised_module(source);
  if (stage == "asm") return emit(code, llvm::CodeGenFileType::AssemblyFile);
  std::string text;
  llvm::raw_string_ostream stream(text);
  code.module->print(stream, nullptr);
  return text;
}

}  // namespace pagetune
