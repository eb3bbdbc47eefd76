#include "cli/director_timing.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "scheduler/routing/forwarding_director.h"

namespace comoe::cli {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class TimedDirector final : public routing::ForwardingDirector {
 public:
  TimedDirector(std::unique_ptr<api::ExpertDirector> inner, DirectorTimes* times, double delay_seconds)
      : ForwardingDirector(std::move(inner)), times_(*times), delay_seconds_(delay_seconds) {}

  void BeginStep(const api::StepPlan& plan) override {
    const Span span(&step_);
    // As a slow computation would: the core is busy.
    for (const double until = Now() + delay_seconds_; Now() < until;) {
    }
    ForwardingDirector::BeginStep(plan);
  }
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override {
    const Span span(&step_);
    ForwardingDirector::DecideMisses(layer, misses, lanes, decisions);
  }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override {
    const Span span(&step_);
    return ForwardingDirector::Orders(layer, lanes);
  }
  void ObserveRouting(const api::RoutingObservation& observation) override {
    const Span span(&step_);
    ForwardingDirector::ObserveRouting(observation);
  }
  void ObserveLookahead(const api::LookaheadObservation& observation) override {
    const Span span(&step_);
    ForwardingDirector::ObserveLookahead(observation);
  }
  void EndStep() override {
    {
      const Span span(&step_);
      ForwardingDirector::EndStep();
    }
    times_.step_seconds.push_back(std::exchange(step_, 0.0));
  }

 private:
  class Span {
   public:
    explicit Span(double* sum) : sum_(*sum), begin_(Now()) {}
    ~Span() { sum_ += Now() - begin_; }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    double& sum_;
    const double begin_;
  };

  DirectorTimes& times_;
  const double delay_seconds_;
  double step_ = 0.0;
};

}  // namespace

double DirectorTimes::Quantile(double q) const {
  if (step_seconds.empty()) {
    return 0.0;
  }
  std::vector<double> sorted = step_seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

std::unique_ptr<api::ExpertDirector> MakeTimedDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                       DirectorTimes* times, double delay_seconds) {
  return std::make_unique<TimedDirector>(std::move(inner), times, delay_seconds);
}

}  // namespace comoe::cli
