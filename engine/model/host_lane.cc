#include "engine/model/host_lane.h"

#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {
namespace {

// Rows of a step that kernels read and write in host memory at most: copies are faster for more.
constexpr std::size_t kMostDirectBytes = std::size_t{128} << 10;
constexpr std::size_t kRowAlignment = 64;  // bytes, as in the workspace: rows are copied as they lie

std::int64_t Stride(std::int64_t cols) {
  return static_cast<std::int64_t>(
      base::AlignUp(static_cast<std::uint64_t>(cols) * sizeof(float), kRowAlignment) / sizeof(float));
}

std::size_t RowBytes(const tensor::TensorView& matrix, std::int64_t rows) {
  return static_cast<std::size_t>(rows * matrix.row_stride) * sizeof(float);
}

}  // namespace

// What runs on the host stream: all experts of a layer that the host was given.
class HostLane::Work final : public device::Stream::HostWork {
 public:
  explicit Work(HostLane& lane) : lane_(lane) {}
  absl::Status Run(device::Stream& stream) override {
    return kernels::ExpertFfn(*lane_.kernels_, {lane_.x_, lane_.work_, lane_.scratch_, lane_.out_}, stream);
  }

 private:
  HostLane& lane_;
};

absl::StatusOr<std::unique_ptr<HostLane>> HostLane::Create(const checkpoint::ModelConfig& config,
                                                           std::int64_t max_rows,
                                                           const kernels::KernelTable& kernels,
                                                           const kernels::KernelTable& device_kernels,
                                                           device::Device& device) {
  std::unique_ptr<HostLane> lane(new HostLane());
  lane->kernels_ = &kernels;
  lane->experts_per_row_ = config.experts_per_token;
  lane->reaches_host_ = device_kernels.reaches_host;
  lane->device_ = &device;
  COMOE_ASSIGN_OR_RETURN(lane->inputs_, device.CreateStream("host-lane-in", device::StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(lane->host_, device.CreateStream("host-lane", device::StreamKind::kHost));
  COMOE_ASSIGN_OR_RETURN(lane->results_, device.CreateStream("host-lane-out", device::StreamKind::kCopy));
  const std::int64_t slots = max_rows * config.experts_per_token;
  const std::int64_t padded_f =
      tensor::MatrixLayout{.n = config.expert_intermediate}.panels() * tensor::kPanelOutputs;
  const std::int64_t d = config.hidden;
  const std::int64_t floats = (max_rows + slots) * Stride(d) + slots * Stride(padded_f);
  COMOE_ASSIGN_OR_RETURN(lane->buffer_,
                         device.Allocate(device::MemoryKind::kPinned,
                                         static_cast<std::size_t>(floats) * sizeof(float), kRowAlignment));
  std::byte* data = lane->buffer_.data();
  const auto carve = [&](std::int64_t rows, std::int64_t cols) {
    const tensor::TensorView view = {data, tensor::DType::kF32, rows, cols, Stride(cols), device.id()};
    data += RowBytes(view, rows);
    return view;
  };
  lane->x_ = carve(max_rows, d);
  lane->scratch_ = carve(slots, padded_f);
  lane->out_ = carve(slots, d);
  lane->work_.reserve(static_cast<std::size_t>(config.num_experts));
  lane->run_ = std::make_shared<Work>(*lane);
  return lane;
}

absl::Status HostLane::Synchronize() {
  absl::Status status = inputs_->Synchronize();
  status.Update(host_->Synchronize());
  status.Update(results_->Synchronize());
  return status;
}

bool HostLane::IsDirect(std::int64_t rows) const {
  return reaches_host_ && RowBytes(x_, rows) <= kMostDirectBytes;
}

tensor::TensorView HostLane::DirectInput(std::int64_t rows) const {
  return IsDirect(rows) ? x_.Rows(0, rows) : tensor::TensorView{};
}

tensor::TensorView HostLane::DirectOutput(std::int64_t rows) const {
  return IsDirect(rows) ? out_.Rows(0, rows * experts_per_row_) : tensor::TensorView{};
}

void HostLane::Expect(double seconds, bool beside_copies) {
  if (!(seconds > 0.0) || device_->simulated()) {
    timed_ = device::Event();
  }
  expected_ = seconds;
  beside_copies_ = beside_copies;
}

void HostLane::Describe(api::LaneState& lanes) {
  if (timed_.state() == nullptr) {
    pace_.NotMeasured();
  } else if (expected_ > 0.0 && timed_.Done()) {
    pace_.Measured(timed_.state()->Seconds() - begin_, expected_, beside_copies_);
    timed_ = device::Event();
  }
  pace_.Describe(lanes);
}

absl::Status HostLane::FetchRows(const tensor::TensorView& normed, const base::Stage& stage,
                                 device::Stream& compute, absl::Duration limit) {
  inputs_->SetStage(stage);
  COMOE_ASSIGN_OR_RETURN(const device::Event normed_ready, compute.Record());
  COMOE_RETURN_IF_ERROR(inputs_->Wait(normed_ready, base::WaitEdge::kRows));
  COMOE_RETURN_IF_ERROR(inputs_->CopyAsync(x_.data, normed.data, RowBytes(x_, normed.rows)));
  COMOE_ASSIGN_OR_RETURN(const device::Event x_ready, inputs_->Record());
  return host_->Wait(x_ready, base::WaitEdge::kRows, limit);
}

absl::StatusOr<device::Event> HostLane::Start(absl::Span<HostJob> jobs, std::int32_t layer,
                                              const tensor::TensorView& normed,
                                              const tensor::TensorView& expert_out, device::Stream& compute,
                                              absl::Duration limit) {
  const base::Stage stage = {base::StageKind::kHostExpert, layer};
  host_->SetStage(stage);
  begin_ = device_->Now();
  timed_ = device::Event();
  expected_ = 0.0;
  const bool direct = IsDirect(normed.rows);
  if (!direct) {
    COMOE_RETURN_IF_ERROR(FetchRows(normed, stage, compute, limit));
  }
  work_.clear();
  bool all_there = true;
  for (HostJob& job : jobs) {
    all_there = all_there && job.ready.Done();
    job.status = host_->Wait(job.ready, base::WaitEdge::kStaged, limit);
    if (job.status.ok()) {
      work_.push_back(job.work);
    }
  }
  if (work_.empty()) {
    return device::Event();
  }
  COMOE_RETURN_IF_ERROR(host_->Submit(*run_));
  COMOE_ASSIGN_OR_RETURN(const device::Event computed, host_->Record());
  if (direct) {
    // What waits for bytes does not say how fast the host computes.
    timed_ = all_there && work_.size() == jobs.size() ? computed : device::Event();
    return computed;
  }
  results_->SetStage(stage);
  COMOE_RETURN_IF_ERROR(results_->Wait(computed, base::WaitEdge::kHostLane));
  for (const kernels::ExpertRows& work : work_) {
    const auto rows = static_cast<std::int64_t>(work.rows.size());
    COMOE_RETURN_IF_ERROR(results_->CopyAsync(expert_out.Rows(work.first_out, rows).data,
                                              out_.Rows(work.first_out, rows).data, RowBytes(out_, rows)));
  }
  return results_->Record();
}

}  // namespace comoe::model
