// What passes between an engine and its director besides the routing: prompts that wait, what a step took by
// stage, what decisions cost; and the hub's look-ahead, cut where it is dear.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offload_run.h"
#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/forwarding_director.h"
#include "scheduler/routing/lookahead_budget.h"
#include "scheduler/routing/policy.h"

namespace comoe {
namespace {

// Enough for several cuts, although the hub looks ahead in few of them.
constexpr std::int64_t kSteps =
    16 * routing::LookaheadBudget::kPatience * routing::LookaheadBudget::kWindowSteps;

cli::EngineOptions Options(const std::string& policy) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  cli::EngineOptions options;
  options.model = absl::StrCat(root != nullptr ? root : ".", "/models/moe-32x4-demo");
  options.device = "emulated";
  options.policy = policy;
  options.threads = 1;
  options.quiet = true;
  options.max_sequences = 2;
  options.max_batch_tokens = 16;
  options.expert_cache_fraction = 0.25;
  return options;
}

// An expert on the device takes 1 ms, its copy 4 ms, any other kernel `dense`.
cli::EngineOptions WithDenseKernels(double dense) {
  cli::EngineOptions options = Options("hub");
  auto rates = std::make_shared<device::EmulatedRates>();
  rates->link_latency_seconds = 4e-3;
  rates->link_bytes_per_second = 1e15;
  rates->device_launch_seconds = 0.0;
  rates->device_seconds_per_expert = 1e-3;
  rates->dense_seconds_per_kernel = dense;
  options.rates = rates;
  return options;
}

struct Heard {
  std::vector<std::vector<base::TokenId>> hints;
  std::vector<api::StepTimes> times;
  std::vector<std::int32_t> look_ahead;  // after each step
};

class Listener final : public routing::ForwardingDirector {
 public:
  Listener(std::unique_ptr<api::ExpertDirector> inner, Heard* heard)
      : ForwardingDirector(std::move(inner)), heard_(*heard) {}
  void HintPrompt(absl::Span<const base::TokenId> tokens) override {
    heard_.hints.emplace_back(tokens.begin(), tokens.end());
    ForwardingDirector::HintPrompt(tokens);
  }
  void ObserveStepTime(const api::StepTimes& times) override {
    ForwardingDirector::ObserveStepTime(times);
    heard_.times.push_back(times);
    heard_.look_ahead.push_back(lookahead());
  }

 private:
  Heard& heard_;
};

std::unique_ptr<cli::EngineBundle> Load(cli::EngineOptions options, Heard* heard) {
  options.wrap_director = [heard](std::unique_ptr<api::ExpertDirector> inner) {
    return std::make_unique<Listener>(std::move(inner), heard);
  };
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  return bundle.ok() ? *std::move(bundle) : nullptr;
}

std::vector<std::vector<base::TokenId>> Texts() {
  std::vector<std::vector<base::TokenId>> texts(4);
  for (std::size_t s = 0; s < texts.size(); ++s) {
    for (std::uint64_t i = 0; i < 64; ++i) {
      texts[s].push_back(static_cast<base::TokenId>(base::RandomBits(s + 3, i) % 1000));
    }
  }
  return texts;
}

cli::OffloadRun RunSteps(api::Engine& engine, std::int64_t steps) {
  cli::OffloadRunOptions options;
  options.warmup_steps = 0;
  options.steps = steps;
  options.prompt = 8;
  const absl::StatusOr<cli::OffloadRun> run =
      cli::RunOffload(engine, Texts(), options, [](std::uint64_t, std::uint64_t) {});
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *run : cli::OffloadRun();
}

TEST(DirectorCallsTest, HintsReachTheDirector) {
  for (const char* policy : {"hub", "simple", "naive"}) {
    Heard heard;
    const auto bundle = Load(Options(policy), &heard);
    ASSERT_NE(bundle, nullptr);
    bundle->engine().HintPrompt(std::vector<base::TokenId>{5, 6, 7});
    ASSERT_EQ(heard.hints.size(), 1U) << policy;
    EXPECT_EQ(heard.hints[0], (std::vector<base::TokenId>{5, 6, 7}));
    RunSteps(bundle->engine(), 3);
  }
}

TEST(DirectorCallsTest, StagesSumToComputeAndDecisionsAreTimed) {
  for (const char* clock : {"virtual", "real"}) {
    Heard heard;
    cli::EngineOptions options = Options("hub");
    options.emulated_clock = clock;
    const auto bundle = Load(options, &heard);
    ASSERT_NE(bundle, nullptr);
    RunSteps(bundle->engine(), 20);
    const api::OffloadTotals totals = bundle->engine().offload_totals();
    EXPECT_NEAR(totals.compute_stages.Sum(), totals.compute, 1e-9 + 1e-6 * totals.compute) << clock;
    for (const base::StageKind stage :
         {base::StageKind::kEmbed, base::StageKind::kAttention, base::StageKind::kGate,
          base::StageKind::kLookahead, base::StageKind::kExpert, base::StageKind::kCombine,
          base::StageKind::kHead}) {
      EXPECT_GT(totals.compute_stages[stage], 0.0) << clock << ": " << base::StageKindName(stage);
    }
    double ahead = 0.0;
    double stall = 0.0;
    for (const api::StepTimes& times : heard.times) {
      EXPECT_GE(times.step, times.stall);
      ahead += times.look_ahead;
      stall += times.stall;
    }
    EXPECT_NEAR(ahead, totals.compute_stages[base::StageKind::kLookahead], 1e-9);
    EXPECT_NEAR(stall, totals.stalled.Sum(), 1e-9);
    EXPECT_GT(totals.director_observe, 0.0);
    EXPECT_GT(totals.director_plan, 0.0);
  }
}

TEST(DirectorCallsTest, LookAheadIsCutWhereItIsDear) {
  for (const bool dear : {false, true}) {
    Heard heard;
    const auto bundle = Load(WithDenseKernels(dear ? 5e-4 : 1e-6), &heard);
    ASSERT_NE(bundle, nullptr);
    const cli::OffloadRun run = RunSteps(bundle->engine(), kSteps);
    const double share = run.totals.compute_stages[base::StageKind::kLookahead] / run.totals.wall;
    ASSERT_FALSE(heard.look_ahead.empty());
    EXPECT_EQ(heard.look_ahead.front(), 2);
    if (dear) {
      EXPECT_EQ(heard.look_ahead.back(), 0) << "a share of " << share << " while it lasted";
      EXPECT_EQ(heard.times.back().look_ahead, 0.0);
    } else {
      EXPECT_LT(share, 0.02);
      EXPECT_EQ(heard.look_ahead.back(), 2);
    }
  }
}

TEST(DirectorCallsTest, TheLimitIsASetting) {
  Heard heard;
  cli::EngineOptions options = WithDenseKernels(5e-4);
  options.hub_set = "look_ahead_limit=1";
  const auto bundle = Load(options, &heard);
  ASSERT_NE(bundle, nullptr);
  RunSteps(bundle->engine(), kSteps);
  EXPECT_EQ(heard.look_ahead.back(), 2);
}

}  // namespace
}  // namespace comoe
