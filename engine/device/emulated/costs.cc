#include "engine/device/emulated/costs.h"

#include <algorithm>

namespace comoe::device {

Ticks Costs::Kernel(StreamKind kind, const KernelWork& work) const {
  const bool host = kind == StreamKind::kHost;
  const std::optional<double>& each =
      work.experts == 0 ? rates_.dense_seconds_per_kernel
                        : (host ? rates_.host_seconds_per_expert : rates_.device_seconds_per_expert);
  if (each.has_value()) {
    return ToTicks(*each * static_cast<double>(std::max<std::int64_t>(work.experts, 1)));
  }
  if (host) {
    return ToTicks(
        std::max(work.bytes / rates_.host_bytes_per_second, work.flops / rates_.host_flops_per_second));
  }
  return ToTicks(rates_.device_launch_seconds + std::max(work.bytes / rates_.device_bytes_per_second,
                                                         work.flops / rates_.device_flops_per_second));
}

Ticks Costs::Copy(const CopyRoute& route, std::size_t bytes) const {
  const auto size = static_cast<double>(bytes);
  if (route.link) {
    return ToTicks(rates_.link_latency_seconds +
                   size / (route.pageable ? rates_.pageable_bytes_per_second : rates_.link_bytes_per_second));
  }
  if (route.direction.has_value()) {
    return ToTicks(size / rates_.host_copy_bytes_per_second);
  }
  return ToTicks(rates_.device_launch_seconds + 2.0 * size / rates_.device_bytes_per_second);
}

Ticks Costs::DiskRead(std::size_t bytes) const {
  return ToTicks(static_cast<double>(bytes) / rates_.disk_bytes_per_second);
}

CopyRoute RouteOf(MemoryKind source, MemoryKind target) {
  const bool from_device = source == MemoryKind::kDevice;
  const bool to_device = target == MemoryKind::kDevice;
  if (from_device && to_device) {
    return {std::nullopt, false, false};
  }
  if (!from_device && !to_device) {
    return {base::CopyDirection::kHostToHost, false, false};
  }
  const MemoryKind host_end = from_device ? target : source;
  return {from_device ? base::CopyDirection::kDeviceToHost : base::CopyDirection::kHostToDevice, true,
          host_end != MemoryKind::kPinned};
}

}  // namespace comoe::device
