#include "engine/model/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {

CacheGroups MakeCacheGroups(const checkpoint::ModelConfig& config, tensor::DType kv_dtype) {
  CacheGroups result;
  result.layout = {config.num_kv_heads, config.head_dim, kv_dtype};
  for (const checkpoint::LayerConfig& layer : config.layers) {
    auto group =
        std::find_if(result.groups.begin(), result.groups.end(), [&layer](const api::CacheGroup& candidate) {
          return candidate.window_tokens == layer.window_tokens;
        });
    if (group == result.groups.end()) {
      api::CacheGroup added;
      added.kind =
          layer.window_tokens > 0 ? api::CacheGroup::Kind::kWindowKv : api::CacheGroup::Kind::kFullKv;
      added.window_tokens = layer.window_tokens;
      added.block_tokens = static_cast<std::int32_t>(tensor::kKvBlockTokens);
      result.groups.push_back(added);
      group = result.groups.end() - 1;
    }
    ++group->num_layers;
    group->bytes_per_block += result.layout.block_bytes();
    result.group_of_layer.push_back(static_cast<std::int32_t>(group - result.groups.begin()));
  }
  return result;
}

absl::StatusOr<KvPool> KvPool::Create(const checkpoint::ModelConfig& config, const CacheGroups& groups,
                                      std::uint64_t budget_bytes, device::Device& device) {
  std::uint64_t bytes_per_position_block = 0;
  for (const api::CacheGroup& group : groups.groups) {
    bytes_per_position_block += group.bytes_per_block;
  }
  COMOE_CHECK(bytes_per_position_block > 0, "a model has a layer, and every layer keys and values");
  const std::uint64_t blocks = std::min<std::uint64_t>(budget_bytes / bytes_per_position_block,
                                                       std::numeric_limits<std::int32_t>::max());
  if (blocks == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "KV memory of ", base::FormatBytes(budget_bytes), " holds not even ", tensor::kKvBlockTokens,
        " positions, which take ", base::FormatBytes(bytes_per_position_block), ": raise --kv-bytes"));
  }
  KvPool pool;
  COMOE_ASSIGN_OR_RETURN(pool.buffer_,
                         device.Allocate(device::MemoryKind::kDevice, blocks * bytes_per_position_block,
                                         tensor::kWeightAlignment));
  if (!device.host_accessible()) {
    COMOE_ASSIGN_OR_RETURN(pool.stream_, device.CreateStream("kv-state", device::StreamKind::kCopy));
  }
  std::byte* data = pool.buffer_.data();
  for (std::int64_t layer = 0; layer < config.num_layers(); ++layer) {
    pool.views_.push_back({data, static_cast<std::int64_t>(blocks), groups.layout});
    data += blocks * groups.layout.block_bytes();
  }
  pool.group_of_layer_ = groups.group_of_layer;
  pool.num_blocks_.assign(groups.groups.size(), static_cast<std::int32_t>(blocks));
  return pool;
}

template <typename Visit>
absl::Status KvPool::VisitBlocks(const std::vector<api::GroupState>& groups, std::int64_t num_tokens,
                                 const Visit& visit) const {
  if (groups.size() != num_blocks_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state names ", groups.size(), " cache groups, the model has ", num_blocks_.size()));
  }
  const auto count =
      static_cast<std::size_t>((num_tokens + tensor::kKvBlockTokens - 1) / tensor::kKvBlockTokens);
  for (std::size_t layer = 0; layer < views_.size(); ++layer) {
    const auto group = static_cast<std::size_t>(group_of_layer_[layer]);
    const std::vector<base::BlockId>& blocks = groups[group].blocks;
    if (blocks.size() < count) {
      return absl::InvalidArgumentError(absl::StrCat("cache group ", group, " has ", blocks.size(),
                                                     " blocks, ", num_tokens, " tokens need ", count));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (blocks[i] == base::kNoBlock) {
        continue;
      }
      if (blocks[i].value < 0 || blocks[i].value >= num_blocks_[group]) {
        return absl::InvalidArgumentError(absl::StrCat("block ", blocks[i].value, " of cache group ", group,
                                                       " is not in [0, ", num_blocks_[group], ")"));
      }
      COMOE_RETURN_IF_ERROR(visit(group, views_[layer], blocks[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status KvPool::Copy(std::byte* target, const std::byte* source, std::size_t bytes) const {
  if (stream_ != nullptr) {
    return stream_->CopyAsync(target, source, bytes);
  }
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

absl::Status KvPool::Settle() const { return stream_ == nullptr ? absl::OkStatus() : stream_->Synchronize(); }

absl::StatusOr<api::StateSnapshot> KvPool::Snapshot(const std::vector<api::GroupState>& groups,
                                                    std::int64_t num_tokens) const {
  api::StateSnapshot snapshot;
  snapshot.num_tokens = num_tokens;
  snapshot.groups.resize(num_blocks_.size());
  std::vector<std::size_t> sizes(num_blocks_.size(), 0);
  COMOE_RETURN_IF_ERROR(VisitBlocks(
      groups, num_tokens, [&sizes](std::size_t group, const tensor::KvView& view, base::BlockId /*block*/) {
        sizes[group] += view.layout.block_bytes();
        return absl::OkStatus();
      }));
  for (std::size_t group = 0; group < sizes.size(); ++group) {
    snapshot.groups[group].resize(sizes[group]);
  }
  std::vector<std::size_t> done(num_blocks_.size(), 0);
  const absl::Status copied = VisitBlocks(
      groups, num_tokens, [&](std::size_t group, const tensor::KvView& view, base::BlockId block) {
        const std::size_t bytes = view.layout.block_bytes();
        std::byte* const target =
            snapshot.groups[group].data() + std::exchange(done[group], done[group] + bytes);
        return Copy(target, view.block(block), bytes);
      });
  const absl::Status settled = Settle();  // whatever was queued ends before the snapshot's memory does
  COMOE_RETURN_IF_ERROR(copied);
  COMOE_RETURN_IF_ERROR(settled);
  return snapshot;
}

absl::Status KvPool::Restore(const api::StateSnapshot& snapshot,
                             const std::vector<api::GroupState>& groups) const {
  if (snapshot.groups.size() != num_blocks_.size()) {
    return absl::InvalidArgumentError("the snapshot is of a model with other cache groups");
  }
  std::vector<std::size_t> done(num_blocks_.size(), 0);
  const absl::Status copied = VisitBlocks(
      groups, snapshot.num_tokens,
      [&](std::size_t group, const tensor::KvView& view, base::BlockId block) -> absl::Status {
        const std::size_t bytes = view.layout.block_bytes();
        if (snapshot.groups[group].size() < done[group] + bytes) {
          return absl::InvalidArgumentError("the snapshot holds fewer blocks than are to be restored");
        }
        const std::byte* const source =
            snapshot.groups[group].data() + std::exchange(done[group], done[group] + bytes);
        return Copy(view.block(block), source, bytes);
      });
  const absl::Status settled = Settle();
  return copied.ok() ? settled : copied;
}

}  // namespace comoe::model
