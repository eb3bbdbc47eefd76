#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/cuda/cuda_launcher.h"
#include "engine/kernels/cuda/cuda_ops.h"

namespace comoe::kernels {
namespace {

void SetLayout(const tensor::BlobLayout& layout, CudaExpertFfnArgs& launch) {
  launch.dtype = DTypeOf(layout.down.dtype);
  launch.hidden = layout.hidden;
  launch.intermediate = layout.intermediate;
  launch.gate_up_offset = static_cast<std::int64_t>(layout.gate_up_offset);
  launch.down_offset = static_cast<std::int64_t>(layout.down_offset);
}

// What a gate of its own and that of a resident layer have in common.
template <typename Args>
CudaGateArgs GateOf(const Args& args) {
  CudaGateArgs launch;
  launch.logits = Data(args.logits);
  launch.logits_stride = args.logits.row_stride;
  launch.rows = args.logits.rows;
  launch.num_experts = args.logits.cols;
  launch.experts_per_row = args.experts_per_row;
  launch.normalize = args.normalize;
  launch.mapped_experts = args.experts.data();
  launch.mapped_weights = args.weights.data();
  return launch;
}

// As GateOf, for sums.
template <typename Args>
CudaCombineArgs CombineOf(const Args& args) {
  CudaCombineArgs launch;
  launch.y = Data(args.y);
  launch.y_stride = args.y.row_stride;
  launch.shared = Data(args.shared);
  launch.shared_stride = args.shared.row_stride;
  launch.shared_gate = Data(args.shared_gate);
  launch.shared_gate_stride = args.shared_gate.row_stride;
  launch.out = Data(args.out);
  launch.out_stride = args.out.row_stride;
  launch.rows = args.out.rows;
  launch.cols = args.out.cols;
  return launch;
}

// A region of memory cut up in order.
class Cutter {
 public:
  explicit Cutter(std::byte* data) : data_(data) {}
  template <typename T>
  T* Cut(std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    auto* const begin = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    used_ += base::AlignUp(static_cast<std::size_t>(count) * sizeof(T), kAlignment);
    return begin;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* data_;
  std::size_t used_ = 0;
};

// What the launches of a resident layer hand to each other.
struct RoutedRows {
  std::int32_t* experts = nullptr;  // [T, K]
  float* weights = nullptr;         // [T, K]
  CudaExpertWork* work = nullptr;
  std::int32_t* grouped = nullptr;  // [T * K]
  std::int32_t* source = nullptr;   // [T, K]
  std::byte* workspace = nullptr;
  std::size_t bytes = 0;  // of all
};

// In `memory`; of nullptr only `bytes` is of use.
RoutedRows CutRoutedRows(std::byte* memory, std::int64_t chosen, std::int64_t num_work,
                         std::size_t workspace_bytes) {
  Cutter cutter(memory);
  RoutedRows routed;
  routed.experts = cutter.Cut<std::int32_t>(chosen);
  routed.weights = cutter.Cut<float>(chosen);
  routed.work = cutter.Cut<CudaExpertWork>(num_work);
  routed.grouped = cutter.Cut<std::int32_t>(chosen);
  routed.source = cutter.Cut<std::int32_t>(chosen);
  routed.workspace = cutter.Cut<std::byte>(static_cast<std::int64_t>(workspace_bytes));
  routed.bytes = cutter.used();
  return routed;
}

}  // namespace

absl::Status MoeGateCuda(const MoeGateArgs& args, device::Stream& stream) {
  if (args.logits.rows == 0) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  return launcher.Launch(&CudaLaunchTable::gate, GateOf(args), "gate");
}

template <CudaPrecision kPrecision>
absl::Status ExpertFfnCuda(const ExpertFfnArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaExpertFfnArgs launch;
  // Only the rows from the first expert's to the last's are looked at.
  std::int64_t first = args.experts.front().first_out;
  std::int64_t end = 0;
  for (const ExpertRows& expert : args.experts) {
    const auto rows = static_cast<std::int64_t>(expert.rows.size());
    launch.max_rows = std::max(launch.max_rows, rows);
    first = std::min(first, expert.first_out);
    end = std::max(end, expert.first_out + rows);
  }
  launch.total_rows = end - first;
  if (launch.max_rows == 0) {
    return absl::OkStatus();
  }
  const auto fill = [&](absl::Span<CudaExpertWork> work, absl::Span<std::int32_t> grouped) {
    std::fill(grouped.begin(), grouped.end(), -1);
    for (std::size_t i = 0; i < work.size(); ++i) {
      const ExpertRows& expert = args.experts[i];
      work[i] = {expert.expert.data, static_cast<std::int32_t>(expert.first_out - first),
                 static_cast<std::int32_t>(expert.rows.size())};
      std::copy(expert.rows.begin(), expert.rows.end(), grouped.begin() + (expert.first_out - first));
    }
  };
  COMOE_ASSIGN_OR_RETURN(std::tie(launch.work, launch.grouped),
                         (launcher.Stage<CudaExpertWork, std::int32_t>(
                             args.experts.size(), static_cast<std::size_t>(launch.total_rows), fill)));
  const tensor::BlobLayout& layout = *args.experts.front().expert.layout;
  SetLayout(layout, launch);
  launch.x = Data(args.x);
  launch.x_stride = args.x.row_stride;
  launch.x_rows = args.x.rows;
  launch.num_work = static_cast<std::int64_t>(args.experts.size());
  launch.scratch = Data(args.scratch) + first * args.scratch.row_stride;
  launch.scratch_stride = args.scratch.row_stride;
  launch.y = Data(args.y) + first * args.y.row_stride;
  launch.y_stride = args.y.row_stride;
  launch.precision = kPrecision;
  if (launch.max_rows > kCudaFewRows) {
    launch.workspace_bytes =
        CudaExpertFfnWorkspaceBytes(launch.total_rows, layout.hidden, layout.intermediate, kPrecision);
    COMOE_ASSIGN_OR_RETURN(launch.workspace, launcher.stream().Scratch(launch.workspace_bytes));
  }
  return launcher.Launch(&CudaLaunchTable::expert_ffn, launch, "expert_ffn");
}

absl::Status MoeCombineCuda(const MoeCombineArgs& args, device::Stream& stream) {
  if (args.out.rows == 0) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  CudaCombineArgs launch = CombineOf(args);
  launch.y_rows = args.y.rows;
  launch.mapped_y = Data(args.host_y);
  launch.mapped_y_stride = args.host_y.row_stride;
  const auto fill = [&args](absl::Span<std::int32_t> source, absl::Span<float> weights) {
    std::copy(args.source.begin(), args.source.end(), source.begin());
    std::copy(args.weights.begin(), args.weights.end(), weights.begin());
  };
  COMOE_ASSIGN_OR_RETURN(
      std::tie(launch.source, launch.weights),
      (launcher.Stage<std::int32_t, float>(args.source.size(), args.weights.size(), fill)));
  launch.experts_per_row = static_cast<std::int64_t>(args.source.size()) / args.out.rows;
  return launcher.Launch(&CudaLaunchTable::combine, launch, "combine");
}

template <CudaPrecision kPrecision>
absl::Status MoeResidentCuda(const MoeResidentArgs& args, device::Stream& stream) {
  COMOE_ASSIGN_OR_RETURN(const Launcher launcher, Launcher::Make(stream));
  const std::int64_t rows = args.x.rows;
  const std::int64_t chosen = args.y.rows;
  const std::int64_t num_experts = args.logits.cols;
  const std::int64_t num_work = std::min(num_experts, chosen);
  const std::size_t workspace_bytes =
      rows > kCudaFewRows
          ? CudaExpertFfnWorkspaceBytes(chosen, args.layout->hidden, args.layout->intermediate, kPrecision)
          : 0;
  COMOE_ASSIGN_OR_RETURN(
      std::byte* const scratch,
      launcher.stream().Scratch(CutRoutedRows(nullptr, chosen, num_work, workspace_bytes).bytes));
  const RoutedRows routed = CutRoutedRows(scratch, chosen, num_work, workspace_bytes);

  CudaGateArgs gate = GateOf(args);
  gate.experts = routed.experts;
  gate.weights = routed.weights;
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::gate, gate, "gate"));

