// Random walks over the layers, as an engine and a careless director would make them, against what must hold:
// bytes under a lease are the expert's, experts are where the books say, sums agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/rng.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/emulated/emulated_stream.h"
#include "tests/engine/experts/test_util.h"

namespace comoe::experts {
namespace {

using api::FetchOrder;
using base::ExpertKey;
using base::Tier;

struct Case {
  const char* name;
  std::int32_t device;
  std::int32_t pinned;
  bool exclusive;
  bool disk;
};

constexpr Case kCases[] = {
    {"few pinned", 6, 5, false, false},         {"all pinned", 6, 100, false, false},
    {"none pinned", 3, 0, false, false},        {"nothing kept", 0, 4, false, false},
    {"exclusive", 6, 7, true, false},           {"exclusive, none pinned", 5, 0, true, false},
    {"exclusive, no host", 8, 16, true, false}, {"disk", 5, 4, false, true},
    {"exclusive, disk", 5, 4, true, true},      {"most on the device", 22, 100, false, false},
    {"exclusive, most", 22, 6, true, false}};

// The director's view of the device slots, and a mind of its own.
class Walker {
 public:
  Walker(TieredExpertCache& cache, device::Device& device, std::uint64_t seed, absl::Duration limit)
      : cache_(cache),
        device_(device),
        seed_(seed),
        limit_(limit),
        slots_(static_cast<std::size_t>(cache.device_slots())) {
    stream_ = *device.CreateStream("compute", device::StreamKind::kCompute);
  }

  // As an engine does where all of a layer is there: one lease for all, orders beside it, release while it is
  // used. False: it is not.
  bool WholeLayer(std::int32_t layer) {
    const std::optional<LayerPlaces> places = cache_.LeaseLayer(layer);
    if (!places.has_value()) {
      return false;
    }
    EXPECT_TRUE(cache_.LayerIsThere(layer));
    EXPECT_EQ(cache_.leased(), 1);
    ++whole_layers_;
    const std::vector<std::uint64_t> addresses(places->addresses.begin(), places->addresses.end());
    EXPECT_TRUE(HoldTheirBytes(layer, addresses));
    std::set<std::int32_t> needed;
    Order(layer, needed);
    EXPECT_TRUE(HoldTheirBytes(layer, addresses));
    Compute(2e9);
    auto used = stream_->Record();
    EXPECT_TRUE(used.ok());
    cache_.ReleaseLayer(layer, *used);
    Order(layer == 1 ? 2 : 1, needed);  // may take what still is being used
    if (device_.simulated()) {
      EXPECT_TRUE(used->Synchronize().ok());
      EXPECT_TRUE(HoldTheirBytes(layer, addresses));
    }
    std::vector<std::int32_t> chosen;
    for (std::int32_t e = 0; e < kExperts; ++e) {
      if (Draw(2) == 0) {
        chosen.push_back(e);
      }
    }
    cache_.CountHits(layer, chosen);
    lookups_ += chosen.size();
    Learn();
    return true;
  }

  void Layer(std::int32_t layer) {
    if (Draw(4) > 0 && WholeLayer(layer)) {
      return;
    }
    std::set<std::int32_t> needed;
    for (std::uint64_t i = Draw(5) + 1; i > 0; --i) {
      needed.insert(static_cast<std::int32_t>(Draw(kExperts)));
    }
    std::set<std::int32_t> lost;
    for (const std::int32_t e : needed) {
      if (SlotOf({layer, e}).has_value() && !Hit({layer, e})) {
        lost.insert(e);
      }
    }
    for (const std::int32_t e : needed) {
      if (lost.count(e) > 0) {
        Miss({layer, e}, api::kStagingSlot);
      } else if (!SlotOf({layer, e}).has_value() && served_.count(e) == 0) {
        Miss({layer, e}, AnySlot(layer));
      }
    }
    if (Draw(3) > 0) {
      Order(layer, needed);
    }
    while (!served_.empty()) {
      FinishOne();
    }
    cache_.LayerPassed(layer);
    Learn();
  }

  void Learn() {
    for (const ExpertCache::Vacated& vacated : cache_.TakeVacated()) {
      if (vacated.tier != Tier::kDevice || vacated.slot < 0 ||
          static_cast<std::size_t>(vacated.slot) >= slots_.size()) {
        continue;
      }
      Slot& slot = slots_[static_cast<std::size_t>(vacated.slot)];
      slot.usable = slot.usable && vacated.usable;
      if (slot.key == vacated.key) {
        slot.key.reset();
      }
    }
  }

