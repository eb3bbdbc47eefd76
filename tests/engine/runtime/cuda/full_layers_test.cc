// MoE layers whose experts all lie on the device: the host queues them without waiting, and hears of their
// routing later. Layers that miss something stand between them; everything comes out as on the CPU device.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "engine/device/cuda/cuda_device.h"
#include "gtest/gtest.h"
#include "scheduler/routing/forwarding_director.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"
#include "tests/support/fake_cuda_launches.h"

namespace comoe {
namespace {

constexpr int kSteps = 24;
constexpr std::size_t kSequences = 3;

// The device's layers without the host, and how often the host had waited when each was queued.
std::vector<std::size_t> g_waits_at_layer;

absl::Status CountedLayer(const kernels::MoeResidentArgs& args, device::Stream& stream) {
  g_waits_at_layer.push_back(testing::FakeCudaWaits());
  return testing::FakeCudaKernels().moe_resident(args, stream);
}

cli::EngineOptions CpuOptions(const std::string& model) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  cli::EngineOptions options;
  options.model = absl::StrCat(root != nullptr ? root : ".", "/tests/fixtures/checkpoints/", model);
  options.threads = 1;
  options.kernels = "ref";
  options.quiet = true;
  options.max_batch_tokens = 8;
  options.max_sequences = kSequences;
  options.kv_bytes = "8MiB";
  return options;
}

cli::EngineOptions CudaOptions(const std::string& model, const std::string& policy, double share) {
  static const kernels::KernelTable kernels = [] {
    kernels::KernelTable table = testing::FakeCudaKernels();
    table.moe_resident = CountedLayer;
    table.top_logits = nullptr;  // so that all logits can be compared
    return table;
  }();
  cli::EngineOptions options = CpuOptions(model);
  options.device = "cuda";
  options.device_kernels = &kernels;
  options.cuda_graphs = "off";
  options.make_device = [] { return device::MakeCudaDevice(testing::FakeCudaPlugin(), {}); };
  options.policy = policy;
  options.expert_cache_fraction = share;
  return options;
}

struct Heard {
  std::vector<std::int32_t> layers;  // of each observation
  std::vector<std::vector<std::int32_t>> experts;
  std::vector<std::vector<float>> weights;
  bool operator==(const Heard&) const = default;
};

struct Ran {
  std::vector<float> logits;
  Heard heard;
  api::OffloadTotals totals;
  std::vector<std::size_t> waits;  // of all layers without the host
  std::size_t waits_before = 0;    // the last step
};

// What a director hears, and that orders name nothing that the layer at hand needs is left to the director.
class Listener final : public routing::ForwardingDirector {
 public:
  Listener(std::unique_ptr<api::ExpertDirector> inner, Heard* heard)
      : ForwardingDirector(std::move(inner)), heard_(*heard) {}
  void ObserveRouting(const api::RoutingObservation& seen) override {
    heard_.layers.push_back(seen.layer);
    heard_.experts.emplace_back(seen.experts.begin(), seen.experts.end());
    heard_.weights.emplace_back(seen.weights.begin(), seen.weights.end());
    ForwardingDirector::ObserveRouting(seen);
  }

 private:
  Heard& heard_;
};

Ran RunSteps(cli::EngineOptions options) {
  Ran ran;
  options.wrap_director = [&ran](std::unique_ptr<api::ExpertDirector> inner) {
    return std::make_unique<Listener>(std::move(inner), &ran.heard);
  };
  const auto loaded = cli::LoadEngine(options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) {
    return ran;
  }
  api::Engine& engine = (*loaded)->engine();
  g_waits_at_layer.clear();
  for (int n = 0; n < kSteps; ++n) {
    api::StepPlan plan;
    plan.step = {static_cast<std::uint64_t>(n)};
    for (std::size_t i = 0; i < kSequences; ++i) {
      api::PlanSpan& span = plan.spans.emplace_back();
      span.sequence = {i};
      span.start_position = n;
      span.tokens = {static_cast<base::TokenId>((n * 7 + static_cast<int>(i) * 5 + n * n) % 31)};
      const auto at = static_cast<std::int32_t>(3 * i);
      span.groups.assign(engine.model_info().cache_groups.size(),
                         {.blocks = {{at}, {at + 1}, {at + 2}}, .slot = -1});
      span.logits = api::LogitsMode::kLast;
      span.return_logits = true;
    }
    ran.waits_before = testing::FakeCudaWaits();
    const absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) {
      return ran;
    }
    for (const api::SpanResult& span : result->spans) {
      EXPECT_TRUE(span.status.ok()) << span.status;
      ran.logits.insert(ran.logits.end(), span.logits.begin(), span.logits.end());
    }
  }
  ran.totals = engine.offload_totals();
  ran.waits = g_waits_at_layer;
  return ran;
}

std::size_t MoeLayers(const Ran& ran) { return ran.heard.layers.size() / kSteps; }

