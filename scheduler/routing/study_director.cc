#include "scheduler/routing/study_director.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "engine/base/rng.h"
#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/predictor.h"
#include "scheduler/routing/slot_table.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {
namespace {

// Logits of what stands out, above those of all else: e^8 to 1.
constexpr float kForcedLogit = 8.0F;

class StudyDirector final : public PooledDirector {
 public:
  StudyDirector(const TierShape& shape, const PolicyOptions& options, GuessSource guesses)
      : PooledDirector(shape, options),
        window_(shape, options.window),
        guesses_(std::move(guesses)),
        believed_(shape.num_keys(), false) {}

  absl::string_view policy() const override { return "study"; }
  void BeginStep(const api::StepPlan& plan) override {
    PooledDirector::BeginStep(plan);
    ++step_;
  }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override;

 protected:
  double Value(base::ExpertKey key) const override {
    return believed_[shape().Index(key)]
               ? std::numeric_limits<double>::infinity()
               : static_cast<double>(window_.counts(key.layer)[static_cast<std::size_t>(key.expert)]);
  }
  // The layer is at hand: what was guessed for it is worth what it was worth before.
  void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    window_.Observe(layer, experts);
    const auto first = believed_.begin() + static_cast<std::ptrdiff_t>(shape().Index({layer, 0}));
    std::fill(first, first + shape().num_experts, false);
  }

 private:
  WindowPredictor window_;
  const GuessSource guesses_;
  std::vector<bool> believed_;  // [num_layers, num_experts]: guessed, and its layer has not come yet
  std::int64_t step_ = -1;
  std::vector<std::int32_t> guessed_;
  std::vector<api::FetchOrder> orders_;
};

absl::Span<const api::FetchOrder> StudyDirector::Orders(std::int32_t layer, const api::LaneState& /*lanes*/) {
  orders_.clear();
  const std::vector<std::int32_t>& layers = shape().moe_layers;
  const auto next =
      static_cast<std::size_t>(std::upper_bound(layers.begin(), layers.end(), layer) - layers.begin());
  if (!guesses_ || next == layers.size()) {
    return orders_;  // the first layer is guessed when the step begins
  }
  EnterLayer(layer);
  guessed_.clear();
  guesses_(step_, next, &guessed_);
  for (const std::int32_t expert : guessed_) {
    const base::ExpertKey key{layers[next], expert};
    if (residency().device().SlotOf(key) != kNoSlot) {
      continue;
    }
    const std::int32_t slot = SlotFor(std::numeric_limits<double>::max());
    if (slot == kNoSlot) {
      break;  // all hold guesses, or what the layer needs
    }
    believed_[shape().Index(key)] = true;
    orders_.push_back({key, base::Tier::kDevice, slot, base::CopyReason::kPrefetch});
    Place(key, slot);
  }
  return orders_;
}

// An expert that is none of `needed`; `bits` decides which. `expert` itself if all are needed.
std::int32_t WrongExpert(const std::vector<bool>& needed, std::int32_t expert, std::uint64_t bits) {
  const auto num_experts = static_cast<std::uint64_t>(needed.size());
  for (std::uint64_t i = 0; i < num_experts; ++i) {
    const std::uint64_t candidate = (bits + i) % num_experts;
    if (!needed[candidate]) {
      return static_cast<std::int32_t>(candidate);
    }
  }
  return expert;
}

// A number for a layer of a row, so that draws do not depend on the order of questions.
std::uint64_t Cell(const ReplayRow& row, std::int32_t layer) {
  return base::MixBits(row.sequence * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(row.token) * 4096U +
                       static_cast<std::uint64_t>(layer));
}

// Walks over the trace with a predictor, a layer behind the question.
class PredictorWalk {
 public:
  PredictorWalk(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                LookaheadSource lookahead, std::int32_t width, RowPredictor* predictor)
      : trace_(trace),
        steps_(steps),
        lookahead_(std::move(lookahead)),
        width_(width),
        predictor_(*predictor),
        num_experts_(static_cast<std::size_t>(trace.header.num_experts)) {}

