// From (spec, config) to a loaded module: generate, look up or compile, read the facts back, load.
#pragma once
#include <memory>

#include "cache_db/store.hpp"
#include "runtime/device.hpp"

namespace pagetune {

// A binary with its facts, from the store or freshly compiled. Configs that differ only in launch-time parameters share it.
Binary build_binary(Compiler&, Store&, const AttentionSpec&, const KernelConfig&, const Target&);
std::shared_ptr<const Module> build_module(Device&, Store&, const AttentionSpec&, const KernelConfig&);

}  // namespace pagetune
