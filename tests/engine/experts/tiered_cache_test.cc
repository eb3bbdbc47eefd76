// One behaviour of the tiers at a time, mostly on an emulated link slow enough to see the order of things.
#include "engine/experts/tiered_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/cpu/cpu_device.h"
#include "tests/engine/experts/test_util.h"

namespace comoe::experts {
namespace {

using api::FetchOrder;
using base::CopyDirection;
using base::CopyReason;
using base::ExpertKey;
using base::Tier;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

TieredOptions Inclusive(std::int32_t device, std::int32_t pinned) {
  TieredOptions options;
  options.device_slots = device;
  options.pinned_slots = pinned;
  options.transfers.copy_limit = absl::Seconds(1);
  return options;
}

TieredOptions Exclusive(std::int32_t device, std::int32_t pinned) {
  TieredOptions options = Inclusive(device, pinned);
  options.exclusive = true;
  options.exclusive_spares = 3;
  return options;
}

Served FetchNow(TieredExpertCache& cache, ExpertKey key, std::int32_t slot) {
  auto served = cache.Fetch(key, slot);
  EXPECT_TRUE(served.ok()) << served.status();
  EXPECT_TRUE(served->has_value());
  return **std::move(served);
}

std::vector<ExpertCache::Vacated> Vacated(TieredExpertCache& cache) {
  const auto vacated = cache.TakeVacated();
  return {vacated.begin(), vacated.end()};
}

FetchOrder Order(ExpertKey key, std::int32_t slot, Tier tier = Tier::kDevice) { return {key, tier, slot}; }

// How many seconds until it is there.
double Arrival(const Served& served) {
  EXPECT_TRUE(HoldsItsBytes(served));
  return served.ready.state() == nullptr ? 0.0 : served.ready.state()->Seconds();
}

// Copies in that direction fail while `fail` says so.
device::EmulatedOptions FailingWhile(const bool& fail, CopyDirection direction) {
  device::EmulatedOptions options = SlowLink();
  options.copy_faults = [&fail, direction](const device::CopyRequest& request) {
    return fail && request.direction == direction ? device::CopyFault::Fail(absl::InternalError("planned"))
                                                  : device::CopyFault::None();
  };
  return options;
}

TEST(TieredCache, FindsWhatWasOrderedAtStart) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(4, 6),
                               {Order({1, 3}, 2), Order({2, 5}, 0), Order({3, 1}, 4, Tier::kPinned)});
  ASSERT_NE(cache, nullptr);
  for (const ExpertKey key : {ExpertKey{1, 3}, {2, 5}}) {
    auto served = cache->Acquire(key);
    ASSERT_TRUE(served.ok()) << served.status();
    EXPECT_TRUE(served->ready.Done());
    EXPECT_TRUE(HoldsItsBytes(*served));
    EXPECT_EQ(cache->leased(), 1);
  }
  EXPECT_EQ(cache->leased(), 0);
  EXPECT_EQ(cache->Acquire({1, 2}).status().code(), kFailed);
  EXPECT_EQ(cache->Acquire({0, 0}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache->Acquire({1, kExperts}).status().code(), absl::StatusCode::kNotFound);
  auto host = cache->AcquireHost({3, 1});
  ASSERT_TRUE(host.ok());
  EXPECT_TRUE(HoldsItsBytes(*host));
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(t.copies[CopyDirection::kHostToDevice].bytes[CopyReason::kWarmup], 2 * cache->layout().bytes);
  EXPECT_EQ(t.tiers[Tier::kDevice].hits, 2U);
  EXPECT_EQ(t.tiers[Tier::kPinned].hits, 1U);
  EXPECT_TRUE(cache->CheckPlaces().ok());
  SmallModel& model = Model();
  auto fresh = TieredExpertCache::Create(model.config, tensor::DType::kBf16, Inclusive(4, 6), *device);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ((*fresh)
                ->Load({*model.source,
                        *model.names,
                        model.pool,
                        {Order({1, 3}, 4)},
                        [](std::uint64_t, std::uint64_t) {}})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TieredCache, PinnedMemoryThatHoldsAllIsTheLowestTier) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(2, 1000));
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(cache->pinned_slots(), kAll);
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 1}, 0)));
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(t.tiers[Tier::kHost].capacity_bytes, 0U);
  EXPECT_EQ(t.copies[CopyDirection::kHostToHost].copies, 0U);
  EXPECT_EQ(t.tiers[Tier::kPinned].hits, 1U);
}