  void Ask(std::int64_t step, std::size_t index, std::vector<std::int32_t>* experts) {
    if (step < 0 || step >= static_cast<std::int64_t>(steps_.size())) {
      return;
    }
    const std::vector<ReplayRow>& rows = steps_[static_cast<std::size_t>(step)];
    if (index == 0) {
      if (step > 0) {
        Show(steps_[static_cast<std::size_t>(step - 1)], trace_.header.moe_layers.size() - 1);
      }
      tokens_.clear();
      for (const ReplayRow& row : rows) {
        tokens_.push_back(trace_.sequences[row.sequence].tokens[static_cast<std::size_t>(row.token)]);
      }
      predictor_.BeginStep(tokens_);
    } else {
      Show(rows, index - 1);
    }
    values_.assign(rows.size() * num_experts_, 0.0F);
    predictor_.Forecast(trace_.header.moe_layers[index], absl::MakeSpan(values_));
    demand_.assign(num_experts_, 1.0F);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      demand_[i % num_experts_] *= 1.0F - std::min(values_[i], 1.0F);
    }
    for (float& none : demand_) {
      none = 1.0F - none;
    }
    MostLikely(demand_, width_, experts);
  }

 private:
  void Show(const std::vector<ReplayRow>& rows, std::size_t index) {
    const auto layer = static_cast<std::int32_t>(index);
    experts_.clear();
    for (const ReplayRow& row : rows) {
      const absl::Span<const std::uint16_t> routed = trace_.Experts(row.sequence, row.token, layer);
      experts_.insert(experts_.end(), routed.begin(), routed.end());
    }
    predictor_.Observe(trace_.header.moe_layers[index], experts_);
    values_.resize(rows.size() * num_experts_);
    for (std::int32_t d = 1;
         lookahead_ && d <= trace_.header.lookahead && layer + d < trace_.header.num_moe_layers(); ++d) {
      if (lookahead_(rows, layer + d, d, absl::MakeSpan(values_))) {
        predictor_.ObserveLookahead(trace_.header.moe_layers[index],
                                    trace_.header.moe_layers[index + static_cast<std::size_t>(d)], values_);
      }
    }
  }

  const Trace& trace_;
  const std::vector<std::vector<ReplayRow>>& steps_;
  const LookaheadSource lookahead_;
  const std::int32_t width_;
  RowPredictor& predictor_;
  const std::size_t num_experts_;
  std::vector<base::TokenId> tokens_;
  std::vector<std::int32_t> experts_;
  std::vector<float> values_;
  std::vector<float> demand_;
};

// Forced guesses of a step. They are those of all rows together: the first row stands for the others.
class ForcedPredictor final : public RowPredictor {
 public:
  ForcedPredictor(const Trace& trace, GuessSource guesses, double accuracy)
      : layers_(trace.header.moe_layers), guesses_(std::move(guesses)), accuracy_(accuracy) {}

  absl::string_view name() const override { return "forced"; }
  void BeginStep(absl::Span<const base::TokenId> /*tokens*/) override { ++step_; }
  void Observe(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) override {}
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
    const auto found = std::find(layers_.begin(), layers_.end(), target);
    guessed_.clear();
    guesses_(step_, static_cast<std::size_t>(found - layers_.begin()), &guessed_);
    for (const std::int32_t expert : guessed_) {
      probabilities[static_cast<std::size_t>(expert)] = static_cast<float>(accuracy_);
    }
  }

 private:
  const std::vector<std::int32_t> layers_;
  const GuessSource guesses_;
  const double accuracy_;
  std::int64_t step_ = -1;
  std::vector<std::int32_t> guessed_;
};

}  // namespace

