// Policies over the recorded routing of a trained model, beside what the trace study published. The trace is
// not part of the repository: where it is absent the tests say so and are skipped.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/replay.h"
#include "scheduler/routing/window_predictor.h"
#include "tests/scheduler/routing/study_trace.h"

namespace comoe::routing {
namespace {

constexpr std::int64_t kStepsAtBatch1 = 3000;

class TracePoliciesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::optional<Trace> study = LoadStudyTrace();
    if (!study.has_value()) {
      return;
    }
    trace_ = new RoutingTrace;
    trace_->num_sequences = static_cast<std::int32_t>(study->sequences.size());
    trace_->num_tokens = static_cast<std::int32_t>(study->sequences.front().tokens.size());
    trace_->num_moe_layers = static_cast<std::int32_t>(study->header.moe_layers.size());
    trace_->experts_per_token = study->header.experts_per_token;
    for (const TraceSequence& sequence : study->sequences) {
      trace_->experts.insert(trace_->experts.end(), sequence.experts.begin(), sequence.experts.end());
    }
  }
  static void TearDownTestSuite() {
    delete trace_;
    trace_ = nullptr;
  }
  void SetUp() override {
    if (trace_ == nullptr) {
      GTEST_SKIP() << "no routing trace at ../shared/models/moe-64x2: nothing was compared";
    }
  }

  static TierShape Shape(double share_on_device) {
    TierShape shape;
    shape.num_layers = 12;
    for (std::int32_t layer = 0; layer < 12; ++layer) {
      shape.moe_layers.push_back(layer);
    }
    shape.num_experts = 64;
    shape.experts_per_token = 2;
    shape.device_slots = static_cast<std::int32_t>(768 * share_on_device);
    return shape;
  }
  static std::vector<TraceStep> Steps(std::int32_t batch, bool second_half) {
    const auto order = absl::MakeConstSpan(kStudyOrder).subspan(second_half ? kStudyOrder.size() / 2 : 0);
    return LockstepSteps(*trace_, order, batch, batch == 1 ? kStepsAtBatch1 : 1'000'000);
  }
  static ReplayTotals Run(const std::string& policy, double share, const std::vector<TraceStep>& steps) {
    const TierShape shape = Shape(share);
    absl::StatusOr<Policy> made = MakePolicy(policy, shape, PolicyOptions{});
    EXPECT_TRUE(made.ok()) << made.status();
    return Totals(RunTrace(shape, steps, ReplayOptions{}, made->director.get()));
  }
  static ReplayTotals Totals(absl::StatusOr<ReplayTotals> totals) {
    EXPECT_TRUE(totals.ok()) << totals.status();
    return totals.value_or(ReplayTotals{});
  }

  static RoutingTrace* trace_;
};

RoutingTrace* TracePoliciesTest::trace_ = nullptr;

// The study's best online score in one pool, from the same parts.
class DecayedDirector final : public PooledDirector {
 public:
  explicit DecayedDirector(const TierShape& shape) : PooledDirector(shape, PolicyOptions{}), counts_(shape) {}
  absl::string_view policy() const override { return "decayed"; }

 protected:
  double Value(base::ExpertKey key) const override { return counts_.StepUses(key); }
  void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    counts_.Observe(layer, experts);
  }

 private:
  DecayedCounts counts_;
};

struct Published {
  std::int32_t batch;
  double share;
  double lru;
  double counts;   // decayed by .98, slots per layer
  double optimal;  // one pool, bypass allowed
  double decayed;  // by .97, one pool, bypass allowed; second half
};
constexpr Published kPublished[] = {
    {1, .125, .443, .515, .694, .54},  {1, .25, .655, .695, .837, .71},  {1, .50, .873, .873, .945, .87},
    {4, .125, .274, .358, .547, .39},  {4, .25, .414, .546, .727, .58},  {4, .50, .729, .778, .898, .80},
    {16, .125, .000, .236, .328, .25}, {16, .25, .000, .417, .575, .42}, {16, .50, .501, .679, .822, .68}};