TEST(TieredCache, GuessesDoNotDelayCertainCopies) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(12, kAll));
  ASSERT_NE(cache, nullptr);
  std::vector<FetchOrder> guesses;
  for (std::int32_t e = 0; e < 6; ++e) {
    guesses.push_back(Order({2, e}, e));
  }
  const double start = device->Now();
  cache->Prefetch(guesses);
  api::LaneState lanes;
  cache->Describe(lanes);
  EXPECT_EQ(lanes.queued_guesses, 5);  // one is on the link
  const double alone = static_cast<double>(cache->layout().bytes) / 1e6;
  const Served served = FetchNow(*cache, {1, 0}, 10);
  EXPECT_NEAR(Arrival(served) - start, 2 * alone, alone / 10);  // behind one guess, not behind six
  cache->Describe(lanes);
  EXPECT_NEAR(lanes.link_seconds_per_expert, alone, alone * 0.8);
  EXPECT_GT(lanes.link_queue_seconds, 0.0);
  EXPECT_LT(lanes.link_queue_seconds, 2 * alone);
  // In order of urgency.
  Quiesce(*cache, *device);
  EXPECT_EQ(Totals(*cache).copies[CopyDirection::kHostToDevice].bytes[CopyReason::kPrefetch],
            6 * cache->layout().bytes);
  ExpectConserved(*cache);
}

TEST(TieredCache, AQueuedGuessThatIsNeededBecomesCertain) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(12, kAll));
  ASSERT_NE(cache, nullptr);
  std::vector<FetchOrder> guesses;
  for (std::int32_t e = 0; e < 6; ++e) {
    guesses.push_back(Order({1, e}, e));
  }
  cache->Prefetch(guesses);
  const double start = device->Now();
  const double alone = static_cast<double>(cache->layout().bytes) / 1e6;
  auto last = cache->Acquire({1, 5});
  auto first = cache->Acquire({1, 0});
  ASSERT_TRUE(last.ok() && first.ok());
  EXPECT_EQ(first->edge, base::WaitEdge::kPrefetchCopy);
  EXPECT_EQ(last->edge, base::WaitEdge::kDemandCopy);
  EXPECT_NEAR(Arrival(*last) - start, 2 * alone, alone / 10);
  EXPECT_TRUE(HoldsItsBytes(*first));
  first = absl::UnknownError("");
  last = absl::UnknownError("");
  cache->LayerPassed(1);  // the other four come too late
  Quiesce(*cache, *device);
  const auto vacated = Vacated(*cache);
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(vacated.size() + t.tiers[Tier::kDevice].slots_used, 6U);
  EXPECT_EQ(t.cancelled_guesses, vacated.size());
  EXPECT_GE(vacated.size(), 2U);
  EXPECT_EQ(t.prefetch_used_bytes, cache->layout().bytes);
  EXPECT_EQ(t.copies[CopyDirection::kHostToDevice].bytes[CopyReason::kDemand], cache->layout().bytes);
  for (const ExpertCache::Vacated& v : vacated) {
    EXPECT_TRUE(v.usable);
    EXPECT_EQ(v.slot, v.key.expert);
  }
  EXPECT_EQ(cache->leased(), 0);
  ExpectConserved(*cache);
}

TEST(TieredCache, GuessesForTheNextWalkSurviveThisOne) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(12, kAll));
  ASSERT_NE(cache, nullptr);
  const auto walk = [&](std::int32_t layer) { return FetchNow(*cache, {layer, 7}, api::kStagingSlot); };
  walk(1);
  cache->LayerPassed(1);
  walk(3);
  // From layer 3: one for the link, then for layers 1 and 3 of the next walk.
  cache->Prefetch({Order({1, 0}, 0), Order({1, 1}, 1), Order({3, 1}, 2)});
  cache->LayerPassed(3);
  EXPECT_TRUE(Vacated(*cache).empty());
  walk(1);
  cache->LayerPassed(1);
  auto vacated = Vacated(*cache);
  ASSERT_EQ(vacated.size(), 1U);
  EXPECT_EQ(vacated[0].key, (ExpertKey{1, 1}));
  walk(3);
  cache->LayerPassed(3);
  vacated = Vacated(*cache);
  ASSERT_EQ(vacated.size(), 1U);
  EXPECT_EQ(vacated[0].key, (ExpertKey{3, 1}));
}

