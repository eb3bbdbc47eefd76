// An emulated accelerator: host memory behind a link, a device and a host lane, which are rates. Results are
// really computed, on the host; times are those of the rates. It is for tests and studies, and no GPU.
//
// On the virtual clock (the default) time is simulated, so that runs repeat exactly:
//  - The clock is the calling thread's, and moves only while that blocks: in Synchronize of a stream or an
//    event, and in a copy from or to pageable memory. All else the host does takes no time. Polling Done()
//    moves nothing.
//  - Each stream works in order, from when work is queued. A direction of the link moves one copy at a time:
//    of those whose stream has come to them, the one that was queued first.
//  - The bytes of a copy move when somebody may see them: when an event behind it is waited for, when its
//    stream is synchronised or runs a kernel, or when the clock passes its end. Who forgets to wait reads
//    stale bytes.
//  - A copy on the compute stream counts as compute.
//  - All streams and events, and Notify, Now, times and SetTimeline, belong to one thread. Listeners run on
//    it, in order of time, never one inside another.
//
// On the real clock copies and host work run on threads of their own, copies last as long as the rates say,
// and kernels as long as they take. Streams may then be used by a thread each, listeners included.
//
// A copy that hangs never ends, and the events recorded between it and the next copy's never happen; the work
// behind it is not held up. A copy that fails takes its time, moves nothing, and fails the next event
// recorded on its stream. A late one holds up its stream, and not the link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/stage.h"
#include "engine/device/device.h"

namespace comoe::device {

// Every rate is above 0 (infinity: takes no time), every latency at least 0. The defaults are "pcie4x16".
struct EmulatedRates {
  double link_bytes_per_second = 25e9;  // each direction, page-locked memory
  double link_latency_seconds = 10e-6;  // of each copy
  double pageable_bytes_per_second = 8e9;
  double device_bytes_per_second = 900e9;
  double device_flops_per_second = 60e12;
  double device_launch_seconds = 4e-6;  // of each kernel
  double host_bytes_per_second = 60e9;  // experts computed by the host lane
  double host_flops_per_second = 1e12;
  double host_copy_bytes_per_second = 12e9;  // within host memory
  double disk_bytes_per_second = 6e9;

  // For studies: an expert-FFN launch over n experts takes n times this, and any other kernel that much,
  // whatever the sizes.
  std::optional<double> device_seconds_per_expert;
  std::optional<double> host_seconds_per_expert;
  std::optional<double> dense_seconds_per_kernel;
};

// A consumer card of 24 GB in a desktop, on a link by name: "pcie3x16", "pcie4x8", ... INVALID_ARGUMENT lists
// the names.
absl::StatusOr<EmulatedRates> PresetRates(absl::string_view name);
absl::Span<const absl::string_view> PresetNames();

// A copy as it is queued. `index` counts the device's copies.
struct CopyRequest {
  base::Stage stage;
  std::size_t bytes = 0;
  base::CopyDirection direction = base::CopyDirection::kHostToDevice;
  std::uint64_t index = 0;
};

// What becomes of a copy.
struct CopyFault {
  enum class Kind { kNone, kFail, kHang, kLate };
  static CopyFault None() { return {}; }
  static CopyFault Fail(absl::Status status) { return {Kind::kFail, std::move(status), 0.0}; }
  static CopyFault Hang() { return {Kind::kHang, absl::OkStatus(), 0.0}; }
  static CopyFault Late(double seconds) { return {Kind::kLate, absl::OkStatus(), seconds}; }

  Kind kind = Kind::kNone;
  absl::Status status;  // kFail: not OK
  double late_seconds = 0.0;
};

// Ways in which copies and kernels end up one after the other, as broken set-ups have it. Virtual clock only.
enum class EmulatedSerial {
  kNone,
  kOneStream,        // all streams are one, as when everything is queued on a default stream
  kBlockingLaunches  // a kernel holds up who queues it until its end
};

struct EmulatedOptions {
  EmulatedRates rates;
  bool real_clock = false;
  int threads = 1;                 // that compute, the caller's included
  std::uint64_t device_bytes = 0;  // limits; 0: none
  std::uint64_t pinned_bytes = 0;
  bool refuse_pinned = false;  // as a system does that locks no pages
  EmulatedSerial serial = EmulatedSerial::kNone;
  // Asked for each copy that crosses the link or stays in host memory, by the thread that queues it.
  std::function<CopyFault(const CopyRequest&)> copy_faults;
};

// INVALID_ARGUMENT names a rate that is not one.
absl::StatusOr<std::unique_ptr<Device>> MakeEmulatedDevice(EmulatedOptions options);

}  // namespace comoe::device
