// `comoe bench offload` on a card, over the fake plugin: experts are loaded once for all points, and no point
// is another for it.
#include "cli/bench_offload.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_keep.h"
#include "engine/device/cuda/cuda_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"

namespace comoe::cli {
namespace {

class BenchOffloadTest : public ::testing::Test {
 protected:
  BenchOffloadTest() {
    const char* root = std::getenv("COMOE_SOURCE_DIR");
    EngineOptions& engine = options_.engine;
    engine.model = absl::StrCat(root != nullptr ? root : ".", "/tests/fixtures/checkpoints/qwen3_moe");
    engine.device = "cuda";
    engine.threads = 1;
    engine.kernels = "ref";
    engine.quiet = true;
    engine.kv_bytes = "8MiB";
    engine.device_kernels = &comoe::testing::FakeCudaKernels();
    engine.make_device = [this] {
      ++devices_;
      return device::MakeCudaDevice(comoe::testing::FakeCudaPlugin(), {});
    };
    engine.keep = std::make_shared<EngineKeep>();
    options_.run = {.warmup_steps = 1, .steps = 4, .prompt = 6};
    for (int text = 0; text < 3; ++text) {
      study_.texts.emplace_back();
      for (int i = 0; i < 12; ++i) {
        study_.texts.back().push_back((text * 17 + i * i * 7) % 50);
      }
    }
    study_.batches = {1, 2};
    study_.shares = {0.25};
  }

  std::vector<OffloadPoint> Compare(const std::string& policies) {
    options_.policies = policies;
    auto points = ComparePolicies(options_, study_);
    EXPECT_TRUE(points.ok()) << points.status();
    return points.ok() ? *std::move(points) : std::vector<OffloadPoint>();
  }

  BenchOffloadOptions options_;
  OffloadStudy study_;
  int devices_ = 0;
};

TEST_F(BenchOffloadTest, LoadsOnce) {
  options_.host_lanes = "off,on";
  const std::vector<OffloadPoint> kept = Compare("naive,static,lru,simple,hub");
  EXPECT_EQ(devices_, 1);
  EXPECT_GT(options_.engine.keep->experts().bytes(), 0U);
  options_.engine.keep = nullptr;
  const std::vector<OffloadPoint> alone = Compare("naive,static,lru,simple,hub");
  EXPECT_EQ(devices_, 21);
  ASSERT_EQ(kept.size(), 20U);
  ASSERT_EQ(alone.size(), kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const OffloadPoint& p = kept[i];
    SCOPED_TRACE(absl::StrCat(p.policy, ", batch ", p.batch, p.host_lane ? ", host lane" : ""));
    EXPECT_EQ(p.policy, alone[i].policy);
    EXPECT_EQ(p.host_lane, i % 10 >= 5);
    EXPECT_TRUE(p.same_tokens && alone[i].same_tokens);
    EXPECT_EQ(p.run.last_logits, alone[i].run.last_logits);
    for (const base::Tier tier : base::kTiers) {
      EXPECT_EQ(p.run.totals.tiers[tier].slots, alone[i].run.totals.tiers[tier].slots);
      EXPECT_EQ(p.run.totals.tiers[tier].capacity_bytes, alone[i].run.totals.tiers[tier].capacity_bytes);
    }
    if (!p.host_lane && p.policy != "simple" && p.policy != "hub") {  // whose guesses have their own time
      EXPECT_EQ(p.run.totals.served_hit, alone[i].run.totals.served_hit);
      EXPECT_EQ(p.run.totals.served_fetch, alone[i].run.totals.served_fetch);
    }
    // Times of a device that has lived before: of this engine's steps only.
    EXPECT_LE(p.run.totals.compute, p.run.totals.wall * 1.01);
    EXPECT_LE(p.run.totals.stalled.Sum(), p.run.totals.wall * 1.01);
  }
}

TEST_F(BenchOffloadTest, PageableMemoryIsNoOtherPolicys) {
  options_.host_lanes = "off,on";
  const std::vector<OffloadPoint> points = Compare("naive,naive-pageable,lru");
  ASSERT_EQ(points.size(), 12U);
  for (const OffloadPoint& p : points) {
    EXPECT_TRUE(p.same_tokens);
    EXPECT_TRUE(p.host_lane || p.policy == "lru" || p.run.totals.served_fetch > 0) << p.policy;
    EXPECT_EQ(p.run.totals.unpinned_copies > 0, p.policy == "naive-pageable" && p.run.totals.served_fetch > 0)
        << p.policy;
  }
}

TEST_F(BenchOffloadTest, AnotherSettingOfTheDeviceLoadsAnew) {
  Compare("naive");
  options_.engine.serial = device::EmulatedSerial::kOneStream;
  Compare("lru");
  EXPECT_EQ(devices_, 2);
  Compare("naive");
  EXPECT_EQ(devices_, 2);
  options_.engine.widen = "128,96";
  Compare("naive");
  EXPECT_EQ(devices_, 3);
}

// A timeline for each engine, the last one's file, as without anything kept.
TEST_F(BenchOffloadTest, TimelinesEndWithTheirEngine) {
  options_.engine.timeline = ::testing::TempDir() + "/bench_offload_timeline.json";
  options_.engine.timeline_steps = 3;
  study_.batches = {1};
  Compare("naive,lru,hub");
  EXPECT_EQ(devices_, 1);
  options_.engine.timeline.clear();
  Compare("lru");
  std::ifstream file(::testing::TempDir() + "/bench_offload_timeline.json");
  const nlohmann::json events = nlohmann::json::parse(file)["traceEvents"];
  std::vector<std::string> lanes;
  int steps = 0;
  for (const nlohmann::json& event : events) {
    if (event["name"] == "thread_name") {
      lanes.push_back(event["args"]["name"]);
    }
    steps += event["ph"] == "X" && event["tid"] == 0 ? 1 : 0;
    if (event["ph"] == "X") {
      EXPECT_GE(event["ts"].get<double>(), 0.0);
    }
  }
  EXPECT_EQ(steps, 3);
  EXPECT_THAT(lanes, ::testing::IsSupersetOf({"steps", "compute", "copy-demand"}));
}

TEST_F(BenchOffloadTest, HostLanesAreOnOrOff) {
  options_.host_lanes = "off,maybe";
  EXPECT_TRUE(absl::IsInvalidArgument(ComparePolicies(options_, study_).status()));
  options_.host_lanes = "off,on";
  options_.engine.host_lane = "on";
  EXPECT_TRUE(absl::IsInvalidArgument(ComparePolicies(options_, study_).status()));
  options_.host_lanes.clear();
  study_.batches = {2};
  // Here time is calculated, so that who is faster does not depend on what else this machine does.
  options_.engine.device = "emulated";
  options_.engine.make_device = nullptr;
  options_.engine.device_kernels = nullptr;
  const std::vector<OffloadPoint> points = Compare("naive,hub");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_TRUE(points[0].host_lane && points[1].host_lane);
  EXPECT_GT(points[0].run.totals.served_host + points[1].run.totals.served_host, 0U);
  const nlohmann::json json = OffloadJson(points);
  EXPECT_EQ(json[1]["host_lane"], "on");
  EXPECT_EQ(json[0]["speed_of_first_policy"], 1.0);
}

}  // namespace
}  // namespace comoe::cli