TEST(TieredCache, StagingSlotsAreLeasedAndReused) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(1, 0));
  ASSERT_NE(cache, nullptr);
  Served a = FetchNow(*cache, {1, 0}, api::kStagingSlot);
  Served b = FetchNow(*cache, {1, 1}, api::kStagingSlot);
  auto none = cache->Fetch({1, 2}, api::kStagingSlot);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  EXPECT_TRUE(HoldsItsBytes(a));
  EXPECT_TRUE(HoldsItsBytes(b));
  cache->Release(std::move(a.lease), device::Event());
  const Served c = FetchNow(*cache, {1, 2}, api::kStagingSlot);
  EXPECT_TRUE(HoldsItsBytes(c));
  EXPECT_TRUE(HoldsItsBytes(b));
  EXPECT_EQ(Totals(*cache).tiers[Tier::kHost].hits, 3U);
}

TEST(TieredCache, WhoFindsNoPlaceHearsOfCopiesThatEnd) {
  const auto device = Emulated(SlowLink());
  const auto cache =
      MakeCache(*device, Exclusive(3, 0), {Order({2, 0}, 0), Order({2, 1}, 1), Order({2, 2}, 2)});
  ASSERT_NE(cache, nullptr);
  // The victims of two leave from spares, and what is leased has the others.
  std::vector<Served> leased;
  leased.push_back(FetchNow(*cache, {1, 0}, 0));
  leased.push_back(FetchNow(*cache, {1, 1}, 1));
  absl::StatusOr<std::optional<Served>> served;
  std::int32_t next = 2;
  for (;; ++next) {
    ASSERT_LT(next, kExperts);
    served = cache->Fetch({1, next}, api::kStagingSlot);
    ASSERT_TRUE(served.ok()) << served.status();
    if (!served->has_value()) {
      break;
    }
    leased.push_back(**std::move(served));
  }
  EXPECT_TRUE(cache->UnderWay()->Done());  // those of the start
  const auto copy = cache->UnderWay();
  ASSERT_TRUE(copy.has_value());
  EXPECT_FALSE(copy->Done());
  // All end, and that is dealt with, before the next question.
  Quiesce(*cache, *device);
  const auto ended = cache->UnderWay();
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->Done());
  EXPECT_FALSE(cache->UnderWay().has_value());
  const Served now = FetchNow(*cache, {1, next}, api::kStagingSlot);
  EXPECT_TRUE(HoldsItsBytes(now));
}

TEST(TieredCache, ALeasedSlotIsNotOverwritten) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(2, 4), {Order({1, 0}, 0)});
  ASSERT_NE(cache, nullptr);
  auto held = cache->Acquire({1, 0});
  ASSERT_TRUE(held.ok());
  const Served other = FetchNow(*cache, {1, 1}, 0);
  EXPECT_TRUE(HoldsItsBytes(other));
  EXPECT_TRUE(HoldsItsBytes(*held));
  cache->Prefetch({Order({2, 0}, 0)});
  const Served beyond = FetchNow(*cache, {1, 2}, 99);
  EXPECT_TRUE(HoldsItsBytes(beyond));
  const auto vacated = Vacated(*cache);
  ASSERT_EQ(vacated.size(), 3U);
  EXPECT_EQ(vacated[0].key, (ExpertKey{1, 1}));
  EXPECT_TRUE(vacated[0].usable);
  EXPECT_EQ(vacated[1].key, (ExpertKey{2, 0}));
  EXPECT_FALSE(vacated[2].usable);
}

TEST(TieredCache, AnOverwrittenSlotWaitsForItsReaders) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(2, kAll), {Order({1, 0}, 0)});
  ASSERT_NE(cache, nullptr);
  auto reader = device->CreateStream("reader", device::StreamKind::kCopy);
  auto out = device->Allocate(device::MemoryKind::kPinned, std::size_t{100} << 10, 64);
  auto in = device->Allocate(device::MemoryKind::kDevice, std::size_t{100} << 10, 64);
  ASSERT_TRUE(reader.ok() && out.ok() && in.ok());
  auto held = cache->Acquire({1, 0});
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE((*reader)->CopyAsync(out->data(), in->data(), out->size()).ok());  // 100 ms
  auto last_use = (*reader)->Record();
  ASSERT_TRUE(last_use.ok());
  cache->Release(std::move(held->lease), *last_use);
  const Served next = FetchNow(*cache, {1, 1}, 0);
  EXPECT_GT(Arrival(next), 0.1);
}

