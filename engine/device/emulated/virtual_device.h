// The emulated accelerator on a virtual clock. Its rules stand in emulated_device.h.
//
// The host's time `now` is behind what is queued: each lane has the time at which its work ends, known as
// soon as the work is queued. Bytes follow: copies wait in their lane until somebody may see them. When the
// host blocks, the clock goes from one notification to the next, and what a listener queues starts at the
// time it was told.
#pragma once

#include <memory>

#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"

namespace comoe::device {

std::unique_ptr<Device> MakeVirtualDevice(EmulatedOptions options);

}  // namespace comoe::device
