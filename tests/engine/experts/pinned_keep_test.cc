// Page-locked memory that goes from one cache to the next, with the experts in it.
#include "engine/experts/pinned_keep.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/experts/tiered_cache.h"
#include "tests/engine/experts/test_util.h"

namespace comoe::experts {
namespace {

using api::FetchOrder;
using base::Tier;

// Counts what is read of the tensors.
class CountingSource final : public checkpoint::TensorSource {
 public:
  std::vector<std::string> Names() const override { return Model().source->Names(); }
  const checkpoint::TensorInfo* Find(absl::string_view name) const override {
    return Model().source->Find(name);
  }
  absl::StatusOr<checkpoint::TensorData> Read(const checkpoint::TensorInfo& info) const override {
    ++reads_;
    return Model().source->Read(info);
  }
  void Release(const checkpoint::TensorInfo& info) const override { Model().source->Release(info); }
  int TakeReads() { return reads_.exchange(0); }

 private:
  mutable std::atomic<int> reads_{0};
};

// One cache after the other on one device, which outlives what is kept.
class PinnedKeepTest : public ::testing::Test {
 protected:
  TieredOptions Options(std::int32_t device_slots) const {
    TieredOptions options;
    options.device_slots = device_slots;
    options.pinned_slots = kAll;
    options.transfers.copy_limit = absl::Seconds(1);
    options.keep = keep_;
    return options;
  }

  std::unique_ptr<TieredExpertCache> Make(const TieredOptions& options, std::vector<FetchOrder> orders = {}) {
    SmallModel& model = Model();
    auto cache = TieredExpertCache::Create(model.config, tensor::DType::kBf16, options, *device_);
    EXPECT_TRUE(cache.ok()) << cache.status();
    if (!cache.ok()) {
      return nullptr;
    }
    const absl::Status loaded = (*cache)->Load(
        {source_, *model.names, model.pool, std::move(orders), [](std::uint64_t, std::uint64_t) {}});
    EXPECT_TRUE(loaded.ok()) << loaded;
    return *std::move(cache);
  }

  // Every expert has its bytes in page-locked memory, and gets them to the device.
  void ExpectGood(TieredExpertCache& cache) {
    EXPECT_TRUE(cache.CheckPlaces().ok()) << cache.CheckPlaces();
    for (const base::ExpertKey key : Model().keys()) {
      auto on_host = cache.AcquireHost(key);
      ASSERT_TRUE(on_host.ok()) << on_host.status();
      EXPECT_TRUE(HoldsItsBytes(*on_host));
      auto on_device = cache.Fetch(key, api::kStagingSlot);
      ASSERT_TRUE(on_device.ok() && on_device->has_value());
      EXPECT_TRUE(HoldsItsBytes(**on_device));
    }
  }

  static const std::byte* Where(TieredExpertCache& cache, base::ExpertKey key) {
    return cache.AcquireHost(key)->lease.view().data;
  }

  // Page-locked memory for one slab, and one more place.
  static std::unique_ptr<device::Device> SmallDevice() {
    device::EmulatedOptions options;
    const TieredOptions usual;
    options.pinned_bytes =
        static_cast<std::uint64_t>(kAll + usual.pinned_staging_slots + 2) * Model().Blob({1, 0}).size();
    return Emulated(options);
  }