// Experts 0 to 7 of layer 1 in slots 0 to 7.
std::vector<FetchOrder> WholeLayer() {
  std::vector<FetchOrder> orders;
  for (std::int32_t e = 0; e < kExperts; ++e) {
    orders.push_back(Order({1, e}, e));
  }
  return orders;
}

TEST(TieredCache, AWholeLayerIsLeasedAtOnce) {
  for (const bool exclusive : {false, true}) {
    SCOPED_TRACE(exclusive);
    const auto device = Emulated(SlowLink());
    const auto cache =
        MakeCache(*device, exclusive ? Exclusive(kExperts, kAll) : Inclusive(kExperts, kAll), WholeLayer());
    ASSERT_NE(cache, nullptr);
    EXPECT_FALSE(cache->LeaseLayer(0).has_value());  // a dense one
    EXPECT_FALSE(cache->LeaseLayer(2).has_value());
    EXPECT_FALSE(cache->LeaseLayer(kLayers).has_value());
    const std::optional<LayerPlaces> places = cache->LeaseLayer(1);
    ASSERT_TRUE(places.has_value());
    EXPECT_EQ(cache->leased(), 1);
    const std::uint64_t version = places->version;
    for (std::int32_t e = 0; e < kExperts; ++e) {
      auto served = cache->Acquire({1, e});
      ASSERT_TRUE(served.ok());
      EXPECT_EQ(reinterpret_cast<std::uint64_t>(served->lease.view().data),
                places->addresses[static_cast<std::size_t>(e)]);
    }
    // While it lasts no guess takes a place, though the director has given it away; then one that waits does,
    // once the bytes have been read.
    auto reader = device->CreateStream("reader", device::StreamKind::kCopy);
    auto out = device->Allocate(device::MemoryKind::kPinned, std::size_t{100} << 10, 64);
    auto in = device->Allocate(device::MemoryKind::kDevice, std::size_t{100} << 10, 64);
    ASSERT_TRUE(reader.ok() && out.ok() && in.ok());
    cache->Prefetch({Order({2, 3}, 5)});
    EXPECT_EQ(cache->copies_under_way(), 0);
    EXPECT_FALSE(cache->LayerIsThere(1));
    ASSERT_TRUE((*reader)->CopyAsync(out->data(), in->data(), out->size()).ok());  // 100 ms
    auto last_use = (*reader)->Record();
    ASSERT_TRUE(last_use.ok());
    const double start = device->Now();
    cache->ReleaseLayer(1, *last_use);
    EXPECT_EQ(cache->leased(), 0);
    EXPECT_EQ(cache->copies_under_way(), exclusive ? 2 : 1);  // and what makes room
    auto guess = cache->Acquire({2, 3});
    ASSERT_TRUE(guess.ok()) << guess.status();
    if (!exclusive) {  // else it comes to a spare place
      EXPECT_GT(Arrival(*guess) - start, 0.1);
    }
    EXPECT_TRUE(HoldsItsBytes(*guess));
    guess->lease = Lease();
    // It comes back, and is another one.
    cache->Release(FetchNow(*cache, {1, 5}, 5).lease, device::Event());
    Quiesce(*cache, *device);
    const std::optional<LayerPlaces> again = cache->LeaseLayer(1);
    ASSERT_TRUE(again.has_value());
    EXPECT_NE(again->version, version);
    cache->CountHits(1, {0, 5});
    cache->ReleaseLayer(1, device::Event());
    EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    ExpectConserved(*cache);
  }
}

