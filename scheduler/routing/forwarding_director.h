// A director that decides as another one does: what wraps a policy overrides the calls that it cares for.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"

namespace comoe::routing {

// Owned by the engine thread. Every call of the interface is passed on.
class ForwardingDirector : public api::ExpertDirector {
 public:
  explicit ForwardingDirector(std::unique_ptr<api::ExpertDirector> inner) : inner_(std::move(inner)) {}

  absl::string_view policy() const override { return inner_->policy(); }
  std::vector<api::FetchOrder> InitialOrders() override { return inner_->InitialOrders(); }
  void BeginStep(const api::StepPlan& plan) override { inner_->BeginStep(plan); }
  const api::SlotMap& slots(std::int32_t layer) const override { return inner_->slots(layer); }
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override {
    inner_->DecideMisses(layer, misses, lanes, decisions);
  }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override {
    return inner_->Orders(layer, lanes);
  }
  void ObserveRouting(const api::RoutingObservation& observation) override {
    inner_->ObserveRouting(observation);
  }
  std::int32_t lookahead() const override { return inner_->lookahead(); }
  void ObserveLookahead(const api::LookaheadObservation& observation) override {
    inner_->ObserveLookahead(observation);
  }
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override {
    inner_->OnVacated(tier, slot, key, usable);
  }
  void EndStep() override { inner_->EndStep(); }
  void HintPrompt(absl::Span<const base::TokenId> tokens) override { inner_->HintPrompt(tokens); }
  void ObserveStepTime(const api::StepTimes& times) override { inner_->ObserveStepTime(times); }

 private:
  const std::unique_ptr<api::ExpertDirector> inner_;
};

}  // namespace comoe::routing
