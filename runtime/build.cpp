#include "runtime/build.hpp"

#include <fmt/format.h>

#include "pagetune/error.hpp"
#include "runtime/cpu_provider.hpp"
#include "runtime/cuda/cubin.hpp"
#include "runtime/parallel.hpp"

namespace pagetune {
namespace {

// Host and device code must have been built from one params.h.
bool has_these_params(const LaunchFacts& facts) { return facts.params_size == static_cast<int>(sizeof(pt_decode_params)) && facts.params_version == static_cast<int>(PT_PARAMS_VERSION); }

void require_fit(const LaunchFacts& facts, const AttentionSpec& spec, const KernelConfig& config) {
  if (!has_these_params(facts))
    throw Error(ErrorCode::mismatch, fmt::format("the kernel was built for launch parameters of {} bytes, version {}; this library has {} bytes, version {}", facts.params_size,
                                                 facts.params_version, sizeof(pt_decode_params), PT_PARAMS_VERSION));
  if (facts.variant != config.variant() || facts.kv_heads != spec.kv_heads || facts.q_heads != spec.q_heads)
    throw Error(ErrorCode::mismatch, fmt::format("the kernel is V{} for {}/{} heads, asked for was V{} for {}/{}", facts.variant, facts.q_heads, facts.kv_heads, config.variant(),
                                                 spec.q_heads, spec.kv_heads));
}

}  // namespace

Binary build_binary(Compiler& compiler, Store& store, const AttentionSpec& spec, const KernelConfig& config, const Target& target) {
  const KernelSource source = generate(spec, config, target);
  const std::string key = binary_key(source, compiler.identity());
  Binary binary = store.get_or_compile(key, [&] { return compiler.compile(source); });
  binary.facts = compiler.read_facts(binary.data);
  require_fit(binary.facts, spec, config);
  return binary;
}

void build_binaries(Compiler& compiler, Store& store, const AttentionSpec& spec, const std::vector<KernelConfig>& configs, const Target& target) {
  parallel_for(static_cast<int64_t>(configs.size()), [&](int64_t i) { build_binary(compiler, store, spec, configs[static_cast<size_t>(i)], target); }, kCompileThreads);
}

bool may_load(const Binary& binary) {
  try {
    return has_these_params(binary.kind == "cubin" ? cuda::read_cubin(binary.data, "pt_decode") : cpu_compiler().read_facts(binary.data));
  } catch (const Error& error) {
    return error.code() != ErrorCode::io;
  }
}

std::shared_ptr<const Module> build_module(Device& device, Store& store, const AttentionSpec& spec, const KernelConfig& config) {
  return device.load(build_binary(device.compiler(), store, spec, config, device.target()));
}

}  // namespace pagetune