  std::uint64_t lookups() const { return lookups_; }
  std::uint64_t failures() const { return failures_; }
  std::uint64_t whole_layers() const { return whole_layers_; }

 private:
  struct Slot {
    std::optional<ExpertKey> key;
    bool usable = true;
  };

  std::uint64_t Draw(std::uint64_t n) { return base::RandomBits(seed_, counter_++) % n; }

  static testing::AssertionResult HoldTheirBytes(std::int32_t layer,
                                                 const std::vector<std::uint64_t>& addresses) {
    for (std::int32_t e = 0; e < kExperts; ++e) {
      const std::vector<std::byte>& blob = Model().Blob({layer, e});
      const auto* data = reinterpret_cast<const std::byte*>(addresses[static_cast<std::size_t>(e)]);
      if (!std::equal(blob.begin(), blob.end(), data)) {
        return testing::AssertionFailure()
               << "expert " << e << " of layer " << layer << " is not at its address";
      }
    }
    return testing::AssertionSuccess();
  }

  // Something that keeps the device busy.
  void Compute(double bytes) {
    if (auto* emulated = dynamic_cast<device::EmulatedStream*>(stream_.get())) {
      emulated->BeginKernel();
      emulated->EndKernel({.bytes = bytes, .flops = 0.0});
    }
  }

  std::optional<std::int32_t> SlotOf(ExpertKey key) const {
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].key == key) {
        return static_cast<std::int32_t>(s);
      }
    }
    return std::nullopt;
  }
  // One that the layer does not need; now and then a silly one.
  std::int32_t AnySlot(std::int32_t layer) {
    if (slots_.empty() || Draw(4) == 0) {
      return Draw(10) == 0 ? 77 : api::kStagingSlot;
    }
    const auto s = static_cast<std::size_t>(Draw(slots_.size()));
    const bool ours = slots_[s].key.has_value() && slots_[s].key->layer == layer;
    return ours || !slots_[s].usable ? api::kStagingSlot : static_cast<std::int32_t>(s);
  }
  void Take(std::int32_t slot, ExpertKey key) {
    if (slot >= 0 && static_cast<std::size_t>(slot) < slots_.size()) {
      slots_[static_cast<std::size_t>(slot)].key = key;
    }
  }

  void Forget(ExpertKey key) {
    for (Slot& slot : slots_) {
      if (slot.key == key) {
        slot.key.reset();
      }
    }
  }

  // False: it was lost since the director last heard, and nothing is free to fetch it through. Later.
  bool Hit(ExpertKey key) {
    auto served = cache_.Acquire(key);
    if (absl::IsResourceExhausted(served.status())) {
      return false;
    }
    if (!served.ok()) {  // only where a copy failed at once
      EXPECT_NE(served.status().code(), absl::StatusCode::kFailedPrecondition) << served.status();
      ++failures_;
      return true;
    }
    ++lookups_;
    served_.emplace(key.expert, *std::move(served));
    return true;
  }

  void Miss(ExpertKey key, std::int32_t slot) {
    if (Draw(3) == 0) {
      if (auto served = cache_.AcquireHost(key); served.ok()) {
        ++lookups_;
        served_.emplace(key.expert, *std::move(served));
        return;
      }
    }
    for (;;) {
      auto served = cache_.Fetch(key, slot);
      Take(slot, key);
      if (!served.ok()) {
        ++failures_;
        return;
      }
      if (served->has_value()) {
        ++lookups_;
        served_.emplace(key.expert, **std::move(served));
        return;
      }
      if (!served_.empty()) {
        FinishOne();
        continue;
      }
      // Victims and guesses have it.
      const std::optional<device::Event> copy = cache_.UnderWay();
      ASSERT_TRUE(copy.has_value())
          << "all staging is gone, though nobody leases it and no copy is under way";
      if (absl::IsDeadlineExceeded(copy->Synchronize(limit_))) {
        ++failures_;
        Forget(key);
        return;
      }
    }
  }

  void Order(std::int32_t layer, const std::set<std::int32_t>& needed) {
    orders_.clear();
    for (std::uint64_t i = Draw(5); i > 0; --i) {
      const ExpertKey key{static_cast<std::int32_t>(Draw(3)) + 1, static_cast<std::int32_t>(Draw(kExperts))};
      if (Draw(4) == 0 && cache_.pinned_slots() > 0) {
        orders_.push_back(
            {key, Tier::kPinned,
             static_cast<std::int32_t>(Draw(static_cast<std::uint64_t>(cache_.pinned_slots())))});
        continue;
      }
      const std::int32_t slot = AnySlot(layer);
      if (SlotOf(key).has_value() || slot < 0 || (key.layer == layer && needed.count(key.expert) > 0)) {
        continue;
      }
      orders_.push_back({key, Tier::kDevice, slot});
      Take(slot, key);
    }
    cache_.Prefetch(orders_);
  }

  // As an engine does: waits, computes, releases while that is still going on.
  void FinishOne() {
    auto it = served_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(Draw(served_.size())));
    Served served = std::move(it->second);
    served_.erase(it);
    const absl::Status ready = served.ready.Synchronize(limit_);
    if (!ready.ok()) {
      ++failures_;
      cache_.Failed(std::move(served.lease), ready);
      return;
    }
    EXPECT_TRUE(HoldsItsBytes(served));
    Compute(static_cast<double>(Draw(3)) * 1e9);
    auto used = stream_->Record();
    ASSERT_TRUE(used.ok());
    if (Draw(8) == 0) {
      EXPECT_TRUE(used->Synchronize().ok());
      served.lease = Lease();  // dropped, since nothing reads it any more
    } else {
      cache_.Release(std::move(served.lease), *used);
    }
  }

  TieredExpertCache& cache_;
  device::Device& device_;
  const std::uint64_t seed_;
  const absl::Duration limit_;
  std::uint64_t counter_ = 0;
  std::unique_ptr<device::Stream> stream_;
  std::vector<Slot> slots_;
  std::map<std::int32_t, Served> served_;
  std::vector<FetchOrder> orders_;
  std::uint64_t lookups_ = 0;
  std::uint64_t failures_ = 0;
  std::uint64_t whole_layers_ = 0;
};

