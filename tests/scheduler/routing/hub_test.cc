#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "engine/base/rng.h"
#include "engine/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/hub_state.h"
#include "scheduler/routing/hub_worker.h"
#include "scheduler/routing/mix_predictor.h"
#include "scheduler/routing/parameters.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/prefetch_judge.h"
#include "scheduler/routing/replay.h"

namespace comoe::routing {
namespace {

constexpr std::int32_t kLayers = 4;
constexpr std::int32_t kExperts = 16;

TierShape Shape(std::int32_t device_slots) {
  TierShape shape;
  shape.num_layers = kLayers;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    shape.moe_layers.push_back(layer);
  }
  shape.num_experts = kExperts;
  shape.experts_per_token = 2;
  shape.device_slots = device_slots;
  return shape;
}

// Experts that follow from the token: every predictor that knows tokens can know them.
std::vector<std::int32_t> ExpertsOf(base::TokenId token, std::int32_t layer) {
  const auto bits = base::RandomBits(static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(layer));
  const auto first = static_cast<std::int32_t>(bits % kExperts);
  return {first, (first + 1 + static_cast<std::int32_t>((bits >> 8) % (kExperts - 1))) % kExperts};
}

TraceStep StepOf(std::uint64_t n, const std::vector<base::TokenId>& tokens) {
  TraceStep step;
  step.plan.step.value = n;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    api::PlanSpan span;
    span.sequence.value = i;
    span.start_position = static_cast<std::int64_t>(n) + 1;
    span.tokens = {tokens[i]};
    step.plan.spans.push_back(span);
  }
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (const base::TokenId token : tokens) {
      const std::vector<std::int32_t> experts = ExpertsOf(token, layer);
      step.experts.insert(step.experts.end(), experts.begin(), experts.end());
    }
  }
  return step;
}

std::vector<base::TokenId> Tokens(std::uint64_t n, std::int32_t batch) {
  std::vector<base::TokenId> tokens;
  for (std::int32_t i = 0; i < batch; ++i) {
    tokens.push_back(static_cast<base::TokenId>(base::RandomBits(n, static_cast<std::uint64_t>(i)) % 40));
  }
  return tokens;
}

// --- parameters ---

TEST(HubParametersTest, EveryOneIsCompleteAndInRange) {
  EXPECT_GE(HubParameterTable().size(), 18U);
  for (const ParameterInfo& info : HubParameterTable()) {
    EXPECT_EQ(FindHubParameter(info.name), &info);
    for (const char* text : {info.meaning, info.raising, info.lowering, info.metric}) {
      EXPECT_FALSE(std::string(text).empty()) << info.name;
    }
    EXPECT_TRUE(absl::StrContains(HubParameterDocumentation(), info.name));
  }
  EXPECT_TRUE(CheckHubParameters(ConservativeParameters()).ok());
  EXPECT_TRUE(CheckHubParameters(ModeParameters(HubMode::kLatency)).ok());
  EXPECT_TRUE(CheckHubParameters(ModeParameters(HubMode::kThroughput)).ok());
  EXPECT_TRUE(CheckHubParameters(HubParameters{}).ok());
}

TEST(HubParametersTest, AreSetByNameWithinTheirRange) {
  HubParameters parameters;
  EXPECT_TRUE(SetHubParameters("decay=0.9, look_ahead=3", &parameters).ok());
  EXPECT_EQ(parameters.decay, 0.9);
  EXPECT_EQ(*GetHubParameter("look_ahead", parameters), 3.0);
  const HubParameters before = parameters;
  for (const char* bad : {"decay=2", "look_ahead=1.5", "decay=nan", "decay", "decay=0.8,window=x"}) {
    EXPECT_EQ(SetHubParameters(bad, &parameters).code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(parameters.decay, before.decay) << bad;
  }
  const absl::Status unknown = SetHubParameters("wndow=3", &parameters);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(unknown.message(), "window"));
  EXPECT_FALSE(GetHubParameter("wndow", parameters).ok());
  EXPECT_EQ(*ParseHubMode("throughput"), HubMode::kThroughput);
  EXPECT_FALSE(ParseHubMode("fast").ok());

  PolicyOptions options;
  options.hub.decay = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(MakePolicy("hub", Shape(8), options).status().code(), absl::StatusCode::kInvalidArgument);
}

// --- predictors ---

