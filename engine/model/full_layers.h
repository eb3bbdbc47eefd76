// MoE layers whose experts all lie on the device, which runs them without the host: it is told what was
// routed where, not asked. What such a layer needs on the device, and what the host has yet to hear of.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {

// Owned by the engine thread. Steps allocate nothing.
class FullLayers {
 public:
  // `cache` outlives it.
  static absl::StatusOr<std::unique_ptr<FullLayers>> Create(const checkpoint::ModelConfig& config,
                                                            std::int64_t max_rows,
                                                            experts::ExpertCache& cache,
                                                            device::Device& device);

  // If every expert of the MoE layer is there: leases them, and has `stream` bring the device's table up to
  // date. Then queue the work of it, or of several such layers, and call Queued.
  absl::StatusOr<bool> Begin(std::int32_t layer, device::Stream& stream);
  // All work of the layers begun is queued: their leases end with it.
  absl::Status Queued(device::Stream& stream);
  // As if there had been no Begin; all that was queued is done.
  void Abandon();

  // Whether the MoE layer that runs after `layer`, maybe in the next step, could run so now. -1: the first.
  bool NextIsFull(std::int32_t layer) const;

  const tensor::BlobLayout& layout() const { return layout_; }
  // Of a MoE layer: [E] addresses, in device memory.
  absl::Span<const std::uint64_t> blobs(std::int32_t layer) const;
  // Of a MoE layer: where the device writes `count` experts and weights, in memory that the host reads.
  absl::Span<std::int32_t> experts(std::int32_t layer, std::int64_t count) const;
  absl::Span<float> weights(std::int32_t layer, std::int64_t count) const;

  // Layers queued whose routing nobody has told the director, oldest first; `done`: it can be read.
  struct Untold {
    std::int32_t layer = 0;
    device::Event done;
  };
  absl::Span<const Untold> untold() const { return absl::MakeConstSpan(untold_).subspan(first_untold_); }
  // The oldest is told.
  void Told();

  std::uint64_t host_bytes() const { return routing_.size(); }

 private:
  explicit FullLayers(experts::ExpertCache& cache) : cache_(cache), layout_(cache.layout()) {}
  std::size_t Number(std::int32_t layer) const {
    return static_cast<std::size_t>(number_[static_cast<std::size_t>(layer)]);
  }

  experts::ExpertCache& cache_;
  const tensor::BlobLayout layout_;
  std::size_t num_experts_ = 0;
  std::size_t stride_ = 0;              // of the table's rows, in addresses
  std::size_t most_ = 0;                // experts that a layer's rows choose
  std::vector<std::int32_t> number_;    // of each layer among the MoE layers; -1: dense
  std::vector<std::int32_t> next_;      // [layers + 1]: after layer i - 1, the MoE layer that comes next
  std::vector<std::uint64_t> version_;  // [MoE layers]: what the table holds; 0: nothing
  device::Buffer table_;                // [MoE layers, stride] addresses, on the device
  device::Buffer routing_;              // [MoE layers, 2, most] experts and weights, page-locked
  std::vector<std::int32_t> leased_;    // between Begin and Queued
  std::vector<Untold> untold_;
  std::size_t first_untold_ = 0;
};

}  // namespace comoe::model
