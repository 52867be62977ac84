#include "runtime/cpu/host.hpp"

#include <cpuid.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include <llvm/ADT/StringMap.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/TargetParser/Host.h>

#include "runtime/cpu/llvm_setup.hpp"

namespace pagetune {
namespace {

// Instruction sets that change the object code of an fp32 / bf16 / fp16 kernel. Others (aes, sgx, …) would only split the cache.
constexpr std::array kRelevant = {
    "avx",        "avx2",     "avx512bf16", "avx512bitalg", "avx512bw",    "avx512cd", "avx512dq", "avx512f", "avx512fp16",
    "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vl",  "avx512vnni",  "avx512vpopcntdq", "avxvnni", "bmi", "bmi2",
    "cmov",       "cx16",     "cx8",        "evex512",      "f16c",        "fma",      "fxsr",     "lzcnt",   "mmx",
    "movbe",      "popcnt",   "prfchw",     "sahf",         "sse",         "sse2",     "sse3",     "sse4.1",  "sse4.2", "ssse3"};

// LLVM takes the AVX states from XGETBV, so a feature is here only if the operating system saves its registers.
std::map<std::string, bool> host_features() {
  std::map<std::string, bool> features;
  for (const auto& entry : llvm::sys::getHostCPUFeatures()) features[entry.getKey().str()] = entry.getValue();
  return features;
}

std::string relevant_features() {
  std::string text;
  const auto features = host_features();
  for (const char* name : kRelevant) {  // sorted
    auto found = features.find(name);
    if (found == features.end() || !found->second) continue;
    text += (text.empty() ? "+" : ",+") + std::string(name);
  }
  return text;
}

int widest_vector(const std::string& features) {
  const auto has = [&features](const std::string& name) { return ("," + features + ",").find(",+" + name + ",") != std::string::npos; };
  if (has("avx512f") && has("avx512vl") && has("avx512bw") && has("avx512dq")) return 512;
  return has("avx2") ? 256 : 128;
}

std::string brand() {
  std::array<unsigned, 12> words{};
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return llvm::sys::getHostCPUName().str();
  for (unsigned i = 0; i < 3; ++i) __get_cpuid(0x80000002u + i, &words[i * 4], &words[i * 4 + 1], &words[i * 4 + 2], &words[i * 4 + 3]);
  std::array<char, sizeof words + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof words);
  std::string name = text.data();
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? llvm::sys::getHostCPUName().str() : name;
}

std::vector<std::string> features_of_cpu(const std::string& arch) {
  std::string error;
  const std::string triple = llvm::sys::getProcessTriple();
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  std::vector<std::string> names;
  if (target == nullptr) return {"a code generator for " + triple};
  const std::unique_ptr<llvm::MCSubtargetInfo> subtarget(target->createMCSubtargetInfo(triple, "x86-64", ""));
  if (!subtarget->isCPUStringValid(arch)) return {"CPU '" + arch + "', which this LLVM does not know"};
  const std::unique_ptr<llvm::MCSubtargetInfo> named(target->createMCSubtargetInfo(triple, arch, ""));
  for (const auto& feature : named->getEnabledProcessorFeatures()) names.emplace_back(feature.Key);
  return names;
}

}  // namespace

Target host_target(int threads) {
  Target target;
  target.backend = Backend::cpu;
  target.arch = llvm::sys::getHostCPUName().str();
  target.cpu_features = relevant_features();
  target.processors = threads;
  target.vector_bits = widest_vector(target.cpu_features);
  return target;
}

Environment host_environment(int threads) {
  const Target target = host_target(threads);
  Environment environment;
  environment.backend = name_of(Backend::cpu);
  environment.device = brand();
  environment.arch = target.arch;
  environment.cpu_features = target.cpu_features;
  environment.processors = threads;
  environment.l2_bytes = static_cast<int>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
  const std::string version = llvm_version();
  environment.compiler = "llvm " + version.substr(0, version.rfind('.'));
  environment.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return environment;
}

std::vector<std::string> missing_features(const std::string& arch, const std::string& features) {
  std::vector<std::string> wanted;
  if (features.empty()) {
    wanted = features_of_cpu(arch);
  } else {
    for (size_t at = 0; at < features.size();) {
      size_t end = std::min(features.find(',', at), features.size());
      wanted.push_back(features.substr(at, end - at));
      at = end + 1;
    }
  }
  std::vector<std::string> missing;
  const auto host = host_features();
  for (std::string name : wanted) {
    if (name.starts_with('-')) continue;
    if (name.starts_with('+')) name.erase(0, 1);
    // A processor name also enables tuning flags; only instruction sets are in the host's map.
    auto found = host.find(name);
    const bool relevant = std::find(kRelevant.begin(), kRelevant.end(), name) != kRelevant.end();
    if (found != host.end() ? !found->second : (!features.empty() && !relevant)) missing.push_back(name);
  }
  return missing;
}

int64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string rest;
  while (info >> key >> kib && std::getline(info, rest))
    if (key == "MemAvailable:") return kib * 1024;
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace pagetune
