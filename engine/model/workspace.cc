#include "engine/model/workspace.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/top_logits.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {
namespace {

constexpr std::size_t kRowAlignment = 64;  // bytes: an AVX-512 vector

// Hands out views in order; a first pass only counts.
class Carver {
 public:
  void Add(tensor::TensorView* view, std::int64_t rows, std::int64_t cols) {
    requests_.push_back({view, rows, cols});
    bytes_ += RowStride(cols) * static_cast<std::size_t>(rows) * sizeof(float);
  }
  std::size_t bytes() const { return bytes_; }
  void Assign(std::byte* data, device::DeviceId device) const {
    for (const Request& request : requests_) {
      const std::size_t stride = RowStride(request.cols);
      *request.view = {
          data, tensor::DType::kF32, request.rows, request.cols, static_cast<std::int64_t>(stride), device};
      data += stride * static_cast<std::size_t>(request.rows) * sizeof(float);
    }
  }

 private:
  struct Request {
    tensor::TensorView* view;
    std::int64_t rows, cols;
  };
  static std::size_t RowStride(std::int64_t cols) {
    return base::AlignUp(static_cast<std::uint64_t>(cols) * sizeof(float), kRowAlignment) / sizeof(float);
  }

  std::vector<Request> requests_;
  std::size_t bytes_ = 0;
};

}  // namespace

absl::Status Workspace::Transfer(const tensor::TensorView& from, const tensor::TensorView& to,
                                 device::Stream& stream) {
  if (from.data == to.data) {
    return absl::OkStatus();
  }
  return stream.CopyAsync(to.data, from.data,
                          static_cast<std::size_t>(from.rows * from.row_stride) * sizeof(float));
}

absl::StatusOr<Workspace> Workspace::Create(const checkpoint::ModelConfig& config, std::int64_t max_rows,
                                            device::Device& device) {
  const std::int64_t slots = max_rows * std::max<std::int64_t>(config.experts_per_token, 1);
  const auto padded = [](std::int64_t f) {
    return (f + tensor::kPanelOutputs - 1) / tensor::kPanelOutputs * tensor::kPanelOutputs;
  };
  // One matrix serves the experts (R K rows of their F) and the dense and shared FFNs (R rows of theirs).
  const std::int64_t scratch_cols =
      std::max({padded(config.expert_intermediate), padded(config.shared_intermediate),
                padded(config.dense_intermediate)});

  const std::int64_t logits_rows = std::min(max_rows, kLogitsRows);
  const std::int64_t top_values = logits_rows * kernels::kMostTopLogits;
  const std::size_t top_bytes = kernels::TopLogitsScratchBytes(logits_rows, kernels::kMostTopLogits);

  Workspace w(max_rows, config);
  Carver carver;
  tensor::TensorView top_scratch, top_ids, top_floats;  // 32-bit values each
  if (!device.host_accessible()) {                      // first, where the alignment is the buffer's
    carver.Add(&top_scratch, 1, static_cast<std::int64_t>(top_bytes / sizeof(float)));
  }
  carver.Add(&w.residual, max_rows, config.hidden);
  carver.Add(&w.normed, max_rows, config.hidden);
  carver.Add(&w.qkv, max_rows, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim);
  carver.Add(&w.attention, max_rows, config.num_heads * config.head_dim);
  carver.Add(&w.projected, max_rows, config.hidden);
  carver.Add(&w.cos, max_rows, config.head_dim / 2);
  carver.Add(&w.sin, max_rows, config.head_dim / 2);
  carver.Add(&w.router, max_rows, config.num_experts);
  carver.Add(&w.ahead_normed, max_rows, config.hidden);
  carver.Add(&w.ahead_router, Workspace::kTargetsAtOnce * max_rows, config.num_experts);
  carver.Add(&w.ffn_scratch, slots, scratch_cols);
  carver.Add(&w.expert_out, slots, config.hidden);
  carver.Add(&w.shared_out, max_rows, config.hidden);
  carver.Add(&w.shared_gate, max_rows, 1);
  carver.Add(&w.logits, logits_rows, config.vocab_size);
  COMOE_ASSIGN_OR_RETURN(
      w.buffer, device.Allocate(device::MemoryKind::kDevice, carver.bytes(), tensor::kWeightAlignment));
  carver.Assign(w.buffer.data(), device.id());

  tensor::TensorView experts, weights;  // 32-bit values each
  Carver host;
  host.Add(&experts, 1, slots);
  host.Add(&weights, 1, slots);
  if (!device.host_accessible()) {
    host.Add(&w.host_cos, max_rows, config.head_dim / 2);
    host.Add(&w.host_sin, max_rows, config.head_dim / 2);
    host.Add(&w.host_ahead_router, Workspace::kTargetsAtOnce * max_rows, config.num_experts);
    host.Add(&w.host_logits, logits_rows, config.vocab_size);
    host.Add(&top_ids, 1, top_values);
    host.Add(&top_floats, 1, top_values);
  }
  COMOE_ASSIGN_OR_RETURN(w.host, device.Allocate(device.host_accessible() ? device::MemoryKind::kHost
                                                                          : device::MemoryKind::kPinned,
                                                 host.bytes(), tensor::kWeightAlignment));
  host.Assign(w.host.data(), {});
  w.experts = {reinterpret_cast<std::int32_t*>(experts.data), static_cast<std::size_t>(slots)};
  w.weights = {weights.f32(), static_cast<std::size_t>(slots)};
  if (device.host_accessible()) {
    w.host_cos = w.cos;
    w.host_sin = w.sin;
    w.host_ahead_router = w.ahead_router;
    w.host_logits = w.logits;
  } else {
    w.top_ids = {reinterpret_cast<std::int32_t*>(top_ids.data), static_cast<std::size_t>(top_values)};
    w.top_values = {top_floats.f32(), static_cast<std::size_t>(top_values)};
    w.top_scratch = {top_scratch.data, top_bytes};
  }

  w.positions.resize(static_cast<std::size_t>(max_rows));
  w.ahead_logits.resize(static_cast<std::size_t>(max_rows * config.num_experts));
  w.row_status.resize(static_cast<std::size_t>(max_rows));
  w.all_rows.resize(static_cast<std::size_t>(max_rows));
  std::iota(w.all_rows.begin(), w.all_rows.end(), 0);
  return w;
}

}  // namespace comoe::model
