// Reading configs/template_config.json.
#pragma once
#include <string>
#include <vector>

#include "codegen/space.hpp"

namespace pagetune {

// Checks keys, types and domains; FamilyRules checks names and expressions. Error invalid_argument naming the entry and the key.
std::vector<Family> read_families(const std::string& json_text);

}  // namespace pagetune