GuessSource PredictedGuesses(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                             LookaheadSource lookahead, std::int32_t width, RowPredictor* predictor) {
  const auto walk = std::make_shared<PredictorWalk>(trace, steps, std::move(lookahead), width, predictor);
  return [walk](std::int64_t step, std::size_t index, std::vector<std::int32_t>* experts) {
    walk->Ask(step, index, experts);
  };
}

std::unique_ptr<api::ExpertDirector> MakeStudyDirector(const TierShape& shape, const PolicyOptions& options,
                                                       GuessSource guesses) {
  return std::make_unique<StudyDirector>(shape, options, std::move(guesses));
}

GuessSource ForcedGuesses(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                          double accuracy, std::uint64_t seed) {
  return [&trace, &steps, accuracy, seed](std::int64_t step, std::size_t index,
                                          std::vector<std::int32_t>* experts) {
    if (step < 0 || step >= static_cast<std::int64_t>(steps.size())) {
      return;
    }
    const auto layer = static_cast<std::int32_t>(index);
    const std::vector<ReplayRow>& rows = steps[static_cast<std::size_t>(step)];
    std::vector<bool> taken(static_cast<std::size_t>(trace.header.num_experts), false);
    std::vector<std::int32_t> needed;
    for (const ReplayRow& row : rows) {
      for (const std::uint16_t expert : trace.Experts(row.sequence, row.token, layer)) {
        if (!taken[expert]) {
          taken[expert] = true;
          needed.push_back(expert);
        }
      }
    }
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const std::uint64_t draw = Cell(rows.front(), layer) + i;
      std::int32_t expert = needed[i];
      if (base::RandomUnit(seed, draw) >= accuracy) {
        expert = WrongExpert(taken, expert, base::RandomBits(seed + 1, draw));
        taken[static_cast<std::size_t>(expert)] = true;
      }
      experts->push_back(expert);
    }
  };
}

std::unique_ptr<RowPredictor> MakeForcedPredictor(const Trace& trace,
                                                  const std::vector<std::vector<ReplayRow>>& steps,
                                                  double accuracy, std::uint64_t seed) {
  return std::make_unique<ForcedPredictor>(trace, ForcedGuesses(trace, steps, accuracy, seed), accuracy);
}

LookaheadSource ForcedLookahead(const Trace& trace, double accuracy, std::uint64_t seed) {
  return [&trace, accuracy, seed](absl::Span<const ReplayRow> rows, std::int32_t target,
                                  std::int32_t /*distance*/, absl::Span<float> logits) {
    const auto num_experts = static_cast<std::size_t>(trace.header.num_experts);
    std::fill(logits.begin(), logits.end(), 0.0F);
    // The same expert is lost for all rows of the step or for none, so that the recall of the layer's needed
    // experts is the accuracy.
    std::vector<bool> taken(num_experts, false);
    for (const ReplayRow& row : rows) {
      for (const std::uint16_t expert : trace.Experts(row.sequence, row.token, target)) {
        taken[expert] = true;
      }
    }
    const std::vector<bool> needed = taken;
    std::vector<std::int32_t> instead(num_experts, -1);
    for (std::size_t e = 0; e < num_experts; ++e) {
      if (needed[e]) {
        const std::uint64_t draw = Cell(rows.front(), target) + e;
        const auto expert = static_cast<std::int32_t>(e);
        const bool kept = base::RandomUnit(seed, draw) < accuracy;
        instead[e] = kept ? expert : WrongExpert(taken, expert, base::RandomBits(seed + 1, draw));
        taken[static_cast<std::size_t>(instead[e])] = true;
      }
    }
    for (std::size_t t = 0; t < rows.size(); ++t) {
      float height = kForcedLogit;
      for (const std::uint16_t expert : trace.Experts(rows[t].sequence, rows[t].token, target)) {
        logits[t * num_experts + static_cast<std::size_t>(instead[expert])] = height;
        height -= 0.5F;  // best first
      }
    }
    return true;
  };
}

}  // namespace comoe::routing
