#include "engine/runtime/lane_rates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/kernels/expert_ffn.h"
#include "engine/model/serving_scratch.h"

namespace comoe::runtime {
namespace {

// The fastest counts: nothing else makes work faster than it is. The first ones find threads that have to be
// made and memory that was never touched.
constexpr int kRepeats = 5;
constexpr std::int32_t kSeveralRows = 4;

// From the end of all that is queued on `compute` to the end of what `work` queues, as `compute` sees it.
template <class Work>
absl::StatusOr<double> Seconds(device::Stream& compute, const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    COMOE_RETURN_IF_ERROR(compute.Synchronize());
    COMOE_ASSIGN_OR_RETURN(const device::Event begin, compute.Record());
    COMOE_RETURN_IF_ERROR(begin.Synchronize());  // host work need not wait for it
    COMOE_RETURN_IF_ERROR(work());
    COMOE_ASSIGN_OR_RETURN(const device::Event end, compute.Record());
    COMOE_RETURN_IF_ERROR(compute.Synchronize());
    if (begin.state() == nullptr || end.state() == nullptr) {
      return 0.0;
    }
    best = std::min(best, end.state()->Seconds() - begin.state()->Seconds());
  }
  return std::isfinite(best) ? std::max(best, 0.0) : 0.0;
}

absl::StatusOr<device::Buffer> ZeroBlob(device::Device& device, device::MemoryKind kind, std::size_t bytes) {
  COMOE_ASSIGN_OR_RETURN(device::Buffer blob, device.Allocate(kind, bytes, tensor::kWeightAlignment));
  if (kind != device::MemoryKind::kDevice || device.id().kind != device::DeviceKind::kCuda) {
    std::memset(blob.data(), 0, blob.size());
  }
  return blob;
}

absl::StatusOr<double> BytesPerSecond(device::Device& device, device::StreamKind kind, std::byte* target,
                                      const std::byte* source, std::size_t bytes) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream, device.CreateStream("measure", kind));
  COMOE_ASSIGN_OR_RETURN(const double seconds,
                         Seconds(*stream, [&] { return stream->CopyAsync(target, source, bytes); }));
  return seconds > 0.0 ? static_cast<double>(bytes) / seconds : 0.0;
}

}  // namespace

absl::StatusOr<CopyRates> MeasureCopies(device::Device& device, std::size_t blob_bytes, bool page_lock) {
  CopyRates rates;
  COMOE_ASSIGN_OR_RETURN(const device::Buffer on_device,
                         ZeroBlob(device, device::MemoryKind::kDevice, blob_bytes));
  COMOE_ASSIGN_OR_RETURN(const device::Buffer host, ZeroBlob(device, device::MemoryKind::kHost, blob_bytes));
  // Where nothing can be page-locked, copies are pageable: that is then their rate.
  absl::StatusOr<device::Buffer> pinned = absl::UnavailableError("not asked for");
  if (page_lock) {
    pinned = ZeroBlob(device, device::MemoryKind::kPinned, blob_bytes);
  }
  std::byte* const near = pinned.ok() ? pinned->data() : host.data();
  using device::StreamKind;
  COMOE_ASSIGN_OR_RETURN(rates.host_to_device,
                         BytesPerSecond(device, StreamKind::kCopy, on_device.data(), near, blob_bytes));
  COMOE_ASSIGN_OR_RETURN(rates.device_to_host,
                         BytesPerSecond(device, StreamKind::kCopy, near, on_device.data(), blob_bytes));
  if (pinned.ok()) {
    COMOE_ASSIGN_OR_RETURN(rates.host_to_host,
                           BytesPerSecond(device, StreamKind::kHost, near, host.data(), blob_bytes));
  }
  return rates;
}

absl::StatusOr<api::LaneState> MeasureLanes(const tensor::BlobLayout& layout,
                                            const kernels::KernelTable& kernels, model::Workspace& work,
                                            device::Stream& compute, model::HostLane* host_lane,
                                            device::Device& device) {
  api::LaneState lanes;
  if (device.id().kind == device::DeviceKind::kCpu || work.expert_out.rows == 0) {
    return lanes;
  }
  COMOE_ASSIGN_OR_RETURN(const device::Buffer blob,
                         ZeroBlob(device, device::MemoryKind::kDevice, layout.bytes));
  const absl::Span<const std::int32_t> one_row = absl::MakeConstSpan(work.all_rows).first(1);
  const std::int64_t padded = layout.gate_up.n / 2;
  COMOE_ASSIGN_OR_RETURN(
      lanes.device_seconds_per_expert, Seconds(compute, [&] {
        const kernels::ExpertRows rows = {{blob.data(), &layout}, one_row, 0};
        return kernels::ExpertFfn(
            kernels, {work.normed, {&rows, 1}, work.ffn_scratch.Cols(0, padded), work.expert_out}, compute);
      }));
  if (host_lane == nullptr) {
    return lanes;
  }
  COMOE_ASSIGN_OR_RETURN(const device::Buffer host_blob,
                         ZeroBlob(device, device::MemoryKind::kPinned, layout.bytes));
  const auto host_seconds = [&](std::int32_t rows) {
    return Seconds(compute, [&]() -> absl::Status {
      model::HostJob job = {{{host_blob.data(), &layout},
                             absl::MakeConstSpan(work.all_rows).first(static_cast<std::size_t>(rows)),
                             0},
                            device::Event(),
                            absl::OkStatus()};
      COMOE_ASSIGN_OR_RETURN(const device::Event done,
                             host_lane->Start({&job, 1}, 0, work.normed.Rows(0, rows), work.expert_out,
                                              compute, absl::InfiniteDuration()));
      return compute.Wait(done, base::WaitEdge::kHostLane);
    });
  };
  COMOE_ASSIGN_OR_RETURN(lanes.host_seconds_per_expert, host_seconds(1));
  const auto several = static_cast<std::int32_t>(std::min<std::int64_t>(kSeveralRows, work.normed.rows));
  if (several > 1) {
    COMOE_ASSIGN_OR_RETURN(const double seconds, host_seconds(several));
    lanes.host_seconds_per_row = std::max(0.0, (seconds - lanes.host_seconds_per_expert) / (several - 1));
  }
  return lanes;
}

}  // namespace comoe::runtime
