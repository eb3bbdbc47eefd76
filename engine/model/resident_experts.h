// Experts that all lie on the device and never move: what a step needs so that the device need not wait for
// the host in MoE layers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {

// Owned by the engine thread. Constant but for what the device writes.
class ResidentExperts {
 public:
  // `cache` has every expert on the device, keeps it where it is for good, and outlives this.
  static absl::StatusOr<std::unique_ptr<ResidentExperts>> Create(const checkpoint::ModelConfig& config,
                                                                 std::int64_t max_rows,
                                                                 experts::ExpertCache& cache,
                                                                 device::Device& device);

  const tensor::BlobLayout& layout() const { return layout_; }
  // Of a sparse layer: [E] addresses, in device memory.
  absl::Span<const std::uint64_t> blobs(std::int64_t layer) const;
  // Of a sparse layer: where the device writes `count` experts and weights, for the host to read after the
  // step.
  absl::Span<std::int32_t> experts(std::int64_t layer, std::int64_t count) const;
  absl::Span<float> weights(std::int64_t layer, std::int64_t count) const;

  std::uint64_t host_bytes() const { return routing_.size(); }

 private:
  ResidentExperts() = default;
  std::size_t Number(std::int64_t layer) const {
    return static_cast<std::size_t>(number_[static_cast<std::size_t>(layer)]);
  }

  tensor::BlobLayout layout_;
  std::size_t num_experts_ = 0;
  std::size_t most_ = 0;              // experts that a layer's rows choose
  std::vector<std::int64_t> number_;  // of each layer among the sparse ones; -1: dense
  device::Buffer table_;              // [sparse layers, E] addresses
  device::Buffer routing_;            // [sparse layers, 2, most] experts and weights, page-locked
};

}  // namespace comoe::model
