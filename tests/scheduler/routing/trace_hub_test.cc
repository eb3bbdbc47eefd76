// The hub over the recorded routing of a trained model: eviction beside decayed counts, recall of its
// predictors, prefetch with forced accuracy. Where the trace is absent the tests are skipped.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/gate_lookahead.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/mix_predictor.h"
#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/shared_row_predictor.h"
#include "scheduler/routing/study_director.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/token_counts.h"
#include "scheduler/routing/transition_counts.h"
#include "scheduler/routing/window_predictor.h"
#include "tests/scheduler/routing/study_trace.h"

namespace comoe::routing {
namespace {

constexpr std::int64_t kStepsAtBatch1 = 3000;

class TraceHubTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { trace_ = new std::optional<Trace>(LoadStudyTrace()); }
  static void TearDownTestSuite() {
    delete trace_;
    trace_ = nullptr;
  }
  void SetUp() override {
    if (!trace_->has_value()) {
      GTEST_SKIP() << "no routing trace at ../shared/models/moe-64x2: nothing was compared";
    }
  }
  static const Trace& trace() { return **trace_; }
  static TierShape Shape(double share) { return trace().Shape(static_cast<std::int32_t>(768 * share)); }
  static std::vector<std::vector<ReplayRow>> Steps(std::int32_t batch, std::int64_t most) {
    return LockstepRows(trace(), absl::MakeConstSpan(kStudyOrder).subspan(48), batch, most);
  }
  static std::vector<TraceStep> PlainSteps(std::int32_t batch) {
    std::vector<TraceStep> steps;
    for (const std::vector<ReplayRow>& rows : Steps(batch, batch == 1 ? kStepsAtBatch1 : 1'000'000)) {
      steps.push_back(MakeTraceStep(trace(), rows, steps.size() + 1));
    }
    return steps;
  }
  static double HitRate(const TierShape& shape, const std::vector<TraceStep>& steps,
                        api::ExpertDirector* director) {
    const absl::StatusOr<ReplayTotals> totals = RunTrace(shape, steps, ReplayOptions{}, director);
    EXPECT_TRUE(totals.ok()) << totals.status();
    return totals.ok() ? totals->hit_rate() : 0.0;
  }

  static std::optional<Trace>* trace_;
};

std::optional<Trace>* TraceHubTest::trace_ = nullptr;

// One pool, worth = decayed count.
class DecayedDirector final : public PooledDirector {
 public:
  DecayedDirector(const TierShape& shape, double decay)
      : PooledDirector(shape, PolicyOptions{}), counts_(shape, decay) {}
  absl::string_view policy() const override { return "decayed"; }

 protected:
  double Value(base::ExpertKey key) const override { return counts_.StepUses(key); }
  void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    counts_.Observe(layer, experts);
  }

 private:
  DecayedCounts counts_;
};

// Decayed counts with a fixed share of slots for each layer: a pool for each layer alone.
double PerLayerHitRate(const TierShape& shape, const std::vector<TraceStep>& steps, double decay) {
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  const std::size_t num_layers = shape.moe_layers.size();
  const std::size_t capacity = static_cast<std::size_t>(shape.device_slots) / num_layers;
  std::vector<double> counts(num_layers * num_experts, 0.0);
  std::vector<std::vector<std::size_t>> kept(num_layers);
  std::vector<std::size_t> missing;
  std::int64_t hits = 0, lookups = 0;
  for (const TraceStep& step : steps) {
    const std::size_t layer_size = step.experts.size() / num_layers;
    for (std::size_t l = 0; l < num_layers; ++l) {
      std::vector<std::uint8_t> needed(num_experts, 0);
      for (std::size_t i = l * layer_size; i < (l + 1) * layer_size; ++i) {
        needed[static_cast<std::size_t>(step.experts[i])] = 1;
      }
      double* count = &counts[l * num_experts];
      missing.clear();
      for (std::size_t e = 0; e < num_experts; ++e) {
        count[e] = count[e] * decay + needed[e];
        if (needed[e] != 0) {
          const bool hit = std::find(kept[l].begin(), kept[l].end(), e) != kept[l].end();
          ++lookups;
          hits += hit ? 1 : 0;
          if (!hit) {
            missing.push_back(e);
          }
        }
      }
      std::sort(missing.begin(), missing.end(),
                [count](std::size_t a, std::size_t b) { return count[a] > count[b]; });
      for (const std::size_t e : missing) {
        if (kept[l].size() < capacity) {
          kept[l].push_back(e);
          continue;
        }
        const auto least =
            std::min_element(kept[l].begin(), kept[l].end(), [&](std::size_t a, std::size_t b) {
              return std::pair(needed[a], count[a]) < std::pair(needed[b], count[b]);
            });
        if (needed[*least] == 0 && count[*least] <= count[e]) {
          *least = e;
        }
      }
    }
  }
  return static_cast<double>(hits) / static_cast<double>(lookups);
}

