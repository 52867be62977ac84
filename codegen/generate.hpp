// From (spec, config, target) to a self-contained kernel source. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codegen/config.hpp"
#include "codegen/target.hpp"
#include "pagetune/spec.hpp"

namespace pagetune {

struct KernelSource {
  Backend backend = Backend::cuda;
  std::string arch;
  std::string cpu_features;
  // Compile-time constants in order, "spec.head_dim_k" -> 128. CUDA: rendered into the prelude; CPU: set as the bitcode's globals.
  std::vector<std::pair<std::string, int64_t>> constants;
  // CUDA: prelude, headers and template in one text. CPU: the constants rendered for people.
  std::string text;
  std::vector<std::string> entries;  // "pt_decode", for V2 also "pt_merge"
  std::vector<std::string> options;  // of the compiler, sorted
  std::string template_hash;         // sha256 of the template's bytes (CPU: of the bitcode)
};

KernelSource generate(const AttentionSpec&, const KernelConfig&, const Target&);

// sha256 over all inputs of the compile and nothing else: text, constants, options, arch, features, template, params version and the
// compiler's identity ("nvrtc 13.0.48", "llvm 19.1.7").
std::string binary_key(const KernelSource&, const std::string& compiler_identity);

// sha256 of all templates and emitters, made at build time: a changed generator marks winners as unconfirmed.
const std::string& generator_hash();

// The files embedded at build time, by their path in the repository ("templates/cuda/decode.cu", "configs/template_config.json").
const std::string& embedded_file(const std::string& path);  // Error internal if there is none
std::vector<std::string> embedded_files();

}  // namespace pagetune
