#include "cli/lane_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/kernels/add.h"
#include "engine/kernels/expert_ffn.h"

namespace comoe::cli {
namespace {

constexpr int kRepeats = 3;        // the fastest counts
constexpr double kOverlaps = 0.5;  // of the shorter one is hidden: good devices hide 0.85 and more
constexpr double kHoldsUp = 0.5;   // of its time, the caller waits
constexpr std::int64_t kMostLaunches = 4096;
constexpr double kMostlyQueued = 0.2;  // a launch whose queueing takes more of its time says little
constexpr std::int64_t kLargeRows = 2048, kLargeCols = 8192;  // 64 MiB: some ten times a launch, on any card

void Nothing() {}

}  // namespace

double HiddenShare(const OverlapTimes& times, const LaneTime& both) {
  const double shorter = std::min(times.copy.seconds, times.compute.seconds);
  return shorter > 0.0 ? (times.copy.seconds + times.compute.seconds - both.seconds) / shorter : 0.0;
}

OverlapCause JudgeOverlap(const OverlapTimes& times, bool pinned) {
  const bool copy_first = HiddenShare(times, times.copy_first) >= kOverlaps;
  const bool compute_first = HiddenShare(times, times.compute_first) >= kOverlaps;
  if (copy_first && compute_first) {
    return OverlapCause::kNone;
  }
  if (times.copy.call_seconds >= kHoldsUp * times.copy.seconds) {
    return pinned ? OverlapCause::kBlockingCopies : OverlapCause::kPageableSource;
  }
  if (times.compute.call_seconds >= kHoldsUp * times.compute.seconds) {
    return OverlapCause::kBlockingLaunches;
  }
  return OverlapCause::kOneStream;
}

absl::StatusOr<std::unique_ptr<LaneBench>> LaneBench::Create(device::Device& device,
                                                             device::MemoryKind source,
                                                             std::size_t copy_bytes) {
  auto bench = std::unique_ptr<LaneBench>(new LaneBench(device, copy_bytes));
  COMOE_ASSIGN_OR_RETURN(bench->source_, device.Allocate(source, copy_bytes, tensor::kWeightAlignment));
  COMOE_ASSIGN_OR_RETURN(bench->target_,
                         device.Allocate(device::MemoryKind::kDevice, copy_bytes, tensor::kWeightAlignment));
  std::memset(bench->source_.data(), 0, copy_bytes);
  COMOE_ASSIGN_OR_RETURN(bench->copy_, device.CreateStream("doctor-copy", device::StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(bench->compute_,
                         device.CreateStream("doctor-compute", device::StreamKind::kCompute));
  return bench;
}

absl::StatusOr<LaneTime> LaneBench::Time(absl::FunctionRef<absl::Status()> queue,
                                         absl::FunctionRef<void()> meanwhile) {
  LaneTime best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    COMOE_RETURN_IF_ERROR(copy_->Synchronize());
    COMOE_RETURN_IF_ERROR(compute_->Synchronize());
    const double begin = device_.Now();
    COMOE_RETURN_IF_ERROR(queue());
    const double queued = device_.Now();
    meanwhile();
    COMOE_RETURN_IF_ERROR(copy_->Synchronize());
    COMOE_RETURN_IF_ERROR(compute_->Synchronize());
    const double end = device_.Now();
    if (end - begin < best.seconds) {
      best = {end - begin, queued - begin};
    }
  }
  return best;
}

absl::StatusOr<LaneTime> LaneBench::Copies(std::size_t bytes, int count,
                                           absl::FunctionRef<void()> meanwhile) {
  return Time(
      [&]() -> absl::Status {
        for (int i = 0; i < count; ++i) {
          COMOE_RETURN_IF_ERROR(
              copy_->CopyAsync(target_.data(), source_.data(), std::min(bytes, copy_bytes_)));
        }
        return absl::OkStatus();
      },
      meanwhile);
}

// Device memory need not be the host's: zeros are copied there.
absl::Status LaneBench::Clear(const device::Buffer& buffer) {
  for (std::size_t at = 0; at < buffer.size(); at += copy_bytes_) {
    COMOE_RETURN_IF_ERROR(
        copy_->CopyAsync(buffer.data() + at, source_.data(), std::min(copy_bytes_, buffer.size() - at)));
  }
  return copy_->Synchronize();
}

absl::StatusOr<tensor::TensorView> LaneBench::Zeros(std::int64_t rows, std::int64_t cols) {
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * sizeof(float);
  COMOE_ASSIGN_OR_RETURN(device::Buffer buffer,
                         device_.Allocate(device::MemoryKind::kDevice, bytes, tensor::kWeightAlignment));
  COMOE_RETURN_IF_ERROR(Clear(buffer));
  buffers_.push_back(std::move(buffer));
  return tensor::TensorView{buffers_.back().data(), tensor::DType::kF32, rows, cols, cols, device_.id()};
}

absl::StatusOr<OverlapTimes> LaneBench::MeasureOverlap(const kernels::KernelTable& kernels,
                                                       const tensor::BlobLayout& layout) {
  COMOE_ASSIGN_OR_RETURN(const device::Buffer blob, device_.Allocate(device::MemoryKind::kDevice,
                                                                     layout.bytes, tensor::kWeightAlignment));
  COMOE_RETURN_IF_ERROR(Clear(blob));
  COMOE_ASSIGN_OR_RETURN(const tensor::TensorView x, Zeros(1, layout.hidden));
  COMOE_ASSIGN_OR_RETURN(const tensor::TensorView scratch, Zeros(1, layout.gate_up.n / 2));
  COMOE_ASSIGN_OR_RETURN(const tensor::TensorView y, Zeros(1, layout.hidden));
  const std::int32_t row = 0;
  const kernels::ExpertRows rows = {{blob.data(), &layout}, {&row, 1}, 0};
  // A small expert may be computed in less time than it takes to queue it: then sums of large matrices.
  tensor::TensorView large_x, large_y;
  std::int64_t launches = 1;
  const auto launch = [&]() -> absl::Status {
    for (std::int64_t i = 0; i < launches; ++i) {
      COMOE_RETURN_IF_ERROR(large_x.data == nullptr
                                ? kernels::ExpertFfn(kernels, {x, {&rows, 1}, scratch, y}, *compute_)
                                : kernels::Add(kernels, {large_x, large_y}, *compute_));
    }
    return absl::OkStatus();
  };
  const auto copy = [&] { return copy_->CopyAsync(target_.data(), source_.data(), copy_bytes_); };
  OverlapTimes times;
  COMOE_ASSIGN_OR_RETURN(times.copy, Time(copy, Nothing));
  COMOE_ASSIGN_OR_RETURN(LaneTime one, Time(launch, Nothing));
  if (one.call_seconds > kMostlyQueued * one.seconds) {
    COMOE_ASSIGN_OR_RETURN(large_x, Zeros(kLargeRows, kLargeCols));
    COMOE_ASSIGN_OR_RETURN(large_y, Zeros(kLargeRows, kLargeCols));
    COMOE_ASSIGN_OR_RETURN(one, Time(launch, Nothing));
  }
  if (one.seconds > 0.0) {
    launches = std::clamp<std::int64_t>(std::llround(times.copy.seconds / one.seconds), 1, kMostLaunches);
  }
  COMOE_ASSIGN_OR_RETURN(times.compute, Time(launch, Nothing));
  COMOE_ASSIGN_OR_RETURN(times.copy_first, Time(
                                               [&]() -> absl::Status {
                                                 COMOE_RETURN_IF_ERROR(copy());
                                                 return launch();
                                               },
                                               Nothing));
  COMOE_ASSIGN_OR_RETURN(times.compute_first, Time(
                                                  [&]() -> absl::Status {
                                                    COMOE_RETURN_IF_ERROR(launch());
                                                    return copy();
                                                  },
                                                  Nothing));
  return times;
}

}  // namespace comoe::cli