TEST_F(TracePoliciesTest, HitRatesBesideThePublishedOnes) {
  std::printf("hit rates, (published ones); copied: demand and prefetch copies over those of naive\n");
  std::printf(
      "batch share   lru          simple copied guesses used wasted  (counts)  decayed       (optimal)\n");
  std::vector<TraceStep> steps;
  std::vector<TraceStep> second_half;
  std::int32_t batch = 0;
  for (const Published& row : kPublished) {
    if (row.batch != batch) {
      batch = row.batch;
      steps = Steps(batch, false);
      second_half = Steps(batch, true);
    }
    const ReplayTotals lru = Run("lru", row.share, steps);
    const ReplayTotals simple = Run("simple", row.share, steps);
    DecayedDirector director(Shape(row.share));
    const ReplayTotals decayed = Totals(RunTrace(Shape(row.share), second_half, ReplayOptions{}, &director));
    std::printf("%5d %5.3f  %.3f (%.3f)   %.3f   %.3f %7d %4d %6d  (%.3f)   %.3f (%.2f)   (%.3f)\n",
                row.batch, row.share, lru.hit_rate(), row.lru, simple.hit_rate(), simple.copied_share(),
                static_cast<int>(simple.prefetched), static_cast<int>(simple.prefetched_used),
                static_cast<int>(simple.prefetched_wasted), row.counts, decayed.hit_rate(), row.decayed,
                row.optimal);
    EXPECT_NEAR(lru.hit_rate(), row.lru, .01);
  }
}

TEST_F(TracePoliciesTest, SimpleCopiesLittleOfWhatNaiveCopies) {
  const std::vector<TraceStep> steps = Steps(1, false);
  const ReplayTotals naive = Run("naive", .25, steps);
  const ReplayTotals simple = Run("simple", .25, steps);
  EXPECT_EQ(naive.copied(), naive.lookups);
  EXPECT_GE(simple.hit_rate(), .66);
  EXPECT_LE(static_cast<double>(simple.copied()), .43 * static_cast<double>(naive.copied()));
}

// Decodes `batch` sequences in lockstep; if asked to, takes another's prompt of 1,500 tokens through in
// chunks beside three of their steps. Adds to the sums what the 30 steps before that and the 30 after it hit.
constexpr std::int32_t kStepsEachSide = 30;
void DecodeAroundPrefill(const RoutingTrace& trace, absl::Span<const std::int32_t> sequences, bool prefill,
                         Replayer* replayer, ReplayTotals* before, ReplayTotals* after) {
  constexpr std::int32_t kWarmSteps = 150;
  constexpr std::array<std::int32_t, 3> kChunks = {512, 512, 476};
  constexpr std::int32_t kFirstAfter =
      kWarmSteps + kStepsEachSide + static_cast<std::int32_t>(kChunks.size());
  for (std::int32_t token = 0; token < kFirstAfter + kStepsEachSide; ++token) {
    TraceStep step;
    for (const std::int32_t sequence : sequences) {
      AppendSpan(trace, sequence, token, 1, token + 1, &step);
    }
    const std::int32_t chunk = token - kWarmSteps - kStepsEachSide;
    if (prefill && chunk >= 0 && chunk < static_cast<std::int32_t>(kChunks.size())) {
      const auto i = static_cast<std::size_t>(chunk);
      AppendSpan(trace, kStudyOrder[90 + i], 0, kChunks[i], std::int64_t{512} * chunk, &step);
    }
    const ReplayTotals was = replayer->totals();
    ASSERT_TRUE(replayer->Step(step).ok());
    if (token >= kWarmSteps && (chunk < 0 || token >= kFirstAfter)) {
      ReplayTotals& sum = chunk < 0 ? *before : *after;
      sum.hits += replayer->totals().hits - was.hits;
      sum.lookups += replayer->totals().lookups - was.lookups;
    }
  }
}

TEST_F(TracePoliciesTest, APrefillLeavesTheDecodeSetAlone) {
  constexpr std::size_t kGroups = 16;
  for (const char* name : {"lru", "simple"}) {
    for (const std::size_t batch : {std::size_t{1}, std::size_t{4}}) {
      std::array<ReplayTotals, 2> before;  // without and with a prefill between
      std::array<ReplayTotals, 2> after;
      for (std::size_t i = 0; i < 2 * kGroups; ++i) {
        const TierShape shape = Shape(.25);
        absl::StatusOr<Policy> policy = MakePolicy(name, shape, PolicyOptions{});
        ASSERT_TRUE(policy.ok()) << policy.status();
        Replayer replayer(shape, ReplayOptions{}, policy->director.get());
        const auto sequences = absl::MakeConstSpan(kStudyOrder).subspan(i / 2 * batch, batch);
        DecodeAroundPrefill(*trace_, sequences, i % 2 == 1, &replayer, &before[i % 2], &after[i % 2]);
      }
      std::printf("%s, batch %d: hit rate %.3f before a prefill, %.3f after; %.3f had there been none\n",
                  name, static_cast<int>(batch), before[1].hit_rate(), after[1].hit_rate(),
                  after[0].hit_rate());
      EXPECT_NEAR(after[1].hit_rate(), before[1].hit_rate(), .05) << name << ", batch " << batch;
      EXPECT_NEAR(after[1].hit_rate(), after[0].hit_rate(), .01) << name << ", batch " << batch;
    }
  }
}

}  // namespace
}  // namespace comoe::routing