// Whatever happened, every expert can still be had. A fetch may join copies that were begun while they still
// failed, one to the device and one to the host: after those it begins its own.
void ExpectHad(TieredExpertCache& cache, ExpertKey key, bool faulty, absl::Duration limit) {
  SCOPED_TRACE(testing::Message() << "layer " << key.layer << ", expert " << key.expert);
  for (int begun_before = faulty ? 2 : 0;; --begun_before) {
    auto served = cache.Fetch(key, api::kStagingSlot);
    if (faulty && (!served.ok() || !served->has_value())) {
      return;  // what it would come from may hang
    }
    ASSERT_TRUE(served.ok()) << served.status();
    ASSERT_TRUE(served->has_value());
    if (begun_before > 0) {
      if (const absl::Status ready = (*served)->ready.Synchronize(limit); !ready.ok()) {
        cache.Failed(std::move((*served)->lease), ready);
        continue;
      }
    }
    EXPECT_TRUE(HoldsItsBytes(**served));
    cache.Release(std::move((*served)->lease), device::Event());
    return;
  }
}

void Walk(const Case& c, device::Device& device, const std::string& packed, std::uint64_t seed, int steps,
          bool faulty, std::atomic<bool>& faults_on, absl::Duration limit = absl::Seconds(1)) {
  SCOPED_TRACE(testing::Message() << c.name << ", seed " << seed);
  TieredOptions options;
  options.device_slots = c.device;
  options.pinned_slots = c.pinned;
  options.exclusive = c.exclusive;
  options.exclusive_spares = 3;
  options.pinned_staging_slots = 3;
  options.packed_path = c.disk ? packed : "";
  options.transfers.copy_limit = limit;
  options.transfers.queue_capacity = 6;
  options.transfers.max_guesses_in_flight = 1 + static_cast<int>(seed % 3);
  faults_on = false;
  const auto cache = MakeCache(device, options);
  ASSERT_NE(cache, nullptr);
  Walker walker(*cache, device, seed, limit);
  faults_on = faulty;
  for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
    for (std::int32_t layer = 1; layer < kLayers; ++layer) {
      walker.Layer(layer);
      const absl::Status places = cache->CheckPlaces();
      ASSERT_TRUE(places.ok()) << places << ", step " << step << ", layer " << layer;
      ASSERT_EQ(cache->leased(), 0);
    }
  }
  faults_on = false;
  if (testing::Test::HasFailure()) {
    return;
  }
  if (c.device > 2 * kExperts && !faulty) {
    EXPECT_GT(walker.whole_layers(), 0U);
  }
  if (!faulty) {
    EXPECT_EQ(walker.failures(), 0U);
    Quiesce(*cache, device);
    EXPECT_TRUE(cache->CheckPlaces().ok()) << cache->CheckPlaces();
    const api::OffloadTotals t = Totals(*cache);
    EXPECT_EQ(t.failed_copies, 0U);
    if (c.exclusive && !c.disk) {
      EXPECT_EQ(t.tiers[Tier::kDevice].slots_used + t.tiers[Tier::kPinned].slots_used +
                    t.tiers[Tier::kHost].slots_used,
                static_cast<std::uint64_t>(kAll));
    }
  }
  const api::OffloadTotals t = Totals(*cache);
  EXPECT_EQ(t.tiers[Tier::kDevice].hits + t.tiers[Tier::kDevice].misses, walker.lookups());
  ExpectConserved(*cache);
  for (const ExpertKey key : Model().keys()) {
    ExpectHad(*cache, key, faulty, limit);
  }
}

