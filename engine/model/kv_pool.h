// Physical KV blocks of every layer, allocated once. Who owns which block is the scheduler's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/engine.h"
#include "engine/api/model_info.h"
#include "engine/api/step_plan.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/tensor/kv_layout.h"

namespace comoe::model {

// Which cache group each layer keeps its state in: one group of full KV, one more for each window size.
struct CacheGroups {
  std::vector<api::CacheGroup> groups;
  std::vector<std::int32_t> group_of_layer;  // [L]
  tensor::KvLayout layout;                   // of every layer
};
CacheGroups MakeCacheGroups(const checkpoint::ModelConfig& config,
                            tensor::DType kv_dtype = tensor::DType::kF32);

// Owned by the engine thread.
class KvPool {
 public:
  // Blocks that `budget_bytes` holds, the same number of positions for every group, in the dtype that
  // `groups` was made for. RESOURCE_EXHAUSTED when that is not even one block a group.
  static absl::StatusOr<KvPool> Create(const checkpoint::ModelConfig& config, const CacheGroups& groups,
                                       std::uint64_t budget_bytes, device::Device& device);

  const std::vector<std::int32_t>& num_blocks() const { return num_blocks_; }  // per group
  std::uint64_t bytes() const { return buffer_.size(); }
  const tensor::KvView& layer(std::int64_t layer) const { return views_[static_cast<std::size_t>(layer)]; }

  absl::StatusOr<api::StateSnapshot> Snapshot(const std::vector<api::GroupState>& groups,
                                              std::int64_t num_tokens) const;
  absl::Status Restore(const api::StateSnapshot& snapshot, const std::vector<api::GroupState>& groups) const;

 private:
  // Calls visit(group, view, block) for every block of the first num_tokens positions, in a fixed order.
  template <typename Visit>
  absl::Status VisitBlocks(const std::vector<api::GroupState>& groups, std::int64_t num_tokens,
                           const Visit& visit) const;

  // Copies a block out of the pool or into it; done once Settle() returns.
  absl::Status Copy(std::byte* target, const std::byte* source, std::size_t bytes) const;
  absl::Status Settle() const;

  device::Buffer buffer_;
  std::unique_ptr<device::Stream> stream_;  // nullptr: the host reads and writes the blocks
  std::vector<tensor::KvView> views_;       // per layer
  std::vector<std::int32_t> group_of_layer_;
  std::vector<std::int32_t> num_blocks_;
};

}  // namespace comoe::model
