#include "scheduler/routing/moving_forecaster.h"

#include <system_error>
#include <utility>

#include "engine/base/log.h"
#include "scheduler/routing/hub_worker.h"

namespace comoe::routing {
namespace {

constexpr std::int32_t kPatience = 2;  // windows

class MovingForecaster final : public DemandForecaster {
 public:
  MovingForecaster(const TierShape& shape, std::shared_ptr<RowPredictor> predictor, std::int32_t look_ahead,
                   std::function<double()> clock)
      : shape_(shape),
        predictor_(std::move(predictor)),
        look_ahead_(look_ahead),
        clock_(std::move(clock)),
        inner_(MakeInlineForecaster(shape, predictor_)) {}

  void BeginStep(absl::Span<const base::TokenId> tokens) override {
    if (!on_own_thread()) {
      EndStep();
    }
    Timed([&] { inner_->BeginStep(tokens); });
  }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    Timed([&] { inner_->Observe(layer, experts); });
  }
  void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) override {
    Timed([&] { inner_->ObserveLookahead(layer, target, logits); });
  }
  const Demand& Forecast(std::int32_t target) override {
    const Demand* demand = nullptr;
    Timed([&] { demand = &inner_->Forecast(target); });
    return *demand;
  }
  void Hint(absl::Span<const base::TokenId> tokens) override { inner_->Hint(tokens); }
  const Demand* TakeHint(std::int32_t layer) override { return inner_->TakeHint(layer); }
  std::uint64_t num_late() const override { return inner_->num_late(); }
  std::uint64_t num_dropped() const override { return inner_->num_dropped(); }
  bool on_own_thread() const override { return inner_->on_own_thread(); }
  void Append(std::vector<std::uint8_t>* bytes) override { inner_->Append(bytes); }
  bool Restore(absl::Span<const std::uint8_t>* bytes) override { return inner_->Restore(bytes); }

 private:
  template <class Call>
  void Timed(const Call& call) {
    if (on_own_thread()) {
      call();
      return;
    }
    const double began = clock_();
    call();
    last_ = clock_();
    first_ = first_ < 0.0 ? began : first_;
    spent_ += last_ - began;
  }

  void EndStep() {
    if (first_ < 0.0) {
      return;
    }
    stepping_ += last_ - first_;
    first_ = -1.0;
    if (++num_steps_ < kPredictorWindowSteps) {
      return;
    }
    windows_above_ = spent_ > kMostPredictorShare * stepping_ ? windows_above_ + 1 : 0;
    if (windows_above_ >= kPatience) {
      Move();
    }
    num_steps_ = 0;
    spent_ = stepping_ = 0.0;
  }

  void Move() {
    try {
      inner_ = MakeHubWorker(shape_, predictor_, look_ahead_);
      base::Logf(base::LogLevel::kInfo, "hub",
                 "forecasts took %.1f %% of the steps: they are made on a thread of their own from now on",
                 100.0 * spent_ / stepping_);
    } catch (const std::system_error&) {
      windows_above_ = 0;  // no thread can be had: as before
    }
  }

  const TierShape shape_;
  const std::shared_ptr<RowPredictor> predictor_;
  const std::int32_t look_ahead_;
  const std::function<double()> clock_;
  std::unique_ptr<DemandForecaster> inner_;
  double first_ = -1.0, last_ = 0.0;     // of the step under way; -1: none
  double spent_ = 0.0, stepping_ = 0.0;  // in the window at hand
  std::int32_t num_steps_ = 0;           // of it
  std::int32_t windows_above_ = 0;
};

}  // namespace

std::unique_ptr<DemandForecaster> MakeMovingForecaster(const TierShape& shape,
                                                       std::shared_ptr<RowPredictor> predictor,
                                                       std::int32_t look_ahead,
                                                       std::function<double()> clock) {
  return std::make_unique<MovingForecaster>(shape, std::move(predictor), look_ahead, std::move(clock));
}

}  // namespace comoe::routing
