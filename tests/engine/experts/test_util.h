// Helpers of the tests of experts: a small model in memory, its blobs, caches over it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/weight_names.h"
#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/experts/tiered_cache.h"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::experts {

inline constexpr std::int32_t kLayers = 4;  // the first one dense
inline constexpr std::int32_t kExperts = 8;
inline constexpr std::int32_t kAll = 3 * kExperts;

// Experts whose blobs all differ.
struct SmallModel {
  SmallModel();
  std::vector<base::ExpertKey> keys() const;
  // What the expert's blob must be.
  const std::vector<std::byte>& Blob(base::ExpertKey key) const { return blobs.at(key); }

  checkpoint::ModelConfig config;
  std::unique_ptr<checkpoint::RandomSource> source;
  std::unique_ptr<checkpoint::WeightNames> names;
  std::map<base::ExpertKey, std::vector<std::byte>> blobs;
  base::ThreadPool pool{2, "test"};
};

// One for all tests; never changed.
SmallModel& Model();

// A link so slow that every copy takes a millisecond or so.
device::EmulatedOptions SlowLink();
std::unique_ptr<device::Device> Emulated(device::EmulatedOptions options);

// Loaded, or a failed expectation and nullptr.
std::unique_ptr<TieredExpertCache> MakeCache(device::Device& device, const TieredOptions& options,
                                             std::vector<api::FetchOrder> orders = {});

api::OffloadTotals Totals(const ExpertCache& cache);
// Waits for it and compares its bytes.
::testing::AssertionResult HoldsItsBytes(const Served& served);
// Waits until no copy is under way.
void Quiesce(TieredExpertCache& cache, device::Device& device);
// Sums that must agree, for a cache that is at rest.
void ExpectConserved(const TieredExpertCache& cache);

}  // namespace comoe::experts
