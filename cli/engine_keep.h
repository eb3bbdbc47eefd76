// What goes from one engine to the next of a process, where loading takes longer than what is measured: host
// memory with all experts packed into it, and the card's device, whose memory that is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "engine/device/device.h"
#include "engine/experts/pinned_keep.h"

namespace comoe::cli {

// For engines of which one ends before the next is loaded; not thread-safe. Other flags may differ as they
// like: what another model, device or setting of the device cannot use is freed.
class EngineKeep {
 public:
  // The device that is kept, if it is as `options` want it, else a new one.
  absl::StatusOr<std::shared_ptr<device::Device>> DeviceFor(const EngineOptions& options,
                                                            std::uint64_t blob_bytes);
  // The engine on `device`, which DeviceFor gave last, has ended. Without experts that is not kept either.
  void Keep(std::shared_ptr<device::Device> device);

  experts::PinnedKeep& experts() { return experts_; }
  const experts::PinnedKeep& experts() const { return experts_; }

 private:
  void Clear();

  std::string identity_;                    // of model and device, as they were asked for last
  std::shared_ptr<device::Device> device_;  // outlives the memory
  experts::PinnedKeep experts_;
};

}  // namespace comoe::cli
