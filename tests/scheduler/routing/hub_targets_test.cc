// What the routing hub promises in figures, over the recorded routing of a trained model and on a virtual
// clock: beside copying everything, beside plain LRU, with the host lane, under forced accuracy, mode beside
// mode. Deterministic. Where the trace is absent the tests are skipped.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/routing/parameters.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/study_director.h"
#include "scheduler/routing/timed_replay.h"
#include "tests/scheduler/routing/study_trace.h"

namespace comoe::routing {
namespace {

constexpr double kCopy = 4.0;   // an expert's copy, in computes of one on the device
constexpr double kDense = 1.3;  // the 13 other kernels of a layer at a tenth of one
constexpr double kHost = 6.0;   // an expert on the host
constexpr double kBatches[] = {1, 4, 8, 16};

using Steps = std::vector<std::vector<ReplayRow>>;

class HubTargetsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { trace_ = new std::optional<Trace>(LoadStudyTrace()); }
  static void TearDownTestSuite() {
    delete trace_;
    trace_ = nullptr;
  }
  void SetUp() override {
    if (!trace_->has_value()) {
      std::printf("NOT CHECKED: ../shared is not here\n");
      GTEST_SKIP() << "no routing trace at ../shared/models/moe-64x2";
    }
  }
  static const Trace& trace() { return **trace_; }

