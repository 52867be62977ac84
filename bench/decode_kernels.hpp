// The kernels that bench_decode needs: which works its cases are, their candidates, and compiling many side by side.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cache_db/store.hpp"
#include "decode_cases.hpp"
#include "runtime/device.hpp"
#include "tuner/worklist.hpp"

namespace pagetune::bench {

using KernelList = std::vector<std::pair<AttentionSpec, KernelConfig>>;

// The buckets of all passes, by spec; without those whose K and V take more than memory_limit.
std::vector<Work> works_of(const std::vector<Group>&, size_t memory_limit);

// The candidates of works, one for each binary: the defaults first, then strides over all the others, so that no spec and no corner of the
// space is favoured where time ends first.
KernelList candidate_kernels(const std::vector<Work>&, const Target&, const Store&, const std::string& env_key);

// Adds a kernel unless the list has its binary.
void add_kernel(KernelList&, const AttentionSpec&, const KernelConfig&);

// Compiles into the store on all cores until the seconds have passed; returns how many kernels are there. Names what does not build.
int64_t build_kernels(Compiler&, Store&, const Target&, const KernelList&, double limit_s);

}  // namespace pagetune::bench
