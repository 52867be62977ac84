// What an engine's author is told where no winner answers for a spec: that it runs on analytic defaults, what there is, and how to tune.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

// One sentence without an end of line. `rows`: those of the spec, whoever measured them; the nearest device's are named. other_specs: how many others have winners on this device.
std::string no_winners_sentence(const Environment& own, const AttentionSpec&, const std::vector<Store::Row>& rows, size_t other_specs);

// The same of a store on stderr, once for each spec and environment in this process. PAGETUNE_QUIET, set to anything, silences it.
void say_no_winners(const Store&, const Environment& own, const AttentionSpec&);

}  // namespace pagetune