TEST(MixPredictorTest, TheSameObservationsGiveTheSameForecasts) {
  const TierShape shape = Shape(8);
  std::vector<MixPredictor> mixes;
  mixes.reserve(2);
  mixes.emplace_back(shape, MixOptions{});
  mixes.emplace_back(shape, MixOptions{});
  std::vector<std::vector<float>> forecasts(2);
  for (std::size_t m = 0; m < 2; ++m) {
    std::vector<float> p(3 * kExperts);
    for (std::uint64_t n = 0; n < 200; ++n) {
      const TraceStep step = StepOf(n, Tokens(n, 3));
      mixes[m].BeginStep(Tokens(n, 3));
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        mixes[m].Forecast(layer, absl::MakeSpan(p));
        forecasts[m].insert(forecasts[m].end(), p.begin(), p.end());
        mixes[m].Observe(layer,
                         absl::MakeConstSpan(step.experts).subspan(static_cast<std::size_t>(layer) * 6, 6));
      }
    }
  }
  EXPECT_EQ(forecasts[0], forecasts[1]);
  // By now it knows what each token needs.
  double right = 0.0;
  const std::size_t last = forecasts[0].size() - 3 * kExperts;
  const std::vector<base::TokenId> tokens = Tokens(199, 3);
  for (std::size_t t = 0; t < 3; ++t) {
    for (const std::int32_t expert : ExpertsOf(tokens[t], kLayers - 1)) {
      right += static_cast<double>(forecasts[0][last + t * kExperts + static_cast<std::size_t>(expert)]);
    }
  }
  EXPECT_GT(right / 6.0, 0.8);
}

TEST(MixPredictorTest, SurvivesScoresThatAreNoNumbers) {
  MixPredictor mix(Shape(8), MixOptions{});
  std::vector<float> logits(kExperts, std::numeric_limits<float>::quiet_NaN());
  logits[3] = std::numeric_limits<float>::infinity();
  std::vector<float> p(kExperts);
  for (int n = 0; n < 20; ++n) {
    mix.BeginStep({n % 3 == 0 ? -1 : n});
    mix.Observe(0, {1, 2});
    mix.ObserveLookahead(0, 1, logits);
    mix.Forecast(1, absl::MakeSpan(p));
    EXPECT_TRUE(std::all_of(p.begin(), p.end(), [](float x) { return x >= 0.0F && x <= 1.0F; }));
    mix.Observe(1, {3, 4});
  }
}

// --- what is kept of an earlier run ---

TEST(HubStateTest, WarmsAnotherHubAndIsRefusedByAnotherModel) {
  const TierShape shape = Shape(20);
  HubDirector first(shape, PolicyOptions{});
  Replayer replayer(shape, ReplayOptions{}, &first);
  for (std::uint64_t n = 0; n < 300; ++n) {
    ASSERT_TRUE(replayer.Step(StepOf(n, Tokens(n, 2))).ok());
  }
  const std::vector<std::uint8_t> bytes = first.SaveState(77);
  EXPECT_FALSE(first.report().warm);

  HubDirector second(shape, PolicyOptions{});
  ASSERT_TRUE(second.LoadState(77, bytes).ok());
  EXPECT_TRUE(second.report().warm);
  EXPECT_EQ(second.InitialOrders().size(), 20U);
  EXPECT_EQ(second.SaveState(77), bytes) << "what was loaded is saved again";
  Replayer warm(shape, ReplayOptions{}, &second);
  HubDirector cold_hub(shape, PolicyOptions{});
  Replayer cold(shape, ReplayOptions{}, &cold_hub);
  for (std::uint64_t n = 300; n < 310; ++n) {
    ASSERT_TRUE(warm.Step(StepOf(n, Tokens(n, 2))).ok());
    ASSERT_TRUE(cold.Step(StepOf(n, Tokens(n, 2))).ok());
  }
  EXPECT_GT(warm.totals().hit_rate(), cold.totals().hit_rate());

  HubDirector third(shape, PolicyOptions{});
  EXPECT_EQ(third.LoadState(78, bytes).code(), absl::StatusCode::kFailedPrecondition);
  TierShape wider = shape;
  wider.num_experts = 32;
  HubDirector other(wider, PolicyOptions{});
  EXPECT_EQ(other.LoadState(77, bytes).code(), absl::StatusCode::kFailedPrecondition);
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, bytes.size() - 1}) {
    EXPECT_FALSE(third.LoadState(77, absl::MakeConstSpan(bytes).first(size)).ok()) << size;
  }
  for (std::size_t at = 64; at < bytes.size(); at += bytes.size() / 23) {
    std::vector<std::uint8_t> changed = bytes;
    changed[at] = static_cast<std::uint8_t>(changed[at] ^ 1);
    EXPECT_EQ(third.LoadState(77, changed).code(), absl::StatusCode::kDataLoss) << at;
  }
  EXPECT_FALSE(third.report().warm);
}

// --- prefetch ---