void ExpectSame(const Ran& want, const Ran& got) {
  ASSERT_EQ(want.logits.size(), got.logits.size());
  EXPECT_EQ(std::memcmp(want.logits.data(), got.logits.data(), want.logits.size() * sizeof(float)), 0);
  // In order of layers, whenever it was told.
  EXPECT_EQ(want.heard.layers, got.heard.layers);
  EXPECT_EQ(want.heard.experts, got.heard.experts);
  EXPECT_EQ(want.heard.weights, got.heard.weights);
}

TEST(FullLayers, NothingWaitsForTheHostWhereAllIsThere) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const Ran want = RunSteps(CpuOptions(model));
    for (const char* policy : {"resident", "static", "lru", "simple", "hub"}) {
      SCOPED_TRACE(absl::StrCat(model, ", ", policy));
      cli::EngineOptions options = CudaOptions(model, policy, 1.0);
      const Ran got = RunSteps(options);
      ExpectSame(want, got);
      const std::size_t layers = MoeLayers(got);
      ASSERT_GE(got.waits.size(), std::max<std::size_t>(layers, 1));
      // Every layer of every step, and not once did the host wait before the last step's last.
      EXPECT_EQ(got.waits.size(), want.heard.layers.size());
      EXPECT_EQ(got.waits.back(), got.waits_before);
      EXPECT_EQ(got.waits[got.waits.size() - layers], got.waits_before);
      std::uint64_t used = 0;
      for (const std::vector<std::int32_t>& experts : got.heard.experts) {
        used += std::set<std::int32_t>(experts.begin(), experts.end()).size();
      }
      EXPECT_EQ(got.totals.served_hit + got.totals.served_fetch + got.totals.served_host, used);
      EXPECT_EQ(got.totals.tiers[base::Tier::kDevice].hits + got.totals.tiers[base::Tier::kDevice].misses,
                used);
    }
  }
}

// Experts come and go while layers with all of theirs run.
TEST(FullLayers, SomeLayersAreFullAndSomeAreNot) {
  for (const char* model : {"mixtral"}) {
    const Ran want = RunSteps(CpuOptions(model));
    const std::size_t all = want.heard.layers.size();
    std::size_t mixed = 0;
    for (const char* policy : {"static", "lru", "simple", "hub"}) {
      for (const double share : {0.6, 0.9}) {
        for (const bool exclusive : {false, true}) {
          for (const char* host_lane : {"off", "on"}) {
            SCOPED_TRACE(absl::StrCat(model, ", ", policy, " ", share, exclusive ? ", exclusive" : "",
                                      ", lane ", host_lane));
            cli::EngineOptions options = CudaOptions(model, policy, share);
            options.tiers = exclusive ? "exclusive" : "inclusive";
            options.host_lane = host_lane;
            const Ran got = RunSteps(options);
            ExpectSame(want, got);
            mixed += !got.waits.empty() && got.waits.size() < all ? 1 : 0;
          }
        }
      }
    }
    EXPECT_GT(mixed, 0U) << model;
  }
}

// Stretches between decisions run as they were captured, in steps of any size and with layers that come and
// go.
TEST(FullLayers, GraphsChangeNothing) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const Ran want = RunSteps(CpuOptions(model));
    for (const char* policy : {"resident", "static", "lru", "simple", "hub"}) {
      for (const double share : {0.6, 0.9, 1.0}) {
        if (share < 1.0 && (policy == std::string("resident") || model != std::string("mixtral"))) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat(model, ", ", policy, " ", share));
        cli::EngineOptions options = CudaOptions(model, policy, share);
        options.cuda_graphs = "on";
        const std::size_t before = testing::FakeCudaGraphsRun();
        const Ran got = RunSteps(options);
        ExpectSame(want, got);
        const std::size_t graphs = testing::FakeCudaGraphsRun() - before;
        EXPECT_GT(graphs, 0U);
        if (share == 1.0) {  // three layers are one stretch, captured when it comes for the third time
          EXPECT_EQ(graphs, static_cast<std::size_t>(kSteps) - 2);
        }
      }
    }
  }
}

// The same with the operations of a card, whose launches are kept and run again.
TEST(FullLayers, GraphsOfLaunchesChangeNothing) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const Ran want = RunSteps(CpuOptions(model));
    for (const double share : {0.7, 1.0}) {
      SCOPED_TRACE(absl::StrCat(model, ", ", share));
      cli::EngineOptions options = CudaOptions(model, "hub", share);
      options.device_kernels = nullptr;
      options.make_device = [] { return device::MakeCudaDevice(testing::FakeCudaPluginWithKernels(), {}); };
      options.cuda_graphs = "on";
      const std::size_t before = testing::FakeCudaGraphsRun();
      ExpectSame(want, RunSteps(options));
      EXPECT_GT(testing::FakeCudaGraphsRun(), before);
    }
  }
}

}  // namespace
}  // namespace comoe
