// The virtual clock of replay, the oracle, and the studies, on traces small enough to reckon by hand.
#include "scheduler/routing/timed_replay.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/expert_classifier.h"
#include "scheduler/routing/oracle.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/study_director.h"
#include "scheduler/routing/trace_predictors.h"
#include "scheduler/routing/trace_stats.h"

namespace comoe::routing {
namespace {

// Each row is (experts of layer 0, experts of layer 1); k = 1, one sequence.
Trace TraceOf(std::int32_t num_experts, const std::vector<std::vector<std::uint16_t>>& rows) {
  Trace trace;
  trace.header.vocab_size = 1000;
  trace.header.num_layers = 2;
  trace.header.moe_layers = {0, 1};
  trace.header.num_experts = num_experts;
  trace.header.experts_per_token = 1;
  TraceSequence& sequence = trace.sequences.emplace_back();
  for (const std::vector<std::uint16_t>& row : rows) {
    sequence.tokens.push_back(static_cast<base::TokenId>(sequence.tokens.size()));
    sequence.experts.insert(sequence.experts.end(), row.begin(), row.end());
  }
  return trace;
}

TimedTotals RunNamed(const Trace& trace, std::int32_t slots, const ReplayRates& rates,
                     const std::string& policy) {
  const TierShape shape = trace.Shape(slots);
  const auto steps = LockstepRows(trace, {0}, 1, 1000);
  PolicyOptions options;
  options.host_lane = rates.host_seconds > 0.0;
  absl::StatusOr<Policy> made = MakePolicy(policy, shape, options);
  EXPECT_TRUE(made.ok()) << made.status();
  const absl::StatusOr<TimedTotals> totals =
      RunTimed(trace, shape, rates, RecordedLookahead(trace), steps, made->director.get());
  EXPECT_TRUE(totals.ok()) << totals.status();
  return totals.value_or(TimedTotals{});
}

constexpr ReplayRates kRates{.copy_seconds = 4.0, .device_seconds = 1.0, .dense_seconds = 0.5};

TEST(TimedReplayTest, NaiveWaitsForEveryCopy) {
  const Trace trace = TraceOf(4, {{0, 1}, {0, 1}, {2, 3}});
  const TimedTotals totals = RunNamed(trace, 2, kRates, "naive");
  EXPECT_DOUBLE_EQ(totals.seconds, 6 * (0.5 + 4.0 + 1.0));
  EXPECT_DOUBLE_EQ(totals.stall_seconds, 6 * 4.0);
  EXPECT_EQ(totals.fetched, 6);
  EXPECT_EQ(totals.hits, 0);
}

TEST(TimedReplayTest, AHitCostsNoCopy) {
  const Trace trace = TraceOf(4, {{0, 1}, {0, 1}, {2, 3}});
  const TimedTotals totals = RunNamed(trace, 7, kRates, "lru");
  EXPECT_EQ(totals.hits, 2);
  EXPECT_DOUBLE_EQ(totals.seconds, 4 * (0.5 + 4.0 + 1.0) + 2 * (0.5 + 1.0));
}

TEST(TimedReplayTest, WhereAllFitNothingIsCopied) {
  const Trace trace = TraceOf(4, {{0, 1}, {0, 1}, {2, 3}});
  for (const char* policy : {"lru", "simple", "hub"}) {
    const TimedTotals totals = RunNamed(trace, 8, kRates, policy);
    EXPECT_EQ(totals.hits, 6) << policy;
    EXPECT_DOUBLE_EQ(totals.seconds, 6 * (0.5 + 1.0)) << policy;
  }
}

TEST(TimedReplayTest, TheHostLaneWorksMeanwhile) {
  const Trace trace = TraceOf(4, {{0, 1}, {2, 3}});
  ReplayRates rates = kRates;
  rates.host_seconds = 2.0;  // sooner than a copy
  const TimedTotals totals = RunNamed(trace, 2, rates, "lru");
  EXPECT_EQ(totals.host, 4);
  EXPECT_DOUBLE_EQ(totals.seconds, 4 * (0.5 + 2.0));
}

TEST(TimedReplayTest, ARightGuessOverlapsAndAWrongOneIsInTheWay) {
  const Trace trace = TraceOf(4, {{0, 1}, {2, 3}});
  const TierShape shape = trace.Shape(4);
  const auto steps = LockstepRows(trace, {0}, 1, 1000);
  const auto run = [&](double accuracy) {
    const auto director = MakeStudyDirector(shape, {}, ForcedGuesses(trace, steps, accuracy, 1));
    const absl::StatusOr<TimedTotals> totals = RunTimed(trace, shape, kRates, {}, steps, director.get());
    EXPECT_TRUE(totals.ok()) << totals.status();
    return *totals;
  };
  const TimedTotals right = run(1.0);
  EXPECT_EQ(right.hits, 4);
  EXPECT_EQ(right.guesses_used, 4);
  EXPECT_EQ(right.guesses_wasted, 0);
  // The first layer is guessed when the step begins, the second when the first has its routing: two copies,
  // one behind the other, and the second expert.
  EXPECT_DOUBLE_EQ(right.seconds, 2 * (4.0 + 4.0 + 1.0));
  const TimedTotals wrong = run(0.0);
  EXPECT_EQ(wrong.guesses_used, 0);
  EXPECT_GT(wrong.seconds, RunNamed(trace, 4, kRates, "lru").seconds);
}

TEST(OracleTest, BeladyByHand) {
  // Layer 0 alone matters: layer 1 always uses the same expert.
  const Trace trace = TraceOf(4, {{0, 0}, {1, 0}, {2, 0}, {0, 0}, {1, 0}, {2, 0}, {0, 0}});
  const AccessLog log(trace, LockstepRows(trace, {0}, 1, 1000));
  EXPECT_EQ(log.num_accesses(), 14);
  // One slot a layer: layer 1 hits 6 of 7. Layer 0 keeps 0 and lets 1 and 2 pass by: 2 of 7.
  EXPECT_DOUBLE_EQ(OptimalHitRates(log, 2).optimal_per_layer, 8.0 / 14);
  EXPECT_DOUBLE_EQ(OptimalHitRates(log, 2).optimal_pooled, 8.0 / 14);
  // Everything fits: only the first uses miss.
  EXPECT_DOUBLE_EQ(OptimalHitRates(log, 8).optimal_per_layer, 10.0 / 14);
  EXPECT_DOUBLE_EQ(DecayedHitRate(log, 8, 0.97, true), 10.0 / 14);
  EXPECT_DOUBLE_EQ(DecayedHitRate(log, 8, 0.97, false), 10.0 / 14);
}

// A trace with some order in it, several sequences.
Trace RandomTrace(std::uint64_t seed) {
  Trace trace;
  trace.header.vocab_size = 50;
  trace.header.num_layers = 3;
  trace.header.moe_layers = {0, 1, 2};
  trace.header.num_experts = 16;
  trace.header.experts_per_token = 2;
  std::uint64_t n = 0;
  for (int s = 0; s < 8; ++s) {
    TraceSequence& sequence = trace.sequences.emplace_back();
    for (int t = 0; t < 200; ++t) {
      const auto token = static_cast<base::TokenId>(base::RandomBits(seed, n++) % 50);
      sequence.tokens.push_back(token);
      for (int layer = 0; layer < 3; ++layer) {
        // The token decides most of the time.
        const std::uint64_t draw = base::RandomBits(seed, n++);
        const std::uint64_t from = draw % 10 < 7 ? static_cast<std::uint64_t>(token * 7 + layer) : draw >> 8;
        sequence.experts.push_back(static_cast<std::uint16_t>(from % 16));
        sequence.experts.push_back(static_cast<std::uint16_t>((from + 1 + (from / 16) % 15) % 16));
      }
    }
  }
  return trace;
}

TEST(OracleTest, NothingIsFasterOrHitsMoreOften) {
  const Trace trace = RandomTrace(3);
  for (const std::int32_t batch : {1, 4}) {
    const auto steps = LockstepRows(trace, {0, 1, 2, 3, 4, 5, 6, 7}, batch, 400);
    const auto log = std::make_shared<AccessLog>(trace, steps);
    for (const std::int32_t slots : {6, 12, 24}) {
      const TierShape shape = trace.Shape(slots);
      const OfflineRates optimal = OptimalHitRates(*log, slots);
      double best = 0.0;
      for (const OracleKind kind : {OracleKind::kFrugal, OracleKind::kEager}) {
        const auto oracle = MakeOracleDirector(shape, log, kind, false);
        const absl::StatusOr<TimedTotals> totals = RunTimed(trace, shape, kRates, {}, steps, oracle.get());
        ASSERT_TRUE(totals.ok()) << totals.status();
        best = best == 0.0 ? totals->seconds : std::min(best, totals->seconds);
        if (kind == OracleKind::kFrugal) {
          // Not quite Belady's misses: no slot may be given away whose expert the layer at hand needs, so now
          // and then something passes through that should have stayed.
          const double fewest = (1.0 - optimal.optimal_pooled) * static_cast<double>(totals->lookups);
          EXPECT_GE(static_cast<double>(totals->copied()), fewest - 0.5);
          EXPECT_LE(static_cast<double>(totals->copied()), 1.13 * fewest);
        }
      }
      EXPECT_GE(optimal.optimal_pooled, DecayedHitRate(*log, slots, 0.97, false));
      EXPECT_GE(optimal.optimal_per_layer, DecayedHitRate(*log, slots, 0.97, true));
      for (const char* name : {"naive", "lru", "simple"}) {
        absl::StatusOr<Policy> policy = MakePolicy(name, shape, {});
        ASSERT_TRUE(policy.ok());
        const absl::StatusOr<TimedTotals> totals =
            RunTimed(trace, shape, kRates, {}, steps, policy->director.get());
        ASSERT_TRUE(totals.ok()) << totals.status();
        EXPECT_LE(best, totals->seconds) << name << " " << slots;
        if (std::string(name) != "simple") {  // without guesses
          EXPECT_LE(totals->hit_rate(), optimal.optimal_pooled) << name << " " << slots;
        }
      }
    }
  }
}

TEST(PredictorsTest, EachIsJudgedAndTheTokenHelps) {
  const Trace trace = RandomTrace(4);
  const auto history = LockstepRows(trace, {0, 1, 2, 3}, 1, 10000);
  const auto judged = LockstepRows(trace, {4, 5, 6, 7}, 1, 10000);
  const JudgeOptions options{{2, 16}, 2, {}};
  double window = 0.0;
  double token = 0.0;
  for (const absl::string_view name : TracePredictorNames()) {
    const auto predictor = MakeTracePredictor(name, trace.Shape(0));
    ASSERT_TRUE(predictor.ok()) << predictor.status();
    const std::vector<ForecastQuality> rows =
        JudgePredictor(trace, history, judged, options, predictor->get());
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].rows, 800 * 2);
    EXPECT_EQ(rows[1].rows, 800);
    window = name == "window" ? rows[0].recall[0] : window;
    token = name == "token" ? rows[0].recall[0] : token;
  }
  EXPECT_GT(token, window + 0.2);
  EXPECT_EQ(MakeTracePredictor("gut feeling", trace.Shape(0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ClassifierTest, LearnsAndComesBackFromItsFile) {
  const Trace trace = RandomTrace(5);
  const auto history = LockstepRows(trace, {0, 1, 2, 3}, 1, 10000);
  const auto judged = LockstepRows(trace, {4, 5, 6, 7}, 1, 10000);
  const auto fitted = ExpertClassifier::Fit(trace, history, {}, {});
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  const std::string bytes = (*fitted)->Encode();
  const TierShape shape = trace.Shape(0);
  const auto read = ExpertClassifier::Parse(bytes, "a file", shape);
  ASSERT_TRUE(read.ok()) << read.status();
  const JudgeOptions options{{2}, 1, {}};
  const auto again = JudgePredictor(trace, {}, judged, options, read->get());
  EXPECT_GT(again[0].recall[0], 0.55);  // the token decides 7 of 10, and the rest is chance

  std::string damaged = bytes;
  damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
  EXPECT_EQ(ExpertClassifier::Parse(damaged, "a file", shape).status().code(), absl::StatusCode::kDataLoss);
  for (std::size_t size = 0; size < bytes.size(); size += 97) {
    EXPECT_FALSE(ExpertClassifier::Parse(bytes.substr(0, size), "a file", shape).ok());
  }
  TierShape other = shape;
  other.num_experts = 17;
  EXPECT_EQ(ExpertClassifier::Parse(bytes, "a file", other).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ForcedLookaheadTest, RecallIsTheAccuracy) {
  const Trace trace = RandomTrace(6);
  const auto steps = LockstepRows(trace, {0, 1, 2, 3, 4, 5, 6, 7}, 1, 10000);
  for (const double accuracy : {0.5, 0.8, 1.0}) {
    const LookaheadSource source = ForcedLookahead(trace, accuracy, 9);
    QualityMeter meter("forced", 1, {2});
    std::vector<float> logits(16);
    for (const std::vector<ReplayRow>& rows : steps) {
      ASSERT_TRUE(source(rows, 1, 1, absl::MakeSpan(logits)));
      std::vector<std::uint16_t> named;
      for (std::uint16_t e = 0; e < 16; ++e) {
        if (logits[e] > 1.0F) {
          named.push_back(e);
        }
      }
      EXPECT_EQ(named.size(), 2U);
      meter.Add(named, trace.Experts(rows[0].sequence, rows[0].token, 1));
    }
    EXPECT_NEAR(meter.Result().recall[0], accuracy, 0.03);
  }
}

TEST(RoutingShapeTest, CountsByHand) {
  Trace trace = TraceOf(10, {{0, 1}, {0, 2}, {0, 3}, {1, 4}});
  trace.sequences.push_back(trace.sequences.front());
  const RoutingShape shape = DescribeRouting(trace, {2}, {1, 2, 4});
  EXPECT_DOUBLE_EQ(shape.layers[0].hottest_share, 0.75);  // a tenth of ten is one
  EXPECT_DOUBLE_EQ(shape.layers[1].hottest_share, 0.25);
  EXPECT_DOUBLE_EQ(shape.layers[1].entropy_bits, 2.0);
  ASSERT_EQ(shape.distinct.size(), 2U);              // not four sequences
  EXPECT_DOUBLE_EQ(shape.distinct[1].experts, 1.0);  // the same text twice
  ASSERT_EQ(shape.drift.size(), 1U);
  EXPECT_DOUBLE_EQ(shape.drift[0].other_text, 1.0);
}

}  // namespace
}  // namespace comoe::routing
