// What a CUDA device must do, as checks that run over the fake plugin in unit tests and over a GPU in
// cuda_device_check. Each returns what is wrong.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/device/device.h"

namespace comoe::testing {

struct DeviceCheck {
  absl::string_view name;
  absl::Status (*run)(device::Device& device);
};

const std::vector<DeviceCheck>& DeviceChecks();

}  // namespace comoe::testing