// A stretch of layers is leased as a whole, and then released: guesses for what comes after it still wait.
TEST(TieredCache, LayersThatAreLeasedTogetherLeaveGuessesAlone) {
  const auto device = Emulated(SlowLink());
  std::vector<FetchOrder> start;
  for (std::int32_t e = 0; e < kExperts; ++e) {
    start.push_back(Order({1, e}, e));
    start.push_back(Order({2, e}, kExperts + e));
  }
  const auto cache = MakeCache(*device, Inclusive(3 * kExperts - 1, kAll), start);
  ASSERT_NE(cache, nullptr);
  std::vector<FetchOrder> guesses;
  for (std::int32_t e = 0; e < kExperts - 2; ++e) {
    guesses.push_back(Order({3, e}, 2 * kExperts + e));
  }
  cache->Prefetch(guesses);
  api::LaneState before, after;
  cache->Describe(before);
  ASSERT_GT(before.queued_guesses, 0);
  ASSERT_TRUE(cache->LeaseLayer(1).has_value());
  ASSERT_TRUE(cache->LeaseLayer(2).has_value());
  cache->ReleaseLayer(1, device::Event());
  cache->ReleaseLayer(2, device::Event());
  cache->Describe(after);
  EXPECT_EQ(after.queued_guesses, before.queued_guesses);
  EXPECT_TRUE(Vacated(*cache).empty());
}

TEST(TieredCache, ALayerWithAFailedCopyIsNotThere) {
  bool fail = false;
  const auto device = Emulated(FailingWhile(fail, CopyDirection::kHostToDevice));
  const auto cache = MakeCache(*device, Inclusive(kExperts, kAll), WholeLayer());
  ASSERT_NE(cache, nullptr);
  cache->Release(FetchNow(*cache, {2, 0}, 3).lease, device::Event());
  Quiesce(*cache, *device);
  fail = true;
  cache->Prefetch({Order({1, 3}, 3)});
  EXPECT_FALSE(cache->LayerIsThere(1));  // on its way
  Quiesce(*cache, *device);
  EXPECT_FALSE(cache->LayerIsThere(1));
  EXPECT_EQ(Vacated(*cache).size(), 1U);
  fail = false;
  cache->Prefetch({Order({1, 3}, 3)});
  EXPECT_FALSE(cache->LayerIsThere(1));
  Quiesce(*cache, *device);
  EXPECT_TRUE(cache->LayerIsThere(1));
}

TEST(TieredCache, PrefetchedBytesAreUsedOrWasted) {
  const auto device = device::MakeCpuDevice(1);
  const auto cache = MakeCache(*device, Inclusive(4, 4));
  ASSERT_NE(cache, nullptr);
  const std::uint64_t blob = cache->layout().bytes;
  cache->Prefetch({Order({1, 0}, 0), Order({1, 1}, 1), Order({1, 2}, 2)});
  EXPECT_EQ(Totals(*cache).prefetch_pending_bytes, 3 * blob);
  EXPECT_TRUE(HoldsItsBytes(*cache->Acquire({1, 0})));
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 5}, 1)));
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(t.prefetch_used_bytes, blob);
  EXPECT_EQ(t.prefetch_wasted_bytes, blob);
  EXPECT_EQ(t.prefetch_pending_bytes, blob);
  EXPECT_EQ(t.tiers[Tier::kDevice].evictions, 1U);
  EXPECT_EQ(cache->Acquire({1, 1}).status().code(), kFailed);
}

TEST(TieredCache, PromotionsRiseToPinnedMemory) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Inclusive(2, 3));
  ASSERT_NE(cache, nullptr);
  cache->Prefetch(
      {Order({1, 0}, 0, Tier::kPinned), Order({1, 1}, 1, Tier::kPinned), Order({1, 0}, 2, Tier::kPinned)});
  cache->LayerPassed(3);  // they wait for no layer
  Quiesce(*cache, *device);
  EXPECT_TRUE(HoldsItsBytes(*cache->AcquireHost({1, 0})));
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 1}, 0)));
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 2}, 1)));
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(t.tiers[Tier::kPinned].slots_used, 2U);
  EXPECT_EQ(t.tiers[Tier::kPinned].hits, 2U);
  EXPECT_EQ(t.tiers[Tier::kHost].hits, 1U);
  EXPECT_TRUE(Vacated(*cache).empty());
  ExpectConserved(*cache);
}