struct Published {
  std::int32_t batch;
  double share;
  double optimal;  // one pool, bypass allowed
};
constexpr Published kPublished[] = {{1, .125, .694},  {1, .25, .837},  {1, .50, .945},
                                    {4, .125, .547},  {4, .25, .727},  {4, .50, .898},
                                    {16, .125, .328}, {16, .25, .575}, {16, .50, .822}};

TEST_F(TraceHubTest, EvictsNoWorseThanTheBestDecayedCount) {
  std::printf("hit rates, second half of the sequences; optimal as published for all\n");
  std::printf("batch share   layer .97  pool .96  .97   .98    hub   optimal  hub/optimal\n");
  std::vector<TraceStep> steps;
  std::int32_t batch = 0;
  for (const Published& row : kPublished) {
    if (row.batch != batch) {
      batch = row.batch;
      steps = PlainSteps(batch);
    }
    const TierShape shape = Shape(row.share);
    const double per_layer = PerLayerHitRate(shape, steps, .97);
    double pool[3] = {};
    for (int i = 0; i < 3; ++i) {
      DecayedDirector director(shape, .96 + .01 * i);
      pool[i] = HitRate(shape, steps, &director);
    }
    HubDirector hub(shape, PolicyOptions{});
    const double rate = HitRate(shape, steps, &hub);
    const double best = std::max({per_layer, pool[0], pool[1], pool[2]});
    std::printf("%5d %5.3f   %.3f      %.3f    %.3f  %.3f  %.3f   %.3f    %.2f\n", row.batch, row.share,
                per_layer, pool[0], pool[1], pool[2], rate, row.optimal, rate / row.optimal);
    EXPECT_GE(rate, best - .005);
  }
}

struct Recall {
  double k = 0.0, k2 = 0.0;
};

// Learns from the first half, then goes on learning while it is tested on the first sequences of the second.
Recall RecallOf(const Trace& trace, const LookaheadSource& scores, RowPredictor* predictor) {
  constexpr std::size_t kTested = 16;
  std::vector<float> probabilities(64);
  std::vector<float> logits(64);
  std::vector<std::int32_t> likely;
  std::int64_t found = 0, found2 = 0, all = 0;
  for (std::size_t i = 0; i < 48 + kTested; ++i) {
    const auto sequence = static_cast<std::size_t>(kStudyOrder[i]);
    for (std::int32_t token = 0; token < 512; ++token) {
      const ReplayRow row{sequence, token};
      predictor->BeginStep({trace.sequences[sequence].tokens[static_cast<std::size_t>(token)]});
      for (std::int32_t layer = 0; layer < 12; ++layer) {
        const absl::Span<const std::uint16_t> needed = trace.Experts(sequence, token, layer);
        const std::vector<std::int32_t> experts(needed.begin(), needed.end());
        if (i >= 48 && layer > 0) {
          predictor->Forecast(layer, absl::MakeSpan(probabilities));
          MostLikely(probabilities, 4, &likely);
          for (const std::int32_t expert : experts) {
            const auto at = std::find(likely.begin(), likely.end(), expert) - likely.begin();
            ++all;
            found += at < 2 ? 1 : 0;
            found2 += at < static_cast<std::ptrdiff_t>(likely.size()) ? 1 : 0;
          }
        } else if (layer > 0) {
          predictor->Forecast(layer, absl::MakeSpan(probabilities));  // the mix learns from its forecasts
        }
        predictor->Observe(layer, experts);
        if (scores && layer + 1 < 12 && scores({&row, 1}, layer + 1, 1, absl::MakeSpan(logits))) {
          predictor->ObserveLookahead(layer, layer + 1, logits);
        }
      }
    }
  }
  const auto total = static_cast<double>(all);
  return {static_cast<double>(found) / total, static_cast<double>(found2) / total};
}