TEST(PrefetchJudgeTest, StopsWhereItDoesNotPayAndProbes) {
  PrefetchJudge judge(0.05);
  std::int64_t allowed = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const std::int32_t n = judge.Allowed(1, 4);
    allowed += n;
    for (std::int32_t i = 0; i < n; ++i) {
      judge.Outcome(1, i % 2 == 0, i % 2 == 0 ? 1.0 : 0.0, 1.0);
    }
  }
  EXPECT_FALSE(judge.on(1));
  EXPECT_LT(allowed, 200);
  EXPECT_TRUE(judge.on(2)) << "distances are judged apart";
  for (int turn = 0; turn < 60000 && !judge.on(1); ++turn) {
    if (judge.Allowed(1, 4) > 0) {
      judge.Outcome(1, true, 2.0, 0.1);
    }
  }
  EXPECT_TRUE(judge.on(1)) << "it pays again";
}

TEST(HubDirectorTest, AHintedPromptRisesBeforeItRuns) {
  TierShape shape = Shape(8);
  shape.pinned_holds_all = false;
  shape.pinned_slots = 24;
  HubDirector hub(shape, PolicyOptions{});
  ReplayOptions options;
  options.lanes.link_seconds_per_expert = 1.0;
  options.lanes.device_seconds_per_expert = 0.2;
  Replayer replayer(shape, options, &hub);
  for (std::uint64_t n = 0; n < 200; ++n) {  // all tokens are seen
    ASSERT_TRUE(replayer.Step(StepOf(n, Tokens(n, 2))).ok());
  }
  for (std::uint64_t n = 200; n < 260; ++n) {  // one text keeps the hub busy
    ASSERT_TRUE(replayer.Step(StepOf(n, {1, 2})).ok());
  }
  const std::int64_t promoted = replayer.totals().promoted;
  hub.HintPrompt(std::vector<base::TokenId>{30, 31, 32, 33, 34, 35});
  ASSERT_TRUE(replayer.Step(StepOf(260, {1, 2})).ok());
  EXPECT_GT(replayer.totals().promoted, promoted);
}

// --- the predictor's thread ---

// Takes as long as the test wants: until it is let go.
class StuckPredictor final : public RowPredictor {
 public:
  absl::string_view name() const override { return "stuck"; }
  void BeginStep(absl::Span<const base::TokenId> /*tokens*/) override {}
  void Observe(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) override {}
  void Forecast(std::int32_t /*target*/, absl::Span<float> probabilities) override {
    const base::MutexLock lock(&mutex_);
    while (!free_) {
      changed_.Wait(&mutex_);
    }
    std::fill(probabilities.begin(), probabilities.end(), 0.25F);
  }
  void LetGo() {
    const base::MutexLock lock(&mutex_);
    free_ = true;
    changed_.SignalAll();
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  bool free_ ABSL_GUARDED_BY(mutex_) = false;
};

PolicyOptions OnItsOwnThread() {
  PolicyOptions options;
  options.hub.predictor_thread = 1;
  return options;
}

TEST(HubWorkerTest, AStuckPredictorHoldsNothingUp) {
  auto predictor = std::make_unique<StuckPredictor>();
  StuckPredictor* stuck = predictor.get();
  const TierShape shape = Shape(20);
  HubDirector hub(shape, OnItsOwnThread(), std::move(predictor));
  ReplayOptions options;
  options.lanes.link_seconds_per_expert = 1.0;
  Replayer replayer(shape, options, &hub);
  for (std::uint64_t n = 0; n < 100; ++n) {
    ASSERT_TRUE(replayer.Step(StepOf(n, Tokens(n, 2))).ok());
  }
  EXPECT_GT(hub.report().late_forecasts, 100U);
  EXPECT_GT(hub.report().dropped_observations, 0U) << "its mailbox is of fixed size";
  stuck->LetGo();
}

// Every forecast takes 10 ms.
class SlowPredictor final : public RowPredictor {
 public:
  absl::string_view name() const override { return "slow"; }
  void BeginStep(absl::Span<const base::TokenId> /*tokens*/) override {}
  void Observe(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) override {}
  void Forecast(std::int32_t /*target*/, absl::Span<float> probabilities) override {
    const base::MutexLock lock(&mutex_);
    never_.WaitWithTimeout(&mutex_, absl::Milliseconds(10));
    std::fill(probabilities.begin(), probabilities.end(), 0.25F);
  }