TEST(TieredCache, ExclusiveTiersSwap) {
  for (const bool from_pinned : {true, false}) {
    SCOPED_TRACE(from_pinned);
    const auto device = Emulated(SlowLink());
    const auto cache = MakeCache(*device, Exclusive(2, 3),
                                 {Order({1, 0}, 0), Order({1, 1}, 1), Order({2, 0}, 0, Tier::kPinned),
                                  Order({2, 1}, 1, Tier::kPinned), Order({2, 2}, 2, Tier::kPinned)});
    ASSERT_NE(cache, nullptr);
    ASSERT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    const ExpertKey newcomer = from_pinned ? ExpertKey{2, 1} : ExpertKey{3, 3};
    {
      const Served served = FetchNow(*cache, newcomer, 0);
      EXPECT_TRUE(HoldsItsBytes(served));
    }
    Quiesce(*cache, *device);
    EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    const api::OffloadTotals t = Totals(*cache);
    EXPECT_EQ(t.tiers[Tier::kDevice].slots_used, 2U);
    EXPECT_EQ(t.tiers[Tier::kPinned].slots_used, 3U);
    EXPECT_EQ(t.tiers[Tier::kHost].slots_used, static_cast<std::uint64_t>(kAll) - 5);
    EXPECT_EQ(t.copies[CopyDirection::kDeviceToHost].bytes[CopyReason::kEvict], cache->layout().bytes);
    // The victim is where the newcomer was.
    auto victim = cache->AcquireHost({1, 0});
    ASSERT_TRUE(victim.ok()) << victim.status();
    EXPECT_TRUE(HoldsItsBytes(*victim));
    const api::OffloadTotals after = Totals(*cache);
    EXPECT_EQ(after.tiers[Tier::kPinned].hits, from_pinned ? 2U : 0U);
    EXPECT_EQ(cache->AcquireHost(newcomer).status().code(), kFailed);
    EXPECT_TRUE(HoldsItsBytes(*cache->Acquire(newcomer)));
  }
}

TEST(TieredCache, AVictimThatIsAskedForAgainCostsNoCopy) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Exclusive(2, 3), {Order({1, 0}, 0), Order({1, 1}, 1)});
  ASSERT_NE(cache, nullptr);
  // Two guesses: the second one waits for the link, and its victim lies where it lay.
  cache->Prefetch({Order({2, 0}, 0), Order({2, 1}, 1)});
  const Served back = FetchNow(*cache, {1, 1}, 0);
  EXPECT_TRUE(back.ready.Done());
  EXPECT_TRUE(HoldsItsBytes(back));
  Quiesce(*cache, *device);
  EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
}

TEST(TieredCache, FailingCopiesVacateTheirSlot) {
  for (const bool exclusive : {false, true}) {
    for (const bool guess : {false, true}) {
      SCOPED_TRACE(testing::Message() << exclusive << guess);
      bool fail = false;
      device::EmulatedOptions options = SlowLink();
      options.copy_faults = [&](const device::CopyRequest& request) {
        return fail && request.direction == CopyDirection::kHostToDevice
                   ? device::CopyFault::Fail(absl::InternalError("planned"))
                   : device::CopyFault::None();
      };
      const auto device = Emulated(options);
      const auto cache =
          MakeCache(*device, exclusive ? Exclusive(2, 4) : Inclusive(2, 4), {Order({1, 0}, 0)});
      ASSERT_NE(cache, nullptr);
      fail = true;
      if (guess) {
        cache->Prefetch({Order({1, 1}, 0)});
        Quiesce(*cache, *device);
      } else {
        Served served = FetchNow(*cache, {1, 1}, 0);
        const absl::Status status = served.ready.Synchronize(absl::Seconds(1));
        EXPECT_EQ(status.message(), "planned");
        cache->Failed(std::move(served.lease), status);
      }
      fail = false;
      const auto vacated = Vacated(*cache);
      ASSERT_EQ(vacated.size(), 1U);
      EXPECT_EQ(vacated[0].key, (ExpertKey{1, 1}));
      EXPECT_EQ(vacated[0].slot, 0);
      EXPECT_TRUE(vacated[0].usable);
      EXPECT_EQ(cache->Acquire({1, 1}).status().code(), kFailed);
      EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 1}, 0)));
      Quiesce(*cache, *device);
      EXPECT_EQ(Totals(*cache).failed_copies, 1U);
      EXPECT_EQ(Totals(*cache).lost_slots, 0U);
      EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
      ExpectConserved(*cache);
    }
  }
}

TEST(TieredCache, AFailingStagingCopyFailsTheFetch) {
  bool fail = false;
  const auto device = Emulated(FailingWhile(fail, CopyDirection::kHostToHost));
  const auto cache = MakeCache(*device, Inclusive(2, 0));
  ASSERT_NE(cache, nullptr);
  fail = true;
  const auto served = cache->Fetch({1, 0}, 0);
  EXPECT_FALSE(served.ok());
  cache->Prefetch({Order({1, 1}, 1)});
  fail = false;
  Quiesce(*cache, *device);
  const auto vacated = Vacated(*cache);
  ASSERT_EQ(vacated.size(), 2U);
  EXPECT_EQ(vacated[0].key, (ExpertKey{1, 0}));
  EXPECT_EQ(vacated[1].key, (ExpertKey{1, 1}));
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 0}, 0)));
}