  // A share of all experts, of which a few slots are what experts pass through.
  static TierShape Shape(double share) {
    const auto slots = static_cast<std::int32_t>(768 * share);
    return trace().Shape(slots - std::clamp(slots / 8, 1, 4));
  }
  static Steps InOrder(std::int32_t batch, std::int64_t most) {
    std::vector<std::int32_t> sequences(trace().sequences.size());
    std::iota(sequences.begin(), sequences.end(), 0);
    return LockstepRows(trace(), sequences, batch, most);
  }
  static ReplayRates Rates(double copy, double dense, double host) {
    ReplayRates rates;
    rates.copy_seconds = copy;
    rates.dense_seconds = dense;
    rates.host_seconds = host;
    rates.host_seconds_per_row = host;
    return rates;
  }
  static PolicyOptions Options(HubMode mode = HubMode::kLatency) {
    PolicyOptions options;
    options.hub = ModeParameters(mode);
    return options;
  }
  static TimedTotals Run(const Steps& steps, const TierShape& shape, const ReplayRates& rates,
                         LookaheadSource scores, api::ExpertDirector* director,
                         std::vector<double>* step_seconds = nullptr) {
    TimedReplayer replayer(trace(), shape, rates, std::move(scores), director);
    double before = 0.0;
    for (const std::vector<ReplayRow>& rows : steps) {
      const absl::Status status = replayer.Step(rows);
      EXPECT_TRUE(status.ok()) << status;
      if (step_seconds != nullptr) {
        const double now = replayer.totals().seconds;
        step_seconds->push_back(now - std::exchange(before, now));
      }
    }
    return replayer.totals();
  }
  static TimedTotals RunPolicy(const char* policy, const Steps& steps, const TierShape& shape,
                               const ReplayRates& rates, const PolicyOptions& options, LookaheadSource scores,
                               std::vector<double>* step_seconds = nullptr) {
    absl::StatusOr<Policy> made = MakePolicy(policy, shape, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return Run(steps, shape, rates, std::move(scores), made->director.get(), step_seconds);
  }
  // Everything copied, then computed, one after the other.
  static double NaiveSeconds(const TimedTotals& any, const ReplayRates& rates) {
    return 12.0 * static_cast<double>(any.steps) * rates.dense_seconds +
           static_cast<double>(any.lookups) * (rates.copy_seconds + rates.device_seconds);
  }
  static double Wasted(const TimedTotals& totals) {
    return static_cast<double>(totals.guesses_wasted) / static_cast<double>(totals.lookups);
  }

  static std::optional<Trace>* trace_;
};

std::optional<Trace>* HubTargetsTest::trace_ = nullptr;

TEST_F(HubTargetsTest, MovesFarFewerBytesThanNaiveAndIsTwiceAsFast) {
  struct Target {
    std::int32_t batch;
    double bytes, rate;
  };
  for (const Target& target : {Target{1, 0.35, 2.0}, Target{8, 0.60, 1.8}}) {
    const ReplayRates rates = Rates(kCopy, kDense, 0.0);
    const TimedTotals hub = RunPolicy("hub", InOrder(target.batch, 3000), Shape(.25), rates, Options(),
                                      RecordedLookahead(trace()));
    const double bytes = static_cast<double>(hub.copied()) / static_cast<double>(hub.lookups);
    const double rate = NaiveSeconds(hub, rates) / hub.seconds;
    std::printf("batch %d: %.4f of naive's bytes (%.4f for nothing), %.3f times its tokens/s\n", target.batch,
                bytes, Wasted(hub), rate);
    EXPECT_LE(bytes, target.bytes);
    EXPECT_GE(rate, target.rate);
  }
}

TEST_F(HubTargetsTest, TheDearerBytesAreTheFewerAreMoved) {
  const Steps steps = InOrder(1, 1500);
  const ReplayRates rates = Rates(kCopy, kDense, 0.0);
  std::int64_t copied = std::numeric_limits<std::int64_t>::max();
  for (const double price : {0.0, 0.5, 1.0, 2.0, 4.0}) {
    PolicyOptions options = Options();
    options.hub.byte_price = price;
    const TimedTotals hub = RunPolicy("hub", steps, Shape(.25), rates, options, RecordedLookahead(trace()));
    std::printf("byte_price %.1f: %.4f of naive's bytes, %.4f for nothing, %.3f times its tokens/s\n", price,
                static_cast<double>(hub.copied()) / static_cast<double>(hub.lookups), Wasted(hub),
                NaiveSeconds(hub, rates) / hub.seconds);
    EXPECT_LT(hub.copied(), copied);
    copied = hub.copied();
  }
}

TEST_F(HubTargetsTest, IsNeverSlowerWithTheHostLane) {
  for (const double batch : kBatches) {
    const Steps steps = InOrder(static_cast<std::int32_t>(batch), 600);
    for (const double share : {0.0625, 0.125, 0.25, 0.5}) {
      PolicyOptions options = Options();
      const LookaheadSource scores = RecordedLookahead(trace());
      const double off =
          RunPolicy("hub", steps, Shape(share), Rates(kCopy, kDense, 0.0), options, scores).seconds;
      options.host_lane = true;
      const double on =
          RunPolicy("hub", steps, Shape(share), Rates(kCopy, kDense, kHost), options, scores).seconds;
      std::printf("batch %2.0f, %5.2f %%: %.3f times the rate without\n", batch, 100 * share, off / on);
      EXPECT_LE(on, off) << "batch " << batch << ", " << share;
    }
  }
}

TEST_F(HubTargetsTest, IsNeverBelowLru) {
  for (const double batch : kBatches) {
    const Steps steps = InOrder(static_cast<std::int32_t>(batch), 600);
    for (const double share : {0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0}) {
      const ReplayRates rates = Rates(kCopy, kDense, 0.0);
      const TimedTotals lru = RunPolicy("lru", steps, Shape(share), rates, Options(), {});
      const TimedTotals hub =
          RunPolicy("hub", steps, Shape(share), rates, Options(), RecordedLookahead(trace()));
      const double ratio = lru.seconds / hub.seconds;
      std::printf("batch %2.0f, %5.2f %%: lru hits %.3f, hub %.4f times its rate\n", batch, 100 * share,
                  lru.hit_rate(), ratio);
      // Where nearly everything is there, copies hide behind computation and both are as fast as can be.
      EXPECT_GE(ratio, 1.0) << "batch " << batch << ", " << share;
      if (lru.hit_rate() < 0.85) {
        EXPECT_GT(ratio, 1.005) << "batch " << batch << ", " << share;
      }
    }
  }
}

// Forced accuracy of forecasts, all that is not expert aside (so that the link is what binds).
TEST_F(HubTargetsTest, WrongForecastsCostNextToNothing) {
  for (const std::int32_t batch : {1, 8}) {
    const Steps steps =
        LockstepRows(trace(), absl::MakeConstSpan(kStudyOrder).subspan(48), batch, batch == 1 ? 2000 : 500);
    const TierShape shape = trace().Shape(192);
    for (const double copy : {4.0, 12.0}) {
      const ReplayRates rates = Rates(copy, 0.1, 0.0);
      PolicyOptions off = Options();
      off.hub.prefetch_depth = 0;
      const double without = RunPolicy("hub", steps, shape, rates, off, {}).seconds;
      std::printf("batch %d, copy = %2.0f computes: hub over no prefetch:", batch, copy);
      for (const int percent : {50, 60, 70, 80, 90, 100}) {
        const double with =
            RunPolicy("hub", steps, shape, rates, Options(), ForcedLookahead(trace(), percent / 100.0, 7))
                .seconds;
        std::printf("  %d%% %.3f", percent, without / with);
        EXPECT_LE(with, 1.02 * without) << percent;
      }
      // Believing each guess: better than no cache at all, long before it is better than no guesses.
      const std::unique_ptr<api::ExpertDirector> simple =
          MakeStudyDirector(shape, PolicyOptions{}, ForcedGuesses(trace(), steps, 0.6, 7));
      const TimedTotals believed = Run(steps, shape, rates, {}, simple.get());
      const double beside_naive = NaiveSeconds(believed, rates) / believed.seconds;
      std::printf(";  simple at 60%% %.2f times naive\n", beside_naive);
      EXPECT_GT(beside_naive, 1.0);
    }
  }
}

TEST_F(HubTargetsTest, EachModeIsBetterAtWhatItIsFor) {
  for (const std::int32_t batch : {1, 8}) {
    const Steps steps = InOrder(batch, batch == 1 ? 3000 : 1000);
    TimedTotals totals[2];
    double p99[2] = {};
    for (const HubMode mode : {HubMode::kLatency, HubMode::kThroughput}) {
      const auto m = static_cast<std::size_t>(mode);
      std::vector<double> seconds;
      totals[m] = RunPolicy("hub", steps, Shape(.25), Rates(kCopy, kDense, 0.0), Options(mode),
                            RecordedLookahead(trace()), &seconds);
      std::sort(seconds.begin(), seconds.end());
      p99[m] = seconds[seconds.size() * 99 / 100];
      std::printf("batch %d, %-10s p99 of a step %.1f computes, %.4f of lookups copied for nothing\n", batch,
                  std::string(HubModeName(mode)).c_str(), p99[m], Wasted(totals[m]));
    }
    EXPECT_LE(p99[0], p99[1]);
    EXPECT_LE(Wasted(totals[1]), Wasted(totals[0]));
  }
}

}  // namespace
}  // namespace comoe::routing