class TieredFuzz : public ::testing::Test {
 protected:
  checkpoint::TempDir directory_;
  std::atomic<bool> faults_on_ = false;
};

TEST_F(TieredFuzz, CpuDevice) {
  const auto device = device::MakeCpuDevice(1);
  for (const Case& c : kCases) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      Walk(c, *device, directory_.File("packed"), seed, 60, false, faults_on_);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(TieredFuzz, VirtualClock) {
  for (const Case& c : kCases) {
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      const auto device = Emulated(SlowLink());
      Walk(c, *device, directory_.File("packed"), seed, 60, false, faults_on_);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(TieredFuzz, VirtualClockPageable) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    device::EmulatedOptions options = SlowLink();
    options.refuse_pinned = true;
    const auto device = Emulated(options);
    Walk(kCases[0], *device, "", seed, 40, false, faults_on_);
    ASSERT_FALSE(HasFailure());
  }
}

// Failing from seed 0, hanging from seed 4.
std::function<device::CopyFault(const device::CopyRequest&)> Faults(std::uint64_t seed,
                                                                    const std::atomic<bool>& on) {
  return [seed, &on](const device::CopyRequest& request) {
    const std::uint64_t draw = base::RandomBits(seed + 1000, request.index) % 200;
    if (!on || draw > 8) {
      return device::CopyFault::None();
    }
    if (draw == 0 && seed >= 4) {
      return device::CopyFault::Hang();
    }
    return draw < 4 ? device::CopyFault::Late(0.01) : device::CopyFault::Fail(absl::InternalError("planned"));
  };
}

TEST_F(TieredFuzz, VirtualClockFaults) {
  for (const Case& c : kCases) {
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      device::EmulatedOptions options = SlowLink();
      options.copy_faults = Faults(seed, faults_on_);
      const auto device = Emulated(options);
      Walk(c, *device, directory_.File("packed"), seed, 60, true, faults_on_);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Copies of some ten microseconds, on threads.
device::EmulatedOptions RealClock() {
  device::EmulatedOptions options;
  options.real_clock = true;
  options.rates.link_bytes_per_second = 1e8;
  options.rates.host_copy_bytes_per_second = 2e8;
  options.rates.disk_bytes_per_second = 1e8;
  return options;
}

TEST_F(TieredFuzz, RealClock) {
  for (const Case& c : kCases) {
    const auto device = Emulated(RealClock());
    Walk(c, *device, directory_.File("packed"), 7, 40, false, faults_on_, absl::Seconds(20));
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(TieredFuzz, RealClockFaults) {
  for (const Case& c : kCases) {
    for (const std::uint64_t seed : {1, 5}) {
      device::EmulatedOptions options = RealClock();
      options.copy_faults = Faults(seed, faults_on_);
      const auto device = Emulated(options);
      // Hanging copies cost the limit each.
      Walk(c, *device, directory_.File("packed"), seed, seed < 4 ? 30 : 10, true, faults_on_,
           seed < 4 ? absl::Seconds(20) : absl::Milliseconds(100));
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace comoe::experts
