// What emulated devices say.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/stage.h"
#include "engine/device/emulated/emulated_device.h"

namespace comoe::device {

std::string DescribeEmulated(const EmulatedOptions& options);

// Of waiting for a copy that hangs: without a limit, and with one.
absl::Status NeverEndsError();
absl::Status NotInTimeError(absl::Duration limit);

}  // namespace comoe::device
