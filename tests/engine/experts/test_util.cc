#include "tests/engine/experts/test_util.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/checkpoint/expert_packer.h"

namespace comoe::experts {

SmallModel::SmallModel() {
  config.model_type = "qwen2_moe";
  config.vocab_size = 8;
  config.hidden = 16;
  config.num_heads = 1;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  config.dense_intermediate = 16;
  config.expert_intermediate = 16;
  config.num_experts = kExperts;
  config.experts_per_token = 2;
  config.layers.resize(kLayers);
  config.layers[0].sparse = false;
  source = std::make_unique<checkpoint::RandomSource>(config, tensor::DType::kBf16, 5);
  names = std::make_unique<checkpoint::WeightNames>(config);
  const checkpoint::ExpertIndex index = checkpoint::ExpertIndex::Make(config, tensor::DType::kBf16);
  for (const base::ExpertKey key : index.keys()) {
    std::vector<std::byte>& blob = blobs[key];
    blob.resize(index.layout().bytes);
    EXPECT_TRUE(checkpoint::PackExpert(*source, *names, key, index.layout(), absl::MakeSpan(blob)).ok());
  }
}

std::vector<base::ExpertKey> SmallModel::keys() const {
  std::vector<base::ExpertKey> keys;
  for (const auto& [key, blob] : blobs) {
    keys.push_back(key);
  }
  return keys;
}

SmallModel& Model() {
  static SmallModel model;
  return model;
}

device::EmulatedOptions SlowLink() {
  device::EmulatedOptions options;
  options.rates.link_bytes_per_second = 1e6;
  options.rates.pageable_bytes_per_second = 3e5;
  options.rates.host_copy_bytes_per_second = 2e6;
  options.rates.disk_bytes_per_second = 1e6;
  return options;
}

std::unique_ptr<device::Device> Emulated(device::EmulatedOptions options) {
  auto device = device::MakeEmulatedDevice(std::move(options));
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::unique_ptr<TieredExpertCache> MakeCache(device::Device& device, const TieredOptions& options,
                                             std::vector<api::FetchOrder> orders) {
  SmallModel& model = Model();
  auto cache = TieredExpertCache::Create(model.config, tensor::DType::kBf16, options, device);
  EXPECT_TRUE(cache.ok()) << cache.status();
  if (!cache.ok()) {
    return nullptr;
  }
  const absl::Status loaded = (*cache)->Load(
      {*model.source, *model.names, model.pool, std::move(orders), [](std::uint64_t, std::uint64_t) {}});
  EXPECT_TRUE(loaded.ok()) << loaded;
  return loaded.ok() ? *std::move(cache) : nullptr;
}

api::OffloadTotals Totals(const ExpertCache& cache) {
  api::OffloadTotals totals;
  cache.AddTotals(totals);
  return totals;
}

::testing::AssertionResult HoldsItsBytes(const Served& served) {
  if (const absl::Status status = served.ready.Synchronize(absl::Seconds(30)); !status.ok()) {
    return ::testing::AssertionFailure() << status;
  }
  const std::vector<std::byte>& blob = Model().Blob(served.lease.key());
  if (std::memcmp(served.lease.view().data, blob.data(), blob.size()) != 0) {
    return ::testing::AssertionFailure() << "layer " << served.lease.key().layer << " expert "
                                         << served.lease.key().expert << " has other bytes";
  }
  return ::testing::AssertionSuccess();
}

// Host work that takes a while, so that the clock moves, whatever kind it is.
void Quiesce(TieredExpertCache& cache, device::Device& device) {
  const std::size_t bytes = std::size_t{64} << 10;
  auto host = device.Allocate(device::MemoryKind::kPinned, bytes, 64);
  if (!host.ok()) {
    host = device.Allocate(device::MemoryKind::kHost, bytes, 64);
  }
  auto target = device.Allocate(device::MemoryKind::kHost, bytes, 64);
  auto stream = device.CreateStream("quiesce", device::StreamKind::kHost);
  ASSERT_TRUE(host.ok() && target.ok() && stream.ok());
  std::memset(host->data(), 0, bytes);
  for (int i = 0; i < 1000 && cache.copies_under_way() > 0; ++i) {
    ASSERT_TRUE((*stream)->CopyAsync(target->data(), host->data(), bytes).ok());
    (*stream)->Synchronize().IgnoreError();  // a test may let it fail
  }
  EXPECT_EQ(cache.copies_under_way(), 0);
}

void ExpectConserved(const TieredExpertCache& cache) {
  const api::OffloadTotals t = Totals(cache);
  const std::uint64_t blob = cache.layout().bytes;
  for (const api::CopyTotals& copies : t.copies.values) {
    EXPECT_EQ(copies.bytes.Sum(), copies.copies * blob);
    EXPECT_GE(copies.seconds, 0.0);
  }
  EXPECT_EQ(t.prefetch_used_bytes + t.prefetch_wasted_bytes + t.prefetch_pending_bytes,
            t.copies[base::CopyDirection::kHostToDevice].bytes[base::CopyReason::kPrefetch]);
  using base::Tier;
  EXPECT_EQ(t.tiers[Tier::kPinned].hits + t.tiers[Tier::kPinned].misses, t.tiers[Tier::kDevice].misses);
  EXPECT_EQ(t.tiers[Tier::kHost].hits + t.tiers[Tier::kDisk].hits, t.tiers[Tier::kPinned].misses);
  for (const api::TierTotals& tier : t.tiers.values) {
    EXPECT_LE(tier.staging_bytes, tier.capacity_bytes);
  }
}

}  // namespace comoe::experts
