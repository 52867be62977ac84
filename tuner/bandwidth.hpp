// Read bandwidths measured on whole devices: the floor under every decode time.
#pragma once
#include <cstdint>
#include <string>

namespace pagetune {

// Bytes per microsecond that a launch can read from memory on the device of this product name; 0 if nobody has measured it.
double read_bandwidth(const std::string& device_name);
// Microseconds that reading `bytes` takes at least; 0 if unknown.
double floor_us(const std::string& device_name, int64_t bytes);

}  // namespace pagetune
