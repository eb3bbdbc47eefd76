#include "scheduler/routing/slot_table.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/residency.h"
#include "scheduler/routing/victim_heap.h"

namespace comoe::routing {
namespace {

using base::ExpertKey;
using base::Tier;

TEST(SlotTableTest, HandsOutFreeSlotsFromTheFirstAndNamesVictims) {
  SlotTable table(2, 3, 2);
  EXPECT_EQ(table.FreeSlot(), 0);
  EXPECT_EQ(table.Place({0, 1}, 0), std::nullopt);
  EXPECT_EQ(table.FreeSlot(), 1);
  EXPECT_EQ(table.Place({1, 1}, 1), std::nullopt);
  EXPECT_EQ(table.FreeSlot(), kNoSlot);
  EXPECT_EQ(table.Place({1, 2}, 0), (ExpertKey{0, 1}));
  EXPECT_EQ(table.SlotOf({0, 1}), kNoSlot);
  EXPECT_EQ(table.map(1).slot, (std::vector<std::int32_t>{kNoSlot, 1, 0}));
}

TEST(SlotTableTest, ADisabledSlotIsNeverFreeAgain) {
  SlotTable table(1, 4, 2);
  table.Place({0, 3}, 0);
  table.Disable(0);
  table.Disable(0);
  EXPECT_EQ(table.SlotOf({0, 3}), kNoSlot);
  EXPECT_EQ(table.Clear(0), std::nullopt);
  EXPECT_EQ(table.FreeSlot(), 1);
  table.Disable(1);
  EXPECT_EQ(table.num_free(), 0);
}

TEST(SlotTableTest, BothWaysAgreeAfterRandomCalls) {
  constexpr std::int32_t kLayers = 3, kExperts = 5, kSlots = 6;
  SlotTable table(kLayers, kExperts, kSlots);
  std::set<std::int32_t> disabled;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const auto slot = static_cast<std::int32_t>(base::RandomBits(1, 4 * i) % kSlots);
    const ExpertKey key{static_cast<std::int32_t>(base::RandomBits(1, 4 * i + 1) % kLayers),
                        static_cast<std::int32_t>(base::RandomBits(1, 4 * i + 2) % kExperts)};
    const std::uint64_t action = base::RandomBits(1, 4 * i + 3) % 1000;
    if (action == 0 && disabled.size() < 4) {
      table.Disable(slot);
      disabled.insert(slot);
    } else if (action < 300) {
      table.Clear(slot);
    } else if (table.SlotOf(key) == kNoSlot && !table.disabled(slot)) {
      table.Place(key, slot);
    }
    std::int32_t used = 0;
    for (std::int32_t s = 0; s < kSlots; ++s) {
      const std::optional<ExpertKey> held = table.KeyIn(s);
      used += held.has_value() ? 1 : 0;
      ASSERT_TRUE(!held.has_value() || table.SlotOf(*held) == s);
    }
    std::int32_t mapped = 0;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<std::int32_t>& map = table.map(layer).slot;
      mapped += kExperts - static_cast<std::int32_t>(std::count(map.begin(), map.end(), kNoSlot));
    }
    ASSERT_EQ(used, mapped);
    ASSERT_EQ(used + table.num_free() + static_cast<std::int32_t>(disabled.size()), kSlots);
    ASSERT_TRUE(table.FreeSlot() == kNoSlot ||
                (!table.KeyIn(table.FreeSlot()).has_value() && !table.disabled(table.FreeSlot())));
  }
}

TEST(VictimHeapTest, FindsWhatASearchOfAllFinds) {
  constexpr std::int32_t kSlots = 17;
  VictimHeap heap(kSlots);
  std::vector<std::optional<Worth>> all(kSlots);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const auto slot = static_cast<std::size_t>(base::RandomBits(2, 3 * i) % kSlots);
    if (base::RandomBits(2, 3 * i + 1) % 4 == 0) {
      heap.Remove(static_cast<std::int32_t>(slot));
      all[slot].reset();
    } else {
      all[slot] = Worth{static_cast<double>(base::RandomBits(2, 3 * i + 2) % 5), i / 7};
      heap.Set(static_cast<std::int32_t>(slot), *all[slot]);
    }
    const auto allowed = [i](std::int32_t s) { return (static_cast<std::uint64_t>(s) + i) % 3 != 0; };
    std::int32_t expected = kNoSlot;
    for (std::int32_t s = 0; s < kSlots; ++s) {
      const std::optional<Worth>& worth = all[static_cast<std::size_t>(s)];
      if (worth.has_value() && allowed(s) &&
          (expected == kNoSlot || *worth < *all[static_cast<std::size_t>(expected)])) {
        expected = s;
      }
    }
    ASSERT_EQ(heap.Lowest(allowed), expected);
  }
}

TierShape TwoTiers(bool exclusive) {
  TierShape shape;
  shape.num_layers = 1;
  shape.moe_layers = {0};
  shape.num_experts = 6;
  shape.experts_per_token = 1;
  shape.device_slots = 1;
  shape.pinned_slots = 2;
  shape.exclusive = exclusive;
  shape.pinned_holds_all = false;
  return shape;
}

TEST(ResidencyTest, ExclusiveTiersSwap) {
  Residency tiers(TwoTiers(true));
  tiers.PlacePinned({0, 1}, 0);
  tiers.PlacePinned({0, 2}, 1);
  EXPECT_EQ(tiers.PlaceOnDevice({0, 1}, 0).pinned_slot, 0);
  EXPECT_EQ(tiers.pinned().KeyIn(0), std::nullopt) << "nothing was displaced, so its slot is free";
  EXPECT_EQ(tiers.PlaceOnDevice({0, 2}, 0).victim, (ExpertKey{0, 1}));
  EXPECT_EQ(tiers.pinned().KeyIn(1), (ExpertKey{0, 1}));
  tiers.PlaceOnDevice({0, 5}, 0);
  EXPECT_EQ(tiers.pinned().SlotOf({0, 2}), kNoSlot)
      << "the newcomer came from the host tier: so it went there";
}

TEST(ResidencyTest, InclusiveTiersKeepTheCopy) {
  Residency tiers(TwoTiers(false));
  tiers.PlacePinned({0, 1}, 0);
  tiers.PlaceOnDevice({0, 1}, 0);
  EXPECT_EQ(tiers.pinned().SlotOf({0, 1}), 0);
}

TEST(ResidencyTest, ALateReportAboutADisplacedExpertChangesNothing) {
  Residency tiers(TwoTiers(false));
  tiers.PlaceOnDevice({0, 1}, 0);
  tiers.PlaceOnDevice({0, 2}, 0);
  EXPECT_FALSE(tiers.Vacate(Tier::kDevice, 0, {0, 1}, true));
  EXPECT_EQ(tiers.device().SlotOf({0, 2}), 0);
  EXPECT_TRUE(tiers.Vacate(Tier::kDevice, 0, {0, 1}, false));
  EXPECT_TRUE(tiers.device().disabled(0));
  EXPECT_FALSE(tiers.Vacate(Tier::kDevice, 7, {0, 1}, false)) << "no such slot";
  EXPECT_FALSE(tiers.Vacate(Tier::kDisk, 0, {0, 1}, false));
}

}  // namespace
}  // namespace comoe::routing
