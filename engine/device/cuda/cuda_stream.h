// A stream of a CUDA device, and what kernels need of it.
//
// What the entries of a KernelTable for CUDA may take for granted about their arguments:
//  - Matrices (TensorView, PackedMatrixView, ExpertView) lie in device memory. Dense matrices (embedding,
//  qkv,
//    output, router, head, shared gate) are in row order (tensor::MatrixOrder::kRows), FFN blobs in panels.
//  - Weights of norms and biases of products lie in device memory, aligned to 16 bytes.
//  - What MoeGate writes (experts, weights) lies in page-locked memory, which kernels reach at the same
//    address; the host reads it after an event.
//  - All other spans (token ids, rows and sources, weights of MoeCombine, sequences and their block tables,
//    lists of experts) are ordinary host memory that the caller may change as soon as the call returns: read
//    them during the call, and hand them to kernels through Stage().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/cuda/cuda_context.h"
#include "engine/device/cuda/cuda_events.h"
#include "engine/device/cuda/cuda_meter.h"
#include "engine/device/cuda/cuda_ranges.h"
#include "engine/device/device.h"

namespace comoe::device {

// Kernels' own state on a stream (a cuBLAS handle, ...), made by whoever needs it first.
struct CudaKernelState {
  void* data = nullptr;
  void (*destroy)(void* data) = nullptr;
};

// Used by one thread at a time, as every stream. Owned by who created it; outlived by its device.
class CudaStream final : public Stream {
 public:
  // Memory of the ring behind Stage(), in parts of which the calls for one launch take one at most.
  static constexpr std::size_t kStagePart = std::size_t{1} << 20;
  static constexpr std::size_t kStageParts = 8;
  // What Send sends along; more is read where it was staged.
  static constexpr std::size_t kMostSent = std::size_t{14} << 10;

  // All outlive it.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(Device& device, CudaContext& context,
                                                            CudaEvents& events, CudaMeter& meter,
                                                            absl::string_view name, StreamKind kind);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // The cudaStream_t, for launches by the calling thread, whose current device this makes the stream's.
  void* handle() const {
    context_.Enter();
    return stream_;
  }
  // The plugin's launch table; nullptr when it was built without kernels.
  const void* kernels() const { return context_.plugin().kernels; }
  // What a launch function returned: OK for 0.
  absl::Status Launched(int error, absl::string_view kernel) { return context_.Check(error, kernel); }

  // Page-locked memory for the arguments of work queued next, aligned to 256 bytes: the host writes it,
  // kernels read it at the same address. It is used again once all that was queued before the next calls but
  // kStagePart bytes is done. Blocks only when the device is that far behind; allocates nothing. More than
  // kStagePart (steps of tens of thousands of rows) lies apart: it waits for all that is queued, and grows.
  absl::StatusOr<std::byte*> Stage(std::size_t bytes);
  // What kernels queued next read instead of the `bytes` bytes that were written at `staged`, which Stage
  // returned last: for a few KiB a copy in device memory, which travels with the queue. Reading page-locked
  // memory takes a kernel tens of microseconds while the link is busy with experts.
  absl::StatusOr<const std::byte*> Send(const std::byte* staged, std::size_t bytes);
  // Stage, with a copy of `bytes` bytes at `data`, and Send.
  absl::StatusOr<const std::byte*> StageCopy(const void* data, std::size_t bytes);
  // Device memory between the kernels of one operation, aligned to 256 bytes: whoever calls next gets the
  // same. Grows, which allocates and waits for the device, when more is asked for than ever before.
  absl::StatusOr<std::byte*> Scratch(std::size_t bytes);
  // Device memory that stays, aligned to 256 bytes: table `number`, a small one, always at the same address;
  // unless it grows, as Scratch does.
  absl::StatusOr<std::byte*> Table(std::size_t number, std::size_t bytes);
  CudaKernelState& kernel_state() { return kernel_state_; }

  DeviceId device() const override { return {DeviceKind::kCuda, context_.ordinal()}; }
  void SetStage(const base::Stage& stage) override;
  void BeginStep(base::StepId step) override;
  void EndStep() override;
  // Names what is queued from now on for a profiler.
  void UseRanges() { ranges_ = std::make_unique<CudaRanges>(context_.api()); }
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  absl::Status Put(std::byte* target, const void* data, std::size_t bytes) override;
  bool can_capture() const override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<Captured>> EndCapture() override;
  absl::Status Replay(Captured& work) override;
  std::uint64_t capture_version() const override { return capture_version_; }
  absl::StatusOr<Event> Record() override;
  absl::Status Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) override;
  absl::Status Synchronize() override;

 private:
  CudaStream(Device& device, CudaContext& context, CudaEvents& events, CudaMeter& meter,
             absl::string_view name, StreamKind kind);
  void BeginHoldUp(base::WaitEdge edge) override;
  void EndHoldUp() override;
  absl::Status Mark(const CudaMark& mark);
  absl::Status NextPart();
  absl::StatusOr<std::byte*> StageApart(std::size_t bytes);
  absl::StatusOr<std::byte*> Grow(Buffer& buffer, std::size_t bytes);

  Device& device_;
  CudaContext& context_;
  CudaEvents& events_;
  CudaMeter& meter_;
  const std::string name_;
  const StreamKind kind_;
  void* stream_ = nullptr;

  Buffer stage_;      // page-locked
  Buffer arguments_;  // device memory, as large: what Send puts there lies at the same offset
  std::size_t stage_part_ = 0;
  std::size_t stage_used_ = 0;                 // of that part
  std::array<Event, kStageParts> stage_free_;  // when each part may be written again
  Buffer stage_apart_;                         // page-locked
  Buffer scratch_;
  std::vector<Buffer> tables_;
  bool capturing_ = false;
  std::uint64_t capture_version_ = 0;
  CudaKernelState kernel_state_;

  std::size_t lane_ = 0;                                    // in the meter
  CudaMark work_ = {CudaMark::What::kWork, {}, {}, {}, 0};  // what is queued now
  bool working_ = false;                                    // and whether the meter knows
  absl::Status failed_;                                     // of work before, which the next event is to have
  std::unique_ptr<CudaRanges> ranges_;                      // nullptr: no profiler asked for them
  CudaCauses pending_;          // events that may yet fail, and with them the next one recorded
  std::vector<Event> unheard_;  // of a compute stream: all such since it was synchronized
};

}  // namespace comoe::device