TEST(TieredCache, HangingCopiesLoseTheirSlot) {
  for (const bool guess : {false, true}) {
    SCOPED_TRACE(guess);
    bool hang = false;
    device::EmulatedOptions options = SlowLink();
    options.copy_faults = [&](const device::CopyRequest& request) {
      return hang && request.direction == CopyDirection::kHostToDevice ? device::CopyFault::Hang()
                                                                       : device::CopyFault::None();
    };
    const auto device = Emulated(options);
    const auto cache = MakeCache(*device, Inclusive(2, kAll));
    ASSERT_NE(cache, nullptr);
    hang = true;
    if (guess) {
      cache->Prefetch({Order({2, 1}, 0), Order({2, 2}, 1)});
      hang = false;
      auto clock = device->CreateStream("clock", device::StreamKind::kCopy);
      auto bytes = device->Allocate(device::MemoryKind::kPinned, std::size_t{3} << 20, 64);
      auto there = device->Allocate(device::MemoryKind::kDevice, std::size_t{3} << 20, 64);
      ASSERT_TRUE(clock.ok() && bytes.ok() && there.ok());
      ASSERT_TRUE((*clock)->CopyAsync(there->data(), bytes->data(), bytes->size()).ok());  // 3 s
      ASSERT_TRUE((*clock)->Synchronize().ok());
      EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 2}, api::kStagingSlot)));
      cache->LayerPassed(1);
    } else {
      Served served = FetchNow(*cache, {2, 1}, 0);
      hang = false;
      const absl::Status status = served.ready.Synchronize(absl::Seconds(1));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      cache->Failed(std::move(served.lease), status);
    }
    const auto vacated = Vacated(*cache);
    ASSERT_EQ(vacated.size(), 1U);
    EXPECT_EQ(vacated[0].key, (ExpertKey{2, 1}));
    EXPECT_FALSE(vacated[0].usable);
    // Through staging, since that slot is gone for ever; the other guess went on.
    EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {2, 1}, 0)));
    EXPECT_FALSE(Vacated(*cache).front().usable);
    Quiesce(*cache, *device);
    if (guess) {
      EXPECT_TRUE(HoldsItsBytes(*cache->Acquire({2, 2})));
    }
    EXPECT_EQ(Totals(*cache).lost_slots, 1U);
    EXPECT_EQ(Totals(*cache).failed_copies, 1U);
  }
}