TEST_F(TraceHubTest, RecallOfEachPredictorOneLayerAhead) {
  const TierShape shape = Shape(.25);
  const LookaheadSource none;
  const LookaheadSource named = RecordedLookahead(trace());
  std::printf("recall of a row's experts, one layer ahead, sets of k and 2k (published)\n");
  const auto show = [](const char* name, const Recall& recall, const char* published) {
    std::printf("%-24s %.3f / %.3f   %s\n", name, recall.k, recall.k2, published);
  };
  SharedRowPredictor global(shape, MakeGlobalFrequency(shape));
  show("global", RecallOf(trace(), none, &global), "(.084 / .151)");
  SharedRowPredictor window(shape, std::make_unique<WindowPredictor>(shape, 100));
  show("window", RecallOf(trace(), none, &window), "(.252 / .369)");
  SharedRowPredictor decayed(shape, std::make_unique<DecayedCounts>(shape));
  show("decayed", RecallOf(trace(), none, &decayed), "");
  TransitionCounts transitions(shape);
  show("transition", RecallOf(trace(), none, &transitions), "");
  TokenCounts tokens(shape, std::uint64_t{16} << 20);
  const Recall by_token = RecallOf(trace(), none, &tokens);
  show("token", by_token, "(.457 / .570)");
  GateLookahead lookahead(shape);
  const Recall by_gate = RecallOf(trace(), named, &lookahead);
  show("lookahead, order only", by_gate, "(.767 / .910)");
  MixPredictor without(shape, MixOptions{});
  const Recall mix_without = RecallOf(trace(), none, &without);
  show("mix without lookahead", mix_without, "(token + window .504 / .637)");
  MixPredictor mix(shape, MixOptions{});
  const Recall mixed = RecallOf(trace(), named, &mix);
  show("mix, order only", mixed, "");
  EXPECT_GE(by_token.k2, .57);
  EXPECT_GE(by_gate.k2, .905);
  EXPECT_GE(mix_without.k2, .637);
  // With the scores themselves it is .93; the order of the first 2k says less.
  EXPECT_GE(mixed.k2, by_gate.k2);
}

// copy = 4 device computes, a quarter on the device.
double Seconds(const Trace& trace, const TierShape& shape, const std::vector<std::vector<ReplayRow>>& steps,
               double dense_seconds, double host_seconds, const PolicyOptions& options,
               LookaheadSource scores, HubReport* report) {
  HubDirector hub(shape, options);
  ReplayRates rates;
  rates.copy_seconds = 4.0;
  rates.dense_seconds = dense_seconds;
  rates.host_seconds = host_seconds;
  rates.host_seconds_per_row = 0.5 * host_seconds;
  TimedReplayer replayer(trace, shape, rates, std::move(scores), &hub);
  for (const std::vector<ReplayRow>& rows : steps) {
    const absl::Status status = replayer.Step(rows);
    if (!status.ok()) {
      ADD_FAILURE() << status;
      break;
    }
  }
  *report = hub.report();
  return replayer.totals().seconds;
}

TEST_F(TraceHubTest, PrefetchNeverCostsMuchAndPaysWhereForecastsAreRight) {
  const TierShape shape = Shape(.25);
  std::printf("time over time without prefetch, forced accuracy of scores (1-layer arm: precision, on)\n");
  for (const HubMode mode : {HubMode::kLatency, HubMode::kThroughput}) {
    for (const std::int32_t batch : {1, 8}) {
      const auto steps = Steps(batch, batch == 1 ? 1000 : 250);
      for (const double dense : {0.1, 2.0, 6.0}) {
        PolicyOptions options;
        options.hub = ModeParameters(mode);
        PolicyOptions off = options;
        off.hub.prefetch_depth = 0;
        HubReport report;
        const double without = Seconds(trace(), shape, steps, dense, 0.0, off, {}, &report);
        std::printf("%-10s batch %d, dense %.1f:", std::string(HubModeName(mode)).c_str(), batch, dense);
        double last = 1.0;
        for (const double accuracy : {0.5, 0.6, 0.8, 1.0}) {
          const double with = Seconds(trace(), shape, steps, dense, 0.0, options,
                                      ForcedLookahead(trace(), accuracy, 7), &report);
          last = with / without;
          std::printf("  %.0f%% %.3f (%.2f%s)", 100 * accuracy, last, report.distances[1].precision,
                      report.distances[1].on ? "" : ", off");
          EXPECT_LE(last, 1.02) << accuracy;
        }
        const double recorded =
            Seconds(trace(), shape, steps, dense, 0.0, options, RecordedLookahead(trace()), &report);
        std::printf("  recorded %.3f\n", recorded / without);
        if (batch == 1 && dense >= 6.0) {
          EXPECT_LE(last, 0.90) << "an idle link and perfect forecasts";
        }
      }
    }
  }
}

