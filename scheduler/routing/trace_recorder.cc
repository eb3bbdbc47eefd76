#include "scheduler/routing/trace_recorder.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "scheduler/routing/forwarding_director.h"

namespace comoe::routing {
namespace {

// Knows which token each row of the step is.
class Listener : public ForwardingDirector {
 public:
  void BeginStep(const api::StepPlan& plan) override {
    rows_.clear();
    for (const api::PlanSpan& span : plan.spans) {
      for (std::size_t i = 0; i < span.tokens.size(); ++i) {
        rows_.push_back({span.sequence, span.start_position + static_cast<std::int64_t>(i), span.tokens[i]});
      }
    }
    ForwardingDirector::BeginStep(plan);
  }

  void ObserveRouting(const api::RoutingObservation& observation) override {
    COMOE_DCHECK(
        observation.experts.size() == rows_.size() * static_cast<std::size_t>(observation.experts_per_token),
        "a routing observation covers every row of its step");
    Hear(observation);
    ForwardingDirector::ObserveRouting(observation);
  }

 protected:
  explicit Listener(std::unique_ptr<api::ExpertDirector> inner) : ForwardingDirector(std::move(inner)) {}
  virtual void Hear(const api::RoutingObservation& observation) = 0;
  const std::vector<TraceRow>& rows() const { return rows_; }

 private:
  std::vector<TraceRow> rows_;  // [T] of the step under way
};

class TraceRecorder final : public Listener {
 public:
  TraceRecorder(std::unique_ptr<api::ExpertDirector> inner, RoutingCallback callback)
      : Listener(std::move(inner)), callback_(std::move(callback)) {}

 private:
  void Hear(const api::RoutingObservation& observation) override { callback_(observation, rows()); }

  const RoutingCallback callback_;
};

class StepRecorder final : public Listener {
 public:
  StepRecorder(std::unique_ptr<api::ExpertDirector> inner, const TraceHeader& header, StepCallback sink)
      : Listener(std::move(inner)), header_(header), sink_(std::move(sink)) {}

  void BeginStep(const api::StepPlan& plan) override;
  std::int32_t lookahead() const override { return std::max(header_.lookahead, Listener::lookahead()); }
  void ObserveLookahead(const api::LookaheadObservation& observation) override;
  void EndStep() override;

 private:
  void Hear(const api::RoutingObservation& observation) override;
  // Number among the MoE layers; npos: none of them.
  std::size_t IndexOf(std::int32_t layer) const;

  const TraceHeader header_;
  const StepCallback sink_;
  TraceStepRecord step_;
  std::size_t num_heard_ = 0;         // layers
  std::vector<std::int32_t> likely_;  // scratch
};

constexpr std::size_t kNoLayer = std::numeric_limits<std::size_t>::max();

std::size_t StepRecorder::IndexOf(std::int32_t layer) const {
  const auto found = std::lower_bound(header_.moe_layers.begin(), header_.moe_layers.end(), layer);
  return found != header_.moe_layers.end() && *found == layer
             ? static_cast<std::size_t>(found - header_.moe_layers.begin())
             : kNoLayer;
}

void StepRecorder::BeginStep(const api::StepPlan& plan) {
  Listener::BeginStep(plan);
  num_heard_ = 0;
  step_.step = plan.step.value;
  step_.rows.clear();
  for (const TraceRow& row : rows()) {
    step_.rows.push_back({row.sequence.value, static_cast<std::int32_t>(row.position), row.token, 0});
  }
  const std::size_t cells = rows().size() * header_.moe_layers.size();
  const std::size_t routed = cells * static_cast<std::size_t>(header_.experts_per_token);
  const std::size_t named =
      cells * static_cast<std::size_t>(header_.lookahead) * static_cast<std::size_t>(header_.lookahead_width);
  step_.experts.assign(routed, 0);
  step_.weights.assign(header_.has_weights ? routed : 0, 0.0F);
  step_.ahead.assign(named, kNoExpert);
  step_.scores.assign(header_.has_scores ? named : 0, 0.0F);
}

void StepRecorder::Hear(const api::RoutingObservation& observation) {
  const std::size_t index = IndexOf(observation.layer);
  const std::size_t size = rows().size() * static_cast<std::size_t>(header_.experts_per_token);
  if (index == kNoLayer || observation.experts.size() != size) {
    return;
  }
  ++num_heard_;
  std::transform(observation.experts.begin(), observation.experts.end(),
                 step_.experts.begin() + static_cast<std::ptrdiff_t>(index * size),
                 [](std::int32_t expert) { return static_cast<std::uint16_t>(expert); });
  if (header_.has_weights && observation.weights.size() == size) {
    std::copy(observation.weights.begin(), observation.weights.end(),
              step_.weights.begin() + static_cast<std::ptrdiff_t>(index * size));
  }
}

void StepRecorder::ObserveLookahead(const api::LookaheadObservation& observation) {
  const std::size_t source = IndexOf(observation.layer);
  const std::size_t target = IndexOf(observation.target);
  const auto num_experts = static_cast<std::size_t>(header_.num_experts);
  if (source != kNoLayer && target != kNoLayer && target > source &&
      target - source <= static_cast<std::size_t>(header_.lookahead) &&
      observation.logits.size() == rows().size() * num_experts) {
    const auto width = static_cast<std::size_t>(header_.lookahead_width);
    const std::size_t plane = (target - source - 1) * header_.moe_layers.size() + target;
    likely_.resize(num_experts);
    for (std::size_t t = 0; t < rows().size(); ++t) {
      const absl::Span<const float> logits = observation.logits.subspan(t * num_experts, num_experts);
      std::iota(likely_.begin(), likely_.end(), 0);
      std::partial_sort(likely_.begin(), likely_.begin() + static_cast<std::ptrdiff_t>(width), likely_.end(),
                        [logits](std::int32_t a, std::int32_t b) {
                          const float la = logits[static_cast<std::size_t>(a)];
                          const float lb = logits[static_cast<std::size_t>(b)];
                          return la > lb || (la == lb && a < b);
                        });
      const std::size_t first = (plane * rows().size() + t) * width;
      for (std::size_t i = 0; i < width; ++i) {
        step_.ahead[first + i] = static_cast<std::uint16_t>(likely_[i]);
        if (header_.has_scores) {
          step_.scores[first + i] = logits[static_cast<std::size_t>(likely_[i])];
        }
      }
    }
  }
  if (source != kNoLayer && target != kNoLayer &&
      target <= source + static_cast<std::size_t>(std::max(Listener::lookahead(), 0))) {
    Listener::ObserveLookahead(observation);  // what `inner` asked for, and no more
  }
}

void StepRecorder::EndStep() {
  if (num_heard_ == header_.moe_layers.size() && !step_.rows.empty()) {
    sink_(step_);
  }
  Listener::EndStep();
}

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeTraceRecorder(std::unique_ptr<api::ExpertDirector> inner,
                                                       RoutingCallback callback) {
  return std::make_unique<TraceRecorder>(std::move(inner), std::move(callback));
}

std::unique_ptr<api::ExpertDirector> MakeStepRecorder(std::unique_ptr<api::ExpertDirector> inner,
                                                      const TraceHeader& header, StepCallback sink) {
  return std::make_unique<StepRecorder>(std::move(inner), header, std::move(sink));
}

}  // namespace comoe::routing
