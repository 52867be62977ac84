// From (spec, config) to a loaded module: generate, look up or compile, read the facts back, load.
#pragma once
#include <memory>
#include <vector>

#include "cache_db/store.hpp"
#include "runtime/device.hpp"

namespace pagetune {

// A binary with its facts, from the store or freshly compiled. Configs that differ only in launch-time parameters share it.
Binary build_binary(Compiler&, Store&, const AttentionSpec&, const KernelConfig&, const Target&);
// The binaries of several configs of a spec, side by side: they are in the store then.
void build_binaries(Compiler&, Store&, const AttentionSpec&, const std::vector<KernelConfig>&, const Target&);
std::shared_ptr<const Module> build_module(Device&, Store&, const AttentionSpec&, const KernelConfig&);

// False for code that no kernel of this build comes from: of another compiler, of another CPU template or for other launch parameters. Its key does not tell, so true where its bytes do not either.
bool may_load(const Binary&);

}  // namespace pagetune
