#include "scheduler/routing/trace_recorder.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/check.h"

namespace comoe::routing {
namespace {

class TraceRecorder final : public api::ExpertDirector {
 public:
  TraceRecorder(std::unique_ptr<api::ExpertDirector> inner, RoutingCallback callback)
      : inner_(std::move(inner)), callback_(std::move(callback)) {}

  absl::string_view policy() const override { return inner_->policy(); }

  void BeginStep(const api::StepPlan& plan) override {
    rows_.clear();
    for (const api::PlanSpan& span : plan.spans) {
      for (std::size_t i = 0; i < span.tokens.size(); ++i) {
        rows_.push_back({span.sequence, span.start_position + static_cast<std::int64_t>(i), span.tokens[i]});
      }
    }
    inner_->BeginStep(plan);
  }

  const api::SlotMap& slots(std::int32_t layer) const override { return inner_->slots(layer); }

  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override {
    inner_->DecideMisses(layer, misses, lanes, decisions);
  }
  std::vector<api::FetchOrder> InitialOrders() override { return inner_->InitialOrders(); }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override {
    return inner_->Orders(layer, lanes);
  }
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override {
    inner_->OnVacated(tier, slot, key, usable);
  }

  void ObserveRouting(const api::RoutingObservation& observation) override {
    COMOE_DCHECK(
        observation.experts.size() == rows_.size() * static_cast<std::size_t>(observation.experts_per_token),
        "a routing observation covers every row of its step");
    callback_(observation, rows_);
    inner_->ObserveRouting(observation);
  }

  std::int32_t lookahead() const override { return inner_->lookahead(); }
  void ObserveLookahead(const api::LookaheadObservation& observation) override {
    inner_->ObserveLookahead(observation);
  }
  void EndStep() override { inner_->EndStep(); }

 private:
  const std::unique_ptr<api::ExpertDirector> inner_;
  const RoutingCallback callback_;
  std::vector<TraceRow> rows_;  // [T] of the step under way
};

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeTraceRecorder(std::unique_ptr<api::ExpertDirector> inner,
                                                       RoutingCallback callback) {
  return std::make_unique<TraceRecorder>(std::move(inner), std::move(callback));
}

}  // namespace comoe::routing
