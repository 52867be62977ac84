#include "runtime/cpu/specialise.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Transforms/IPO/Internalize.h>

#include "pagetune/error.hpp"
#include "runtime/cpu/llvm_setup.hpp"

extern "C" const char pt_decode_bitcode_begin[], pt_decode_bitcode_end[];

namespace pagetune {
namespace {

struct Domain {
  int64_t min, max;
  std::vector<int64_t> values;  // if not empty: only these
};

// What the template's fixed arrays and branches can hold. Wider than what any config space offers, never narrower.
const std::map<std::string, Domain>& domains() {
  static const std::map<std::string, Domain> table = {
      {"spec.q_heads", {1, 1 << 20, {}}},    {"spec.kv_heads", {1, 1 << 20, {}}},  {"spec.group_size", {1, 1 << 20, {}}},
      {"spec.q_len", {1, 16, {}}},           {"spec.head_dim", {8, 256, {}}},      {"spec.head_dim_v", {8, 256, {}}},
      {"spec.page_size", {1, 1 << 20, {}}},  {"spec.dtype", {0, 2, {}}},           {"spec.out_dtype", {0, 2, {}}},
      {"spec.headwise", {0, 1, {}}},         {"spec.flat_map", {0, 1, {}}},        {"spec.window", {0, 1, {}}},
      {"spec.chunk", {0, 1, {}}},            {"spec.sink_tokens", {0, 1, {}}},     {"spec.sinks", {0, 1, {}}},
      {"spec.soft_cap", {0, 1, {}}},         {"spec.alibi", {0, 1, {}}},           {"spec.mask", {0, 2, {}}},
      {"spec.block_sparse", {0, 1, {}}},     {"spec.lse", {0, 1, {}}},             {"spec.checked", {0, 1, {}}},
      {"config.variant", {1, 2, {}}},        {"config.tile_kv", {16, 64, {16, 32, 64}}}, {"config.vector_bits", {128, 512, {128, 256, 512}}},
  };
  return table;
}

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

void check_domains(const KernelSource& source) {
  std::set<std::string> seen;
  for (const auto& [name, value] : source.constants) {
    if (!seen.insert(name).second) refuse("the constant '" + name + "' is given twice");
    auto found = domains().find(name);
    if (found == domains().end()) refuse("the CPU decode template has no constant '" + name + "'");
    const Domain& domain = found->second;
    const bool listed = domain.values.empty() || std::find(domain.values.begin(), domain.values.end(), value) != domain.values.end();
    if (listed && value >= domain.min && value <= domain.max) continue;
    std::string allowed = std::to_string(domain.min) + " to " + std::to_string(domain.max);
    if (!domain.values.empty()) {
      allowed.clear();
      for (int64_t v : domain.values) allowed += (allowed.empty() ? "" : ", ") + std::to_string(v);
    }
    refuse("the constant '" + name + "' is " + std::to_string(value) + "; allowed: " + allowed);
  }
  for (const auto& [name, domain] : domains())
    if (!seen.contains(name)) refuse("the constant '" + name + "' of the CPU decode template is not given");
  for (const std::string name : {"spec.head_dim", "spec.head_dim_v"})
    if (const int64_t dim = constant_of(source, name); dim % 8 != 0) refuse("the constant '" + name + "' is " + std::to_string(dim) + "; allowed: multiples of 8");
  const int64_t heads = constant_of(source, "spec.kv_heads") * constant_of(source, "spec.group_size");
  if (constant_of(source, "spec.q_heads") != heads)
    refuse("the constant 'spec.q_heads' is " + std::to_string(constant_of(source, "spec.q_heads")) + "; allowed is kv_heads * group_size = " +
           std::to_string(heads));
}

std::string global_name(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

void fold_constants(llvm::Module& module, const KernelSource& source) {
  for (const auto& [name, value] : source.constants) {
    llvm::GlobalVariable* global = module.getNamedGlobal(global_name(name));
    if (global == nullptr || global->hasInitializer()) refuse("the CPU decode template has no constant '" + name + "'");
    auto* number = llvm::ConstantInt::getSigned(global->getValueType(), value);
    // Folding the loads here decides the branches before the first pass, so that no pass works on code that cannot run.
    for (llvm::User* user : llvm::make_early_inc_range(global->users())) {
      auto* load = llvm::dyn_cast<llvm::LoadInst>(user);
      if (load == nullptr) throw Error(ErrorCode::internal, "the template uses the address of its constant '" + name + "'");
      load->replaceAllUsesWith(number);
      load->eraseFromParent();
    }
    global->eraseFromParent();
  }
  for (const llvm::GlobalVariable& global : module.globals())
    if (global.isDeclaration()) refuse("the template's constant '" + global.getName().str() + "' is not given");
}

// What may stay visible: the entries asked for and the two symbols that the loader reads.
void keep_entries(llvm::Module& module, const KernelSource& source) {
  std::set<std::string> kept(source.entries.begin(), source.entries.end());
  for (const std::string& entry : source.entries)
    if (const auto* function = module.getFunction(entry); function == nullptr || function->isDeclaration())
      refuse("the CPU decode template has no entry '" + entry + "'");
  kept.insert({"pt_cost", "pt_facts"});
  llvm::internalizeModule(module, [&kept](const llvm::GlobalValue& value) { return kept.contains(value.getName().str()); });
}

}  // namespace

std::string_view decode_bitcode() { return {pt_decode_bitcode_begin, static_cast<size_t>(pt_decode_bitcode_end - pt_decode_bitcode_begin)}; }

int64_t constant_of(const KernelSource& source, const std::string& name) {
  for (const auto& [key, value] : source.constants)
    if (key == name) return value;
  refuse("the constant '" + name + "' of the CPU decode template is not given");
}

std::unique_ptr<llvm::Module> specialise(llvm::LLVMContext& context, const KernelSource& source) {
  check_domains(source);
  const auto bytes = decode_bitcode();
  auto module = llvm::parseBitcodeFile(llvm::MemoryBufferRef(llvm::StringRef(bytes.data(), bytes.size()), "decode"), context);
  if (!module) throw Error(ErrorCode::internal, "the embedded bitcode cannot be read: " + text_of(module.takeError()));
  fold_constants(**module, source);
  keep_entries(**module, source);
  return std::move(*module);
}

}  // namespace pagetune