  CudaDispatchArgs dispatch;
  dispatch.experts = routed.experts;
  dispatch.rows = rows;
  dispatch.experts_per_row = args.experts_per_row;
  dispatch.num_experts = num_experts;
  dispatch.slots = args.blobs.data();
  dispatch.work = routed.work;
  dispatch.grouped = routed.grouped;
  dispatch.source = routed.source;
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::dispatch, dispatch, "dispatch"));

  CudaExpertFfnArgs ffn;
  SetLayout(*args.layout, ffn);
  ffn.x = Data(args.x);
  ffn.x_stride = args.x.row_stride;
  ffn.x_rows = args.x.rows;
  ffn.grouped = routed.grouped;
  ffn.work = routed.work;
  ffn.num_work = num_work;
  ffn.max_rows = rows;
  ffn.total_rows = chosen;
  ffn.scratch = Data(args.scratch);
  ffn.scratch_stride = args.scratch.row_stride;
  ffn.y = Data(args.y);
  ffn.y_stride = args.y.row_stride;
  ffn.precision = kPrecision;
  ffn.workspace = workspace_bytes > 0 ? routed.workspace : nullptr;
  ffn.workspace_bytes = workspace_bytes;
  COMOE_RETURN_IF_ERROR(launcher.Launch(&CudaLaunchTable::expert_ffn, ffn, "expert_ffn"));

  CudaCombineArgs combine = CombineOf(args);
  combine.source = routed.source;
  combine.weights = routed.weights;
  combine.experts_per_row = args.experts_per_row;
  return launcher.Launch(&CudaLaunchTable::combine, combine, "combine");
}

template absl::Status ExpertFfnCuda<CudaPrecision::kExact>(const ExpertFfnArgs&, device::Stream&);
template absl::Status ExpertFfnCuda<CudaPrecision::kBf16>(const ExpertFfnArgs&, device::Stream&);
template absl::Status MoeResidentCuda<CudaPrecision::kExact>(const MoeResidentArgs&, device::Stream&);
template absl::Status MoeResidentCuda<CudaPrecision::kBf16>(const MoeResidentArgs&, device::Stream&);

}  // namespace comoe::kernels
