// The columns that let a person query winners in the words of template_config.json.
#pragma once
#include <array>

namespace pagetune {

// The keys of dispatch_values(): a spec that has no value for one leaves it NULL.
inline constexpr std::array kDispatchColumns = {"GROUP_SIZE",     "HEAD_DIM", "BLOCK_SIZE",  "CAUSAL",   "BLOCK_SHAPE_Q",
                                                "ENABLE_PREFILL", "IsFP8",    "IsDynamicC8", "KV_HEADS", "HEADWISE"};

}  // namespace pagetune
