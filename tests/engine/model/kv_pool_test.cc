#include "engine/model/kv_pool.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/device/cpu/cpu_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::model {
namespace {

checkpoint::ModelConfig TwoWindows() {
  checkpoint::ModelConfig config;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.layers = {{true, 0}, {true, 8}, {true, 0}, {true, 8}};
  return config;
}

TEST(CacheGroups, OneGroupAWindowSize) {
  const CacheGroups groups = MakeCacheGroups(TwoWindows());
  ASSERT_EQ(groups.groups.size(), 2U);
  EXPECT_EQ(groups.groups[0].kind, api::CacheGroup::Kind::kFullKv);
  EXPECT_EQ(groups.groups[1].kind, api::CacheGroup::Kind::kWindowKv);
  EXPECT_EQ(groups.groups[1].window_tokens, 8);
  EXPECT_EQ(groups.groups[0].num_layers, 2);
  EXPECT_EQ(groups.groups[0].bytes_per_block, 2U * 2 * 2 * 4 * 16 * sizeof(float));
  EXPECT_THAT(groups.group_of_layer, ::testing::ElementsAre(0, 1, 0, 1));
}

TEST(CacheGroups, HalvesTakeHalf) {
  const CacheGroups groups = MakeCacheGroups(TwoWindows(), tensor::DType::kF16);
  EXPECT_EQ(groups.groups[0].bytes_per_block, 2U * 2 * 2 * 4 * 16 * 2);
}

class KvPoolDType : public ::testing::TestWithParam<tensor::DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, KvPoolDType, ::testing::Values(tensor::DType::kF32, tensor::DType::kF16),
                         [](const auto& param) { return std::string(tensor::DTypeName(param.param)); });

TEST_P(KvPoolDType, SnapshotGoesBackIntoOtherBlocks) {
  const checkpoint::ModelConfig config = TwoWindows();
  const CacheGroups groups = MakeCacheGroups(config, GetParam());
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(1);
  absl::StatusOr<KvPool> pool = KvPool::Create(config, groups, std::uint64_t{64} << 10, *device);
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_GE(pool->num_blocks()[0], 6);
  const std::vector<api::GroupState> from = {{{{1}, {3}}}, {{base::kNoBlock, {2}}}};
  const std::vector<api::GroupState> to = {{{{4}, {0}}}, {{base::kNoBlock, {5}}}};
  std::uint16_t value = 1;
  const auto fill = [&](std::int64_t layer, base::BlockId block, std::uint16_t first) {
    const tensor::KvView& view = pool->layer(layer);
    auto* data = reinterpret_cast<std::uint16_t*>(view.block(block));
    std::iota(data, data + view.layout.block_bytes() / sizeof(*data), first);
  };
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    for (const base::BlockId block : from[static_cast<std::size_t>(layer % 2)].blocks) {
      if (block != base::kNoBlock) {
        fill(layer, block, value);
        value = static_cast<std::uint16_t>(value + 1000);
      }
    }
  }
  absl::StatusOr<api::StateSnapshot> snapshot = pool->Snapshot(from, 20);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_TRUE(pool->Restore(*snapshot, to).ok());
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const auto group = static_cast<std::size_t>(layer % 2);
    for (std::size_t i = 0; i < 2; ++i) {
      if (from[group].blocks[i] == base::kNoBlock) {
        continue;
      }
      const tensor::KvView& view = pool->layer(layer);
      const std::byte* was = view.block(from[group].blocks[i]);
      EXPECT_TRUE(std::equal(was, was + view.layout.block_bytes(), view.block(to[group].blocks[i])));
    }
  }
}

TEST(KvPool, RefusesBlocksThatAreNotThere) {
  const checkpoint::ModelConfig config = TwoWindows();
  const CacheGroups groups = MakeCacheGroups(config);
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(1);
  absl::StatusOr<KvPool> pool = KvPool::Create(config, groups, std::uint64_t{64} << 10, *device);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->Snapshot({{{{0}}}, {{{9999}}}}, 16).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Snapshot({{{{0}}}, {{{0}}}}, 17).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Snapshot({{{{0}}}}, 16).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvPool, SaysWhenNothingFits) {
  const checkpoint::ModelConfig config = TwoWindows();
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(1);
  const absl::Status status = KvPool::Create(config, MakeCacheGroups(config), 100, *device).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--kv-bytes"));
}

}  // namespace
}  // namespace comoe::model
