#include "codegen/generate.hpp"

#include <set>

#include "codegen/sha256.hpp"
#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"
#include "pagetune/params.h"

namespace pagetune {
namespace {

using Constants = std::vector<std::pair<std::string, int64_t>>;

// Numbers that templates compare with; part of the kernels' ABI with codegen.
int64_t dtype_code(DType type) {
  switch (type) {
    case DType::bf16: return 0;
    case DType::fp16: return 1;
    case DType::fp32: return 2;
    default: throw Error(ErrorCode::unsupported, std::string("no decode template reads ") + name_of(type) + "; allowed: bf16, fp16, fp32");
  }
}

Constants spec_constants(const AttentionSpec& spec) {
  return {
      {"spec.q_heads", spec.q_heads},
      {"spec.kv_heads", spec.kv_heads},
      {"spec.group_size", spec.group_size()},
      {"spec.q_len", spec.q_len},
      {"spec.head_dim", spec.head_dim_k},
      {"spec.head_dim_v", spec.head_dim_v},
      {"spec.page_size", spec.page_size},
      {"spec.dtype", dtype_code(spec.kv_dtype)},
      {"spec.out_dtype", dtype_code(spec.out_dtype)},
      {"spec.headwise", spec.headwise},
      {"spec.flat_map", spec.address_map == AddressMap::flat},
      {"spec.window", spec.window},
      {"spec.chunk", spec.chunk},
      {"spec.sink_tokens", spec.sink_tokens},
      {"spec.sinks", spec.sinks},
      {"spec.soft_cap", spec.soft_cap},
      {"spec.alibi", spec.alibi},
      {"spec.mask", static_cast<int64_t>(spec.mask)},  // 0 none, 1 tree, 2 offset
      {"spec.block_sparse", spec.block_sparse},
      {"spec.lse", spec.lse},
      {"spec.checked", spec.checked},
  };
}

// NUM_SPLITS is a launch parameter: all split counts of a shape share one binary.
Constants config_constants(const KernelConfig& config, Backend backend) {
  Constants constants = {{"config.variant", config.variant()}, {"config.tile_kv", config.at("TILE_KV")}};
  if (backend == Backend::cuda) {
    constants.emplace_back("config.num_warps", config.at("NUM_WARPS"));
    constants.emplace_back("config.num_stages", config.at("NUM_STAGES"));
    constants.emplace_back("config.loader", config.at("LOADER"));
    constants.emplace_back("config.merge", config.at("MERGE"));
    constants.emplace_back("config.even_share", config.even_share());
  } else {
    constants.emplace_back("config.vector_bits", config.at("VECTOR_BITS"));
  }
  return constants;
}

bool has_merge_kernel(const KernelConfig& config, Backend backend) {
  return config.variant() == 2 && (backend == Backend::cpu || config.at("MERGE") == 0);
}

// namespace spec { constexpr int q_heads = 32; … } namespace config { … }
std::string prelude(const Constants& constants) {
  std::string text = "// Generated prelude: everything the compiler can know.\n";
  std::string open;
  for (const auto& [name, value] : constants) {
    const auto dot = name.find('.');
    const std::string scope = name.substr(0, dot);
    if (scope != open) {
      if (!open.empty()) text += "}\n";
      text += "namespace " + scope + " {\n";
      open = scope;
    }
    text += "constexpr int " + name.substr(dot + 1) + " = " + std::to_string(value) + ";\n";
  }
  return text + "}\n";
}

// The template with its own includes put in place, each once, so that the source is self-contained and its bytes are its identity.
void append_file(const std::string& path, std::set<std::string>& seen, std::string& text) {
  if (!seen.insert(path).second) return;
  const std::string& body = embedded_file(path);
  text += "#line 1 \"" + path + "\"\n";
  size_t at = 0;
  int line = 0;
  while (at < body.size()) {
    size_t end = body.find('\n', at);
    if (end == std::string::npos) end = body.size();
    const std::string_view row(body.data() + at, end - at);
    ++line;
    constexpr std::string_view kInclude = "#include \"";
    if (row.starts_with(kInclude)) {
      const std::string name(row.substr(kInclude.size(), row.rfind('"') - kInclude.size()));
      append_file("templates/" + name, seen, text);
      text += "#line " + std::to_string(line + 1) + " \"" + path + "\"\n";
    } else if (row != "#pragma once") {
      text += row;
      text += '\n';
    }
    at = end + 1;
  }
}

KernelSource generate_cuda(const AttentionSpec& spec, const KernelConfig& config, const Target& target) {
  KernelSource source;
  source.constants = spec_constants(spec);
  for (auto& constant : config_constants(config, Backend::cuda)) source.constants.push_back(constant);
  const int64_t warpgroups = ConfigSpace::builtin().derived("WARPGROUPS", spec, config, target);
  source.constants.emplace_back("config.warpgroups", warpgroups);
  source.text = prelude(source.constants);
  source.text += std::string("#define PT_TENSOR_MAPS ") + (config.at("LOADER") == 2 ? "1" : "0") + "\n";  // a kernel's parameters cannot depend on a constant
  source.text += std::string("#define PT_WARPGROUPS ") + (warpgroups > 0 ? "1" : "0") + "\n";            // nor can what is included
  std::string body;
  std::set<std::string> seen;
  append_file("templates/cuda/decode.cu", seen, body);
  if (has_merge_kernel(config, Backend::cuda)) append_file("templates/cuda/merge.cu", seen, body);
  source.template_hash = sha256_hex(body);
  source.text += body;
  source.options = {"--gpu-architecture=" + target.arch, "--std=c++17", "-default-device"};
  return source;
}

KernelSource generate_cpu(const AttentionSpec& spec, const KernelConfig& config) {
  KernelSource source;
  source.constants = spec_constants(spec);
  for (auto& constant : config_constants(config, Backend::cpu)) source.constants.push_back(constant);
  source.text = prelude(source.constants);
  std::string all;
  for (const auto& path : embedded_files())
    if (path.starts_with("templates/cpu/") || path == "templates/params.h") all += embedded_file(path);
  source.template_hash = sha256_hex(all);
  source.options = {"-O3"};
  return source;
}

}  // namespace

KernelSource generate(const AttentionSpec& spec, const KernelConfig& config, const Target& target) {
  const Support support = supports(spec, config, target);
  if (!support) throw Error(ErrorCode::unsupported, support.reason);
  KernelSource source = target.backend == Backend::cuda ? generate_cuda(spec, config, target) : generate_cpu(spec, config);
  source.backend = target.backend;
  source.arch = target.arch;
  source.cpu_features = target.cpu_features;
  source.entries = {"pt_decode"};
  if (has_merge_kernel(config, source.backend)) source.entries.push_back("pt_merge");
  return source;
}

std::string binary_key(const KernelSource& source, const std::string& compiler_identity) {
  // Each part with its length, so that no two lists of parts read the same.
  std::string all;
  const auto add = [&all](const std::string& part) {
    all += std::to_string(part.size());
    all += ':';
    all += part;
  };
  add(name_of(source.backend));
  add(source.arch);
  add(source.cpu_features);
  add(source.text);
  add(source.template_hash);
  // Each list with its count, so that the last of one is not the first of the next.
  const auto add_count = [&add](size_t count) { add(std::to_string(count)); };
  add_count(source.constants.size());
  for (const auto& [name, value] : source.constants) add(name + "=" + std::to_string(value));
  add_count(source.entries.size());
  for (const auto& entry : source.entries) add(entry);
  add_count(source.options.size());
  for (const auto& option : source.options) add(option);
  add(compiler_identity);
  add(std::to_string(PT_PARAMS_VERSION) + "/" + std::to_string(sizeof(pt_decode_params)));
  return sha256_hex(all);
}

}  // namespace pagetune