TEST_F(TraceHubTest, TheHostLaneNeverMakesItSlower) {
  std::printf("time with the host lane over time without\n");
  const TierShape shape = Shape(.25);
  for (const std::int32_t batch : {1, 4, 16}) {
    const auto steps = Steps(batch, batch == 1 ? 1000 : 200);
    PolicyOptions options;
    HubReport report;
    const double without =
        Seconds(trace(), shape, steps, 1.0, 0.0, options, RecordedLookahead(trace()), &report);
    options.host_lane = true;
    for (const double host : {1.0, 3.0, 6.0, 20.0}) {
      const double with =
          Seconds(trace(), shape, steps, 1.0, host, options, RecordedLookahead(trace()), &report);
      std::printf("batch %2d, host = %4.1f device computes: %.3f (kept behind %d)\n", batch, host,
                  with / without, static_cast<int>(report.kept_behind));
      EXPECT_LE(with, 1.01 * without);
    }
  }
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST_F(TraceHubTest, TimeOfTheHubOnTheEngineThread) {
  const TierShape shape = Shape(.25);
  for (const std::int32_t batch : {1, 16}) {
    std::vector<TraceStep> steps = PlainSteps(batch);
    steps.resize(std::min<std::size_t>(steps.size(), 500));
    HubDirector hub(shape, PolicyOptions{});
    std::vector<float> logits(static_cast<std::size_t>(batch) * 64);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(i * 37 % 101) / 20.0F;
    }
    api::LaneState lanes;
    lanes.link_seconds_per_expert = 1e-4;
    lanes.device_seconds_per_expert = 2e-5;
    std::vector<api::ExpertDemand> misses;
    std::vector<api::MissDecision> decisions;
    const double began = ThreadSeconds();
    for (const TraceStep& step : steps) {
      hub.BeginStep(step.plan);
      hub.Orders(-1, lanes);
      const std::size_t size = step.experts.size() / 12;
      for (std::int32_t layer = 0; layer < 12; ++layer) {
        api::RoutingObservation observation;
        observation.layer = layer;
        observation.experts_per_token = 2;
        observation.experts =
            absl::MakeConstSpan(step.experts).subspan(static_cast<std::size_t>(layer) * size, size);
        hub.ObserveRouting(observation);
        for (std::int32_t target = layer + 1; target < 12 && target <= layer + hub.lookahead(); ++target) {
          hub.ObserveLookahead({{}, layer, target, 64, logits});
        }
        misses.clear();
        for (const std::int32_t expert : observation.experts) {
          const bool seen = std::any_of(misses.begin(), misses.end(),
                                        [expert](const auto& miss) { return miss.key.expert == expert; });
          if (!seen && hub.slots(layer).slot[static_cast<std::size_t>(expert)] < 0) {
            misses.push_back({{layer, expert}, 1});
          }
        }
        decisions.assign(misses.size(), {});
        if (!misses.empty()) {
          hub.DecideMisses(layer, misses, lanes, absl::MakeSpan(decisions));
        }
        hub.Orders(layer, lanes);
      }
      hub.EndStep();
      hub.ObserveStepTime({12 * 2e-4, 0.0, 0.0});
    }
    const double per_layer = (ThreadSeconds() - began) / (12.0 * static_cast<double>(steps.size()));
    std::printf("hub on the engine thread, batch %d, look-ahead %d: %.1f us a layer\n", batch,
                hub.lookahead(), per_layer * 1e6);
    EXPECT_LT(per_layer, 2e-3);  // sanitizers and busy machines included
  }
}

}  // namespace
}  // namespace comoe::routing
