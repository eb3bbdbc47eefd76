// The emulated accelerator on the real clock. Its rules stand in emulated_device.h.
#pragma once

#include <memory>

#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"

namespace comoe::device {

std::unique_ptr<Device> MakeRealDevice(EmulatedOptions options);

}  // namespace comoe::device
