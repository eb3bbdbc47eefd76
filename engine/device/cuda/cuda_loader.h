// Finds and loads the CUDA plugin, and says in one line why there is none.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/cuda/plugin_api.h"
#include "engine/device/device.h"

namespace comoe::device {

// Loads `path`, or with "" libcomoe_cuda.so from beside the program or from ../lib; it stays loaded until the
// program ends. UNAVAILABLE, in one line: it is not there, something that it needs is not, or it belongs to
// another version of the program.
absl::StatusOr<const CudaPlugin*> LoadCudaPlugin(const std::string& path);

// Whether there is such a device, without making anything there. UNAVAILABLE says in one line why not.
absl::Status FindCudaDevice(const std::string& path, int ordinal);

// The device of that plugin. UNAVAILABLE says why there is none.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path, const CudaOptions& options);

}  // namespace comoe::device
