// Copies and kernels on streams of their own, timed on the device's clock: how fast the link is, and whether
// copies and compute run at the same time. Written against the device seam alone.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::cli {

// Seconds: of the work, and of them those in which queuing it held the caller up.
struct LaneTime {
  double seconds = 0.0;
  double call_seconds = 0.0;
};

struct OverlapTimes {
  LaneTime copy;           // alone
  LaneTime compute;        // alone, about as long
  LaneTime copy_first;     // both, the copy queued before the kernels
  LaneTime compute_first;  // both, the other way round
};

// Why copies and compute do not run at the same time.
enum class OverlapCause {
  kNone,              // they do
  kPageableSource,    // a copy holds up who queues it
  kBlockingCopies,    // the same, though the source is page-locked
  kBlockingLaunches,  // a kernel does
  kOneStream          // neither does: the device takes its work in one order
};

// Of the shorter of two pieces of work, how much the longer one hid: 1 all, 0 nothing.
double HiddenShare(const OverlapTimes& times, const LaneTime& both);
OverlapCause JudgeOverlap(const OverlapTimes& times, bool pinned);

// Used by one thread. `device` and `kernels` outlive it.
class LaneBench {
 public:
  // `source` is the kind of memory that copies come from. RESOURCE_EXHAUSTED when it cannot be had.
  // A copy is of `copy_bytes` > 0 at most.
  static absl::StatusOr<std::unique_ptr<LaneBench>> Create(device::Device& device, device::MemoryKind source,
                                                           std::size_t copy_bytes);

  // Of `count` copies of `bytes` each to the device, one after the other. `meanwhile` is called
  // while they are under way (where copies do not hold up the caller).
  absl::StatusOr<LaneTime> Copies(std::size_t bytes, int count, absl::FunctionRef<void()> meanwhile);
  // Computes an expert of that layout, over and over, beside copies.
  absl::StatusOr<OverlapTimes> MeasureOverlap(const kernels::KernelTable& kernels,
                                              const tensor::BlobLayout& layout);

 private:
  LaneBench(device::Device& device, std::size_t copy_bytes) : device_(device), copy_bytes_(copy_bytes) {}
  absl::StatusOr<LaneTime> Time(absl::FunctionRef<absl::Status()> queue, absl::FunctionRef<void()> meanwhile);
  absl::StatusOr<tensor::TensorView> Zeros(std::int64_t rows, std::int64_t cols);
  absl::Status Clear(const device::Buffer& buffer);

  device::Device& device_;
  const std::size_t copy_bytes_;
  device::Buffer source_;
  device::Buffer target_;
  std::vector<device::Buffer> buffers_;
  std::unique_ptr<device::Stream> copy_;
  std::unique_ptr<device::Stream> compute_;
};

}  // namespace comoe::cli
