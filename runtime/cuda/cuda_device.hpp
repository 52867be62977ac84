#pragma once
#include <memory>

#include "runtime/device.hpp"

namespace pagetune::cuda {

int device_count();  // Error no_device if there is no driver
std::shared_ptr<Device> open_device(int ordinal);

}  // namespace pagetune::cuda
