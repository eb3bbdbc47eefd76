// Scratch of a forward pass, allocated once for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/model/dispatch_plan.h"
#include "engine/model/serving_scratch.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::model {

// R is the largest number of rows of a step; a step of T rows uses the first T of each. Owned by the engine
// thread.
struct Workspace {
  static absl::StatusOr<Workspace> Create(const checkpoint::ModelConfig& config, std::int64_t max_rows,
                                          device::Device& device);

  device::Buffer buffer;  // device memory
  device::Buffer host;  // what the host reads and writes: page-locked where device memory is out of its reach
  tensor::TensorView residual;      // [R, D]
  tensor::TensorView normed;        // [R, D]
  tensor::TensorView qkv;           // [R, (H + 2 G) P]
  tensor::TensorView attention;     // [R, H P]
  tensor::TensorView projected;     // [R, D]
  tensor::TensorView cos, sin;      // [R, P / 2]
  tensor::TensorView router;        // [R, E]
  tensor::TensorView ahead_normed;  // [R, D]: a later layer's norm of this layer's input
  tensor::TensorView ahead_router;  // [kTargetsAtOnce * R, E]: and what routers make of that, T rows for each
  tensor::TensorView ffn_scratch;   // [R K or R, widest padded F]
  tensor::TensorView expert_out;    // [R K, D]
  tensor::TensorView shared_out;    // [R, D]
  tensor::TensorView shared_gate;   // [R, 1]
  tensor::TensorView logits;        // [min(R, kLogitsRows), V]
  // The same where the host reads and writes device memory; else its own, which Transfer() copies to or from.
  tensor::TensorView host_cos, host_sin, host_ahead_router, host_logits;

  // Of kernels::TopLogits, where the host does not reach device memory; else empty.
  absl::Span<std::int32_t> top_ids;   // [min(R, kLogitsRows), kMostTopLogits], written by the device
  absl::Span<float> top_values;       // the same
  absl::Span<std::byte> top_scratch;  // device memory

  std::vector<std::int64_t> positions;  // [R]
  absl::Span<std::int32_t> experts;     // [R, K], written by the device
  absl::Span<float> weights;            // [R, K], written by the device
  std::vector<std::int32_t> all_rows;   // 0, 1, ..., R - 1
  std::vector<float> ahead_logits;      // [R, E]
  DispatchPlan dispatch;
  ServingScratch serving;
  // [R]: of rows that a step goes on without, why; all OK when none is (any_row_failed).
  std::vector<absl::Status> row_status;
  bool any_row_failed = false;

  std::uint64_t bytes() const { return buffer.size(); }
  std::uint64_t host_bytes() const { return host.size(); }

  // Queues the copy of the first rows of one matrix to those of its counterpart, both as Use() cuts them.
  // Nothing where they are the same.
  static absl::Status Transfer(const tensor::TensorView& from, const tensor::TensorView& to,
                               device::Stream& stream);

  // Layers ahead whose routers are queued before the host waits for their scores.
  static constexpr std::int64_t kTargetsAtOnce = 4;
  // Logits are computed this many rows at a time: a whole prompt's would take rows x vocabulary floats.
  static constexpr std::int64_t kLogitsRows = 64;

 private:
  Workspace(std::int64_t max_rows, const checkpoint::ModelConfig& config)
      : dispatch(max_rows, config.experts_per_token, config.num_experts), serving(config.num_experts) {}
};

}  // namespace comoe::model
