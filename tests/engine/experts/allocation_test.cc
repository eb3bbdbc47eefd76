// Steps allocate nothing: this program counts what operator new gives out.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "engine/device/cpu/cpu_device.h"
#include "tests/engine/experts/test_util.h"

namespace {

std::atomic<std::int64_t> allocations{0};

void* Allocate(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  return data;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return Allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return Allocate(bytes); }
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

namespace comoe::experts {
namespace {

// A director that rotates: every layer hits one, fetches one into a slot, stages one, computes one on the
// host, and orders a few.
class Steps {
 public:
  Steps(TieredExpertCache& cache, device::Device& device) : cache_(cache) {
    stream_ = *device.CreateStream("compute", device::StreamKind::kCompute);
    orders_.reserve(8);
  }

  bool Step() {
    ++step_;
    bool good = true;
    for (std::int32_t layer = 1; layer < kLayers; ++layer) {
      const std::int32_t first = step_ % kExperts;
      good = Serve(cache_.Fetch({layer, first}, (layer - 1) * 2)) && good;
      good = Serve(cache_.Fetch({layer, (first + 1) % kExperts}, api::kStagingSlot)) && good;
      auto host = cache_.AcquireHost({layer, (first + 5) % kExperts});
      if (host.ok()) {
        good = Use(*std::move(host)) && good;
      }
      orders_.clear();
      orders_.push_back({{layer, (first + 2) % kExperts}, base::Tier::kDevice, (layer - 1) * 2 + 1});
      orders_.push_back({{layer % 3 + 1, (first + 3) % kExperts}, base::Tier::kDevice, layer % 3 * 2 + 1});
      orders_.push_back({{layer, (first + 6) % kExperts}, base::Tier::kPinned, layer});
      cache_.Prefetch(orders_);
      api::LaneState lanes;
      cache_.Describe(lanes);
      cache_.LayerPassed(layer);
      cache_.TakeVacated();
    }
    return good;
  }

 private:
  bool Serve(absl::StatusOr<std::optional<Served>> served) {
    return served.ok() && served->has_value() && Use(**std::move(served));
  }
  bool Use(Served served) {
    const bool good = served.ready.Synchronize(absl::Seconds(1)).ok();
    auto used = stream_->Record();
    cache_.Release(std::move(served.lease), *used);
    return good;
  }

  TieredExpertCache& cache_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<api::FetchOrder> orders_;
  std::int32_t step_ = 0;
};

TEST(Allocation, StepsAllocateNothing) {
  const checkpoint::TempDir directory;
  for (const bool emulated : {false, true}) {
    for (const bool exclusive : {false, true}) {
      for (const bool disk : {false, true}) {
        SCOPED_TRACE(testing::Message() << emulated << exclusive << disk);
        const std::unique_ptr<device::Device> device =
            emulated ? Emulated(SlowLink()) : device::MakeCpuDevice(1);
        TieredOptions options;
        options.device_slots = 6;
        options.pinned_slots = 6;
        options.exclusive = exclusive;
        options.packed_path = disk ? directory.File("packed") : "";
        const auto cache = MakeCache(*device, options);
        ASSERT_NE(cache, nullptr);
        Steps steps(*cache, *device);
        for (int i = 0; i < 200; ++i) {
          ASSERT_TRUE(steps.Step());
        }
        const std::int64_t before = allocations.load();
        bool good = true;
        for (int i = 0; i < 200; ++i) {
          good = steps.Step() && good;
        }
        EXPECT_EQ(allocations.load() - before, 0);
        EXPECT_TRUE(good);
      }
    }
  }
}

}  // namespace
}  // namespace comoe::experts
