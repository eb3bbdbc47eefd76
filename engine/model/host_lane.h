// Experts computed by the host where they lie, while the device goes on. Inputs come from the device, results
// go back to it, each along its own copy stream.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/kernels/expert_ffn.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/host_pace.h"
#include "engine/model/serving_scratch.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::model {

// Owned by the engine thread; one layer's work at a time.
class HostLane {
 public:
  // Page-locked memory and streams for steps of up to `max_rows` rows. `kernels` run on host streams of
  // `device`; `device_kernels` on its compute streams.
  static absl::StatusOr<std::unique_ptr<HostLane>> Create(const checkpoint::ModelConfig& config,
                                                          std::int64_t max_rows,
                                                          const kernels::KernelTable& kernels,
                                                          const kernels::KernelTable& device_kernels,
                                                          device::Device& device);

  // Where the device's kernels reach host memory and a step has few rows, nothing is copied: the norm writes
  // its rows to DirectInput [T, D], which the host has waited for before Start, and the combine reads results
  // from DirectOutput [T K, D]. Small copies would wait behind experts that the link is busy with. No data
  // where that is not so.
  tensor::TensorView DirectInput(std::int64_t rows) const;
  tensor::TensorView DirectOutput(std::int64_t rows) const;

  // Computes jobs over the rows of `normed` [T, D] (ready on `compute`) into the same rows of `expert_out` [T
  // K, D], or of DirectOutput, as the device would. The jobs' bytes stay where they are until the returned
  // event has happened. Bytes that fail to come, or do not within `limit`, fail their job (HostJob::status)
  // where that is known at once, and the returned event where it is not: the lane itself never waits for
  // longer.
  absl::StatusOr<device::Event> Start(absl::Span<HostJob> jobs, std::int32_t layer,
                                      const tensor::TensorView& normed, const tensor::TensorView& expert_out,
                                      device::Stream& compute, absl::Duration limit);

  // After Start: what its work should take by the rates measured at start, in seconds, and whether copies use
  // the host's memory beside it. Where nothing is copied, time is real and all bytes were there, it is timed.
  void Expect(double seconds, bool beside_copies);
  // Host rates as they were of late.
  void Describe(api::LaneState& lanes);

  // After Start's event did not happen in time: rows may still be written at any time, so the lane is given
  // up.
  void Abandon() { usable_ = false; }
  bool usable() const { return usable_; }

  std::uint64_t bytes() const { return buffer_.size(); }
  // Waits until nothing of it is under way, and says what went wrong.
  absl::Status Synchronize();

 private:
  class Work;

  HostLane() = default;
  bool IsDirect(std::int64_t rows) const;
  // The rows of the step to x_, before what the host stream is given next.
  absl::Status FetchRows(const tensor::TensorView& normed, const base::Stage& stage, device::Stream& compute,
                         absl::Duration limit);

  const kernels::KernelTable* kernels_ = nullptr;
  device::Buffer buffer_;
  tensor::TensorView x_, scratch_, out_;  // [R, D], [R K, padded F], [R K, D], page-locked
  std::vector<kernels::ExpertRows> work_;
  std::int64_t experts_per_row_ = 0;
  bool reaches_host_ = false;

  device::Device* device_ = nullptr;
  device::Event timed_;  // the end of what is timed
  double begin_ = 0.0;   // of what was started last, seconds of the device's clock
  double expected_ = 0.0;
  bool beside_copies_ = false;
  HostPace pace_;
  std::shared_ptr<device::Stream::HostWork> run_;
  bool usable_ = true;
  // Destroyed first: what still runs on them uses what is above.
  std::unique_ptr<device::Stream> inputs_, host_, results_;
};

}  // namespace comoe::model
