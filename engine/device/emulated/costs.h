// How long work takes at an emulated device's rates.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/base/stage.h"
#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/device/emulated/emulated_memory.h"
#include "engine/device/emulated/emulated_stream.h"
#include "engine/device/emulated/ticks.h"

namespace comoe::device {

// What a copy does, by where its ends lie.
struct CopyRoute {
  std::optional<base::CopyDirection> direction;  // nullopt: within the device
  bool link = false;                             // goes over the link...
  bool pageable = false;                         // ...and its host end is not page-locked
};

class Costs {
 public:
  explicit Costs(const EmulatedRates& rates) : rates_(rates) {}

  Ticks Kernel(StreamKind kind, const KernelWork& work) const;
  Ticks Copy(const CopyRoute& route, std::size_t bytes) const;
  Ticks DiskRead(std::size_t bytes) const;
  const EmulatedRates& rates() const { return rates_; }

 private:
  const EmulatedRates rates_;
};

CopyRoute RouteOf(MemoryKind source, MemoryKind target);

}  // namespace comoe::device
