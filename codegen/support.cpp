#include "codegen/support.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int kMinComputeCapability = 80;  // cp.async and bf16 MMA

// What must hold for a spec to have a meaning at all; dispatch_values() and group_size() rely on it.
std::string heads_refusal(const AttentionSpec& spec) {
  if (spec.kv_heads < 1) return fmt::format("kv_heads is {}; it must be at least 1", spec.kv_heads);
  if (spec.q_heads < 1 || spec.q_heads % spec.kv_heads != 0) {
    return fmt::format("q_heads is {} with kv_heads {}; it must be a multiple of kv_heads, at least {}", spec.q_heads, spec.kv_heads, spec.kv_heads);
  }
  return "";
}

std::string feature_refusal(const AttentionSpec& spec, const Family& family, const std::string& where) {
  constexpr int kMaxTokens = 16;
  if (spec.q_len < 1 || spec.q_len > kMaxTokens) return fmt::format("q_len {} is not implemented for {}; allowed: 1 to {}", spec.q_len, where, kMaxTokens);
  const Domain& dims = family.dispatch_params.at("HEAD_DIM");
  if (spec.head_dim_v != spec.head_dim_k && !dims.contains(spec.head_dim_v)) return fmt::format("head_dim_v {} is not implemented for {}; allowed: {}", spec.head_dim_v, where, dims.text());
  if (spec.address_map != AddressMap::slot && !spec.headwise) {
    return fmt::format("address_map {} has a meaning only for head-wise tables; set headwise, or it must be slot", name_of(spec.address_map));
  }
  return "";
}

std::string layout_refusal(const AttentionSpec& spec) {
  return spec.layout == Layout::nhd || spec.layout == Layout::hnd ? "" : "the layout is invalid; allowed: nhd, hnd";
}

std::string type_refusal(const AttentionSpec& spec, const std::string& where) {
  if (spec.kv_scale != ScaleGranularity::none) {
    return fmt::format("kv_scale {} is not implemented for {} yet; it must be none", name_of(spec.kv_scale), where);
  }
  if (spec.kv_dtype != spec.q_dtype) {
    return fmt::format("kv_dtype {} with q_dtype {} is not implemented for {} yet; it must equal q_dtype", name_of(spec.kv_dtype), name_of(spec.q_dtype), where);
  }
  return "";
}

std::string target_refusal(const Target& target, const Family& family) {
  if (target.backend == Backend::cuda) {
    if (target.compute_capability >= kMinComputeCapability) return "";
    return fmt::format("the target {} has compute capability {}; the CUDA kernels need at least {}", target.arch, target.compute_capability,
                       kMinComputeCapability);
  }
  const std::vector<int>& widths = family.tuning_params.at("VECTOR_BITS");
  const int narrowest = *std::min_element(widths.begin(), widths.end());
  if (target.vector_bits >= narrowest) return "";
  return fmt::format("the target {} has vectors of {} bits; the CPU kernels need at least {}", target.arch, target.vector_bits, narrowest);
}

std::string refusal(const AttentionSpec& spec, const Target& target) {
  const ConfigSpace& space = ConfigSpace::builtin();
  const Family* family = nullptr;
  try {
    family = &space.family(spec.kind, target.backend);
  } catch (const Error& error) {
    return error.what();
  }
  const std::string where = fmt::format("{} on {}", name_of(spec.kind), name_of(target.backend));
  if (std::string reason = target_refusal(target, *family); !reason.empty()) return reason;
  if (std::string reason = heads_refusal(spec); !reason.empty()) return reason;
  if (std::string reason = feature_refusal(spec, *family, where); !reason.empty()) return reason;
  if (std::string reason = layout_refusal(spec); !reason.empty()) return reason;
  if (std::string reason = type_refusal(spec, where); !reason.empty()) return reason;
  return space.refusal(spec, target.backend);
}

}  // namespace

Support supports(const AttentionSpec& spec, const Target& target) {
  std::string reason = refusal(spec, target);
  return {reason.empty(), reason};
}

Support supports(const AttentionSpec& spec, const KernelConfig& config, const Target& target) {
  std::string reason = refusal(spec, target);
  if (reason.empty()) reason = ConfigSpace::builtin().refusal(spec, config, target);
  return {reason.empty(), reason};
}

void require_support(const AttentionSpec& spec, const Target& target) {
  if (std::string reason = refusal(spec, target); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
}

}  // namespace pagetune
