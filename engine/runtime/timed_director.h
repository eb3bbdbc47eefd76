// A director that decides as another one does, and measures what that costs the engine thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"

namespace comoe::runtime {

// Seconds of real time since the start, whatever the device's clock.
struct DirectorSeconds {
  double observe = 0.0;  // hearing of steps, routing, scores, hints and losses
  double plan = 0.0;     // DecideMisses and Orders
};

// Owned by the engine thread. Two readings of the clock a call, some 50 ns; slots() and lookahead(), which
// only look up, are not measured.
class TimedDirector final : public api::ExpertDirector {
 public:
  // `inner` outlives it.
  explicit TimedDirector(api::ExpertDirector& inner) : inner_(inner) {}

  const DirectorSeconds& seconds() const { return seconds_; }

  absl::string_view policy() const override { return inner_.policy(); }
  std::vector<api::FetchOrder> InitialOrders() override { return inner_.InitialOrders(); }
  void BeginStep(const api::StepPlan& plan) override {
    const Timer timer(seconds_.observe);
    inner_.BeginStep(plan);
  }
  const api::SlotMap& slots(std::int32_t layer) const override { return inner_.slots(layer); }
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override {
    const Timer timer(seconds_.plan);
    inner_.DecideMisses(layer, misses, lanes, decisions);
  }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override {
    const Timer timer(seconds_.plan);
    return inner_.Orders(layer, lanes);
  }
  void ObserveRouting(const api::RoutingObservation& observation) override {
    const Timer timer(seconds_.observe);
    inner_.ObserveRouting(observation);
  }
  std::int32_t lookahead() const override { return inner_.lookahead(); }
  void ObserveLookahead(const api::LookaheadObservation& observation) override {
    const Timer timer(seconds_.observe);
    inner_.ObserveLookahead(observation);
  }
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override {
    const Timer timer(seconds_.observe);
    inner_.OnVacated(tier, slot, key, usable);
  }
  void EndStep() override {
    const Timer timer(seconds_.observe);
    inner_.EndStep();
  }
  void HintPrompt(absl::Span<const base::TokenId> tokens) override {
    const Timer timer(seconds_.observe);
    inner_.HintPrompt(tokens);
  }
  void ObserveStepTime(const api::StepTimes& times) override {
    const Timer timer(seconds_.observe);
    inner_.ObserveStepTime(times);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Adds its lifetime to a sum.
  class Timer {
   public:
    explicit Timer(double& sum) : sum_(sum), begin_(Clock::now()) {}
    ~Timer() { sum_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    double& sum_;
    const Clock::time_point begin_;
  };

  api::ExpertDirector& inner_;
  DirectorSeconds seconds_;
};

}  // namespace comoe::runtime