  const std::unique_ptr<device::Device> device_ = SmallDevice();
  const std::shared_ptr<PinnedKeep> keep_ = std::make_shared<PinnedKeep>();
  CountingSource source_;
};

std::vector<FetchOrder> Backwards() {
  std::vector<FetchOrder> orders;
  std::int32_t slot = kAll;
  for (const base::ExpertKey key : Model().keys()) {
    orders.push_back({key, Tier::kPinned, --slot});
  }
  return orders;
}

TEST_F(PinnedKeepTest, TheNextCachePacksNothing) {
  auto cache = Make(Options(4));
  EXPECT_GT(source_.TakeReads(), 0);
  EXPECT_TRUE(keep_->empty());  // the cache has it
  const std::byte* before = Where(*cache, {1, 0});
  // A director that gives slots away, of either tier, and guesses under way at the end.
  cache->Prefetch({{{2, 3}, Tier::kPinned, 0}, {{1, 0}, Tier::kPinned, 7}, {{3, 3}, Tier::kDevice, 1}});
  cache.reset();
  EXPECT_GT(keep_->bytes(), kAll * Model().Blob({1, 0}).size());

  // Another policy: other slots of the device, and another director's order.
  cache = Make(Options(2), Backwards());
  EXPECT_EQ(source_.TakeReads(), 0);
  EXPECT_TRUE(keep_->empty());
  EXPECT_EQ(Where(*cache, {1, 0}), before);
  ExpectGood(*cache);
  EXPECT_EQ(Totals(*cache).tiers[Tier::kPinned].slots, static_cast<std::uint64_t>(kAll));
  cache.reset();

  // And one that says where only some lie, in the order of the slots that it knows.
  cache = Make(Options(0), {{{3, 7}, Tier::kPinned, 0}, {{1, 0}, Tier::kPinned, 5}});
  EXPECT_EQ(source_.TakeReads(), 0);
  ExpectGood(*cache);
  cache.reset();
  EXPECT_FALSE(keep_->empty());
}

// The director's slots mean the same experts as if they had been packed there.
TEST_F(PinnedKeepTest, SlotsMeanWhatTheDirectorSays) {
  for (const bool kept : {false, true}) {
    if (kept) {  // in the order of the experts
      keep_->Clear();
      Make(Options(1)).reset();
    }
    auto cache = Make(Options(1), Backwards());
    // Expert {1, 0} has the last slot: there it is already, and elsewhere it gets to without a copy.
    cache->Prefetch({{{1, 0}, Tier::kPinned, kAll - 1}, {{1, 1}, Tier::kPinned, kAll - 1}});
    EXPECT_TRUE(cache->TakeVacated().empty());
    EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    EXPECT_EQ(Totals(*cache).copies[base::CopyDirection::kHostToHost].copies, 0U);
  }
}

TEST_F(PinnedKeepTest, WhatDoesNotFitIsFreedFirst) {
  TieredOptions half = Options(2);
  half.pinned_slots = kAll / 2;
  TieredOptions more = Options(2);
  more.pinned_staging_slots += 1;
  TieredOptions pageable = Options(2);
  pageable.page_lock = false;
  TieredOptions exclusive = Options(2);
  exclusive.exclusive = true;
  TieredOptions disk = Options(2);
  disk.packed_path = ::testing::TempDir() + "/pinned_keep.packed";
  for (const TieredOptions& other : {half, more, pageable, exclusive, disk}) {
    Make(Options(2)).reset();
    ASSERT_FALSE(keep_->empty());
    source_.TakeReads();
    auto cache = Make(other);
    EXPECT_GT(source_.TakeReads(), 0);
    EXPECT_TRUE(keep_->empty());
    const bool fixed = !other.page_lock || other.pinned_staging_slots == more.pinned_staging_slots;
    EXPECT_TRUE(!fixed || cache->pinned_slots() == kAll);  // there was room for a larger slab
    ASSERT_TRUE(cache->Fetch({1, 1}, 0).ok());
    EXPECT_EQ(Totals(*cache).unpinned_copies, other.page_lock ? 0U : 1U);
    cache.reset();
    EXPECT_EQ(keep_->empty(), !fixed);
    keep_->Clear();
  }
}

TEST_F(PinnedKeepTest, AnotherModelOrDeviceGetsNothing) {
  Make(Options(2)).reset();
  ASSERT_FALSE(keep_->empty());
  checkpoint::ModelConfig wider = Model().config;
  wider.expert_intermediate *= 2;
  ASSERT_TRUE(TieredExpertCache::Create(wider, tensor::DType::kBf16, Options(2), *device_).ok());
  EXPECT_TRUE(keep_->empty());
  Make(Options(2)).reset();
  ASSERT_FALSE(keep_->empty());
  const auto other = Emulated({});
  ASSERT_TRUE(TieredExpertCache::Create(Model().config, tensor::DType::kBf16, Options(2), *other).ok());
  EXPECT_TRUE(keep_->empty());
}

// Memory that is not whole is not handed on: a cache that was never loaded, and one whose copy hung.
TEST_F(PinnedKeepTest, NothingIsKeptAfterTrouble) {
  ASSERT_TRUE(TieredExpertCache::Create(Model().config, tensor::DType::kBf16, Options(2), *device_).ok());
  EXPECT_TRUE(keep_->empty());

  device::EmulatedOptions hanging;
  bool hang = true;
  hanging.copy_faults = [&hang](const device::CopyRequest& request) {
    return hang && request.direction == base::CopyDirection::kHostToDevice ? device::CopyFault::Hang()
                                                                           : device::CopyFault::None();
  };
  for (const bool noticed : {true, false}) {
    hang = false;
    const auto device = Emulated(hanging);
    auto cache = MakeCache(*device, Options(2));
    ASSERT_NE(cache, nullptr);
    hang = true;
    auto served = cache->Fetch({1, 1}, 0);
    ASSERT_TRUE(served.ok() && served->has_value());
    const absl::Status status = (*served)->ready.Synchronize(absl::Seconds(2));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    if (noticed) {
      cache->Failed(std::move((*served)->lease), status);
      EXPECT_EQ(Totals(*cache).lost_slots, 1U);
    } else {
      cache->Release(std::move((*served)->lease), {});
    }
    *served = std::nullopt;
    cache.reset();
    EXPECT_TRUE(keep_->empty());
  }
}

}  // namespace
}  // namespace comoe::experts
