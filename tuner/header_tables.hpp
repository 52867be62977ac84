// Winners as the runtime's dispatch tables answer with them, to be written as a header.
#pragma once
#include <vector>

#include "cache_db/export_header.hpp"
#include "cache_db/store.hpp"

namespace pagetune {

// One table for each environment and spec of the rows, which hold no blocked config. The analytic default is that of the environment's architecture and processors.
std::vector<HeaderTable> header_tables(const std::vector<Store::Row>& rows);

}  // namespace pagetune
