#pragma once
#include <string>
#include <string_view>

namespace pagetune {

// FIPS 180-4; 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace pagetune