TEST(TieredCache, LessPinnedMemoryThanAskedFor) {
  device::EmulatedOptions options = SlowLink();
  options.pinned_bytes = 14 * (std::uint64_t{3} << 9);  // blobs of 1.5 KiB: 6 slots beside 8 of staging
  auto device = Emulated(options);
  auto cache = MakeCache(*device, Inclusive(2, 20));
  ASSERT_NE(cache, nullptr);
  EXPECT_GE(cache->pinned_slots(), 2);
  EXPECT_LE(cache->pinned_slots(), 6);
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 1}, 0)));
  EXPECT_EQ(Totals(*cache).unpinned_copies, 0U);
  EXPECT_EQ(Totals(*cache).tiers[Tier::kHost].slots, static_cast<std::uint64_t>(kAll));
  cache.reset();

  options.pinned_bytes = 0;
  options.refuse_pinned = true;
  device = Emulated(options);
  cache = MakeCache(*device, Inclusive(2, 20));
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(cache->pinned_slots(), 0);
  EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 1}, 0)));
  EXPECT_EQ(Totals(*cache).unpinned_copies, 1U);
  EXPECT_THAT(cache->DescribeTiers(), ::testing::HasSubstr("pageable"));
  Quiesce(*cache, *device);

  device::EmulatedOptions tiny = SlowLink();
  tiny.device_bytes = 1000;
  const auto too_small = Emulated(tiny);
  EXPECT_EQ(TieredExpertCache::Create(Model().config, tensor::DType::kBf16, Inclusive(4, 4), *too_small)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(TieredCache, DiskIsTheLowestTier) {
  const checkpoint::TempDir directory;
  for (const bool exclusive : {false, true}) {
    SCOPED_TRACE(exclusive);
    const auto device = Emulated(SlowLink());
    TieredOptions options = exclusive ? Exclusive(2, 2) : Inclusive(2, 2);
    options.packed_path = directory.File("experts");
    const auto cache =
        MakeCache(*device, options, {Order({1, 0}, 0), Order({1, 1}, 1), Order({1, 2}, 0, Tier::kPinned)});
    ASSERT_NE(cache, nullptr);
    EXPECT_TRUE(HoldsItsBytes(*cache->Acquire({1, 0})));
    EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {1, 2}, 0)));  // a swap
    EXPECT_TRUE(HoldsItsBytes(FetchNow(*cache, {3, 2}, 1)));  // the victim is in the file
    EXPECT_TRUE(HoldsItsBytes(*cache->AcquireHost({2, 2})));
    cache->Prefetch({Order({2, 3}, 1, Tier::kPinned), Order({2, 4}, 1)});
    Quiesce(*cache, *device);
    EXPECT_TRUE(HoldsItsBytes(*cache->AcquireHost({2, 3})));
    EXPECT_TRUE(HoldsItsBytes(*cache->Acquire({2, 4})));
    EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    const api::OffloadTotals t = Totals(*cache);
    EXPECT_EQ(t.tiers[Tier::kDisk].hits, 2U);
    EXPECT_EQ(t.tiers[Tier::kHost].capacity_bytes, 0U);
    EXPECT_EQ(t.copies[CopyDirection::kDeviceToHost].copies, exclusive ? 1U : 0U);
    EXPECT_GE(t.copies[CopyDirection::kDiskToHost].copies, 4U);
    ExpectConserved(*cache);
  }
}

// What waits for its turn does not hang, however slow those before it are.
TEST(TieredCache, ReadsBehindSlowReadsAreNotGivenUp) {
  const checkpoint::TempDir directory;
  const auto device = Emulated(SlowLink());
  TieredOptions options = Inclusive(8, 2);
  options.packed_path = directory.File("experts");
  options.transfers.copy_limit = absl::Milliseconds(20);  // a read takes some 5 ms, eight take 40
  const auto cache = MakeCache(*device, options);
  ASSERT_NE(cache, nullptr);
  device::Event last;
  for (std::int32_t e = 0; e < kExperts; ++e) {
    Served served = FetchNow(*cache, {1, e}, e);
    last = served.ready;
    cache->Release(std::move(served.lease), device::Event());
  }
  cache->Prefetch({Order({2, 3}, 1, Tier::kPinned)});
  cache->LayerPassed(1);
  const double before = device->Now();
  EXPECT_TRUE(last.Synchronize().ok());
  EXPECT_GT(device->Now() - before, 0.02);
  EXPECT_GT(cache->copies_under_way(), 0);
  cache->LayerPassed(2);
  Quiesce(*cache, *device);
  EXPECT_EQ(Totals(*cache).lost_slots, 0U);
  EXPECT_EQ(Totals(*cache).failed_copies, 0U);
  EXPECT_TRUE(HoldsItsBytes(*cache->AcquireHost({2, 3})));
  for (std::int32_t e = 0; e < kExperts; ++e) {
    EXPECT_TRUE(HoldsItsBytes(*cache->Acquire({1, e})));
  }
}

TEST(TieredCache, TheTableSumsToWhatWasReserved) {
  const auto device = Emulated(SlowLink());
  const auto cache = MakeCache(*device, Exclusive(4, 6));
  ASSERT_NE(cache, nullptr);
  const std::string table = cache->DescribeTiers();
  std::cout << table;
  const api::OffloadTotals t = Totals(*cache);
  const std::uint64_t reserved = device->memory(device::MemoryKind::kDevice).total_bytes == 0
                                     ? 0
                                     : t.tiers[Tier::kDevice].capacity_bytes;
  EXPECT_GE(t.tiers[Tier::kDevice].capacity_bytes, reserved);
  std::uint64_t sum = 0;
  for (const api::TierTotals& tier : t.tiers.values) {
    sum += tier.capacity_bytes;
  }
  EXPECT_THAT(table, ::testing::HasSubstr(std::to_string(sum) + " bytes reserved"));
}

}  // namespace
}  // namespace comoe::experts