 private:
  base::Mutex mutex_;
  base::CondVar never_;
};

// Seconds the engine thread spends in the hub, a step of four layers.
double SecondsPerStep(HubDirector* hub, const TierShape& shape) {
  ReplayOptions options;
  options.lanes.link_seconds_per_expert = 1.0;
  Replayer replayer(shape, options, hub);
  std::vector<TraceStep> steps;
  for (std::uint64_t n = 0; n < 200; ++n) {
    steps.push_back(StepOf(n, Tokens(n, 2)));
  }
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {  // the least of them: others use the machine, too
    const auto began = std::chrono::steady_clock::now();
    for (const TraceStep& step : steps) {
      EXPECT_TRUE(replayer.Step(step).ok());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    best = std::min(best, took.count() / static_cast<double>(steps.size()));
  }
  return best;
}

TEST(HubWorkerTest, APredictorOfTenMillisecondsLengthensAStepByLessThanTwoPercent) {
  constexpr double kStepSeconds = 0.02;  // of a model of some size; a small one's would be shorter
  const TierShape shape = Shape(20);
  HubDirector fast(shape, PolicyOptions{});
  HubDirector slow(shape, OnItsOwnThread(), std::make_unique<SlowPredictor>());
  const double with_fast = SecondsPerStep(&fast, shape);
  const double with_slow = SecondsPerStep(&slow, shape);
  std::printf(
      "engine thread in the hub, a step: %.1f us; with a predictor of 10 ms on its thread %.1f us "
      "(%d late forecasts, %d observations dropped)\n",
      with_fast * 1e6, with_slow * 1e6, static_cast<int>(slow.report().late_forecasts),
      static_cast<int>(slow.report().dropped_observations));
  EXPECT_LT(with_slow - with_fast, 0.02 * kStepSeconds);
  EXPECT_GT(slow.report().late_forecasts, 0U);
}

TEST(HubWorkerTest, SavesAndRestoresThroughTheThread) {
  const TierShape shape = Shape(20);
  HubDirector hub(shape, OnItsOwnThread());
  Replayer replayer(shape, ReplayOptions{}, &hub);
  for (std::uint64_t n = 0; n < 10; ++n) {
    ASSERT_TRUE(replayer.Step(StepOf(n, Tokens(n, 2))).ok());
  }
  const std::vector<std::uint8_t> bytes = hub.SaveState(5);
  HubDirector other(shape, OnItsOwnThread());
  ASSERT_TRUE(other.LoadState(5, bytes).ok());
  EXPECT_EQ(other.SaveState(5), bytes);
}

// --- the composer's numbers ---

TEST(HubStepCostsTest, FitsALineToStepTimes) {
  HubStepCosts costs(Shape(8), 100, 16);
  EXPECT_EQ(costs.StepTime(7, 1), absl::Milliseconds(7));
  EXPECT_EQ(costs.BreakEvenChunk(), 1);
  for (int n = 0; n < 500; ++n) {
    const std::int64_t rows = n % 10 == 0 ? 64 : 4;
    costs.ObserveStep(rows, 0.010 + 0.0005 * static_cast<double>(rows));
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(costs.StepTime(32, 4)), 0.026, 0.001);
  EXPECT_NEAR(static_cast<double>(costs.BreakEvenChunk()), 20.0, 1.0);
}

TEST(HubStepCostsTest, SequencesThatAreAlikeAddLess) {
  HubStepCosts costs(Shape(8), 100, 4);
  const base::SequenceId a{1}, like_a{2}, other{3}, unknown{9};
  for (int n = 0; n < 50; ++n) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      costs.profiles().Observe(a, layer, {1, 2});
      costs.profiles().Observe(like_a, layer, {1, 2});
      costs.profiles().Observe(other, layer, {3, 4});
    }
  }
  EXPECT_NEAR(costs.AddedDemand({}, a), 2.0 * kLayers, 1e-3);
  EXPECT_NEAR(costs.AddedDemand({a}, like_a), 0.0, 1e-3);
  EXPECT_NEAR(costs.AddedDemand({a}, other), 2.0 * kLayers, 1e-3);
  EXPECT_NEAR(costs.AddedDemand({a, other}, like_a), 0.0, 1e-3);
  EXPECT_NEAR(costs.AddedDemand({other}, a), 2.0 * kLayers, 1e-3) << "not what was chosen before";
  EXPECT_NEAR(costs.AddedDemand({a, other}, unknown), 2.0 * kLayers, 1e-3);
  for (std::uint64_t id = 10; id < 20; ++id) {  // bounded: the oldest make room
    costs.profiles().Observe(base::SequenceId{id}, 0, {5, 6});
  }
  EXPECT_NEAR(costs.AddedDemand({a}, like_a), 2.0 * kLayers, 1e-3) << "forgotten";
}

}  // namespace
}  // namespace comoe::routing
