#include "scheduler/routing/hub_reporter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "scheduler/routing/forwarding_director.h"

namespace comoe::routing {
namespace {

void Move(base::Counter* counter, std::uint64_t told, std::uint64_t now) {
  if (now > told) {
    counter->Increment(static_cast<double>(now - told));
  }
}

void Set(base::Gauge* gauge, bool value) { gauge->Set(value ? 1.0 : 0.0); }

class ReportingDirector final : public ForwardingDirector {
 public:
  ReportingDirector(std::unique_ptr<api::ExpertDirector> inner, const HubDirector& hub,
                    base::MetricsSink& sink)
      : ForwardingDirector(std::move(inner)), hub_(hub), reporter_(sink, hub.report()) {}

  void ObserveStepTime(const api::StepTimes& times) override {
    ForwardingDirector::ObserveStepTime(times);
    reporter_.Update(hub_.report());
  }

 private:
  const HubDirector& hub_;
  HubReporter reporter_;
};

}  // namespace

HubReporter::HubReporter(base::MetricsSink& sink, const HubReport& first)
    : num_distances_(std::min(static_cast<std::size_t>(std::max(first.most_look_ahead, 1)) + 1,
                              PrefetchJudge::kNumDistances)) {
  AttachDistances(sink);
  prefetching_ = &sink.AddGauge("hub_prefetching", "1 while experts are fetched on a forecast at all.", {});
  hinted_ = &sink.AddCounter("hub_hinted_orders_total", "Experts fetched for a prompt that waited.", {});
  kept_behind_ = &sink.AddCounter("hub_kept_behind_total",
                                  "Experts computed on the host and copied behind their layer.", {});
  fallen_back_ =
      &sink.AddGauge("hub_fallback_active",
                     "1 while misses are served by a static plan, since splitting them measured worse.", {});
  fallbacks_ = &sink.AddCounter("hub_fallbacks_total", "Times that a static plan took over.", {});
  look_ahead_ = &sink.AddGauge("hub_look_ahead_layers", "MoE layers that routers are applied ahead.", {});
  late_ = &sink.AddCounter("hub_late_forecasts_total",
                           "Forecasts that were not there when they were asked for.", {});
  dropped_ = &sink.AddCounter("hub_dropped_observations_total",
                              "Observations for which the predictors' thread had no room.", {});
  warm_ = &sink.AddGauge("hub_warm", "1 if what an earlier run learnt was taken over.", {});
  told_.prefetching = first.prefetching;
  told_.look_ahead = first.look_ahead;
  look_ahead_->Set(first.look_ahead);
  Update(first);
}

void HubReporter::AttachDistances(base::MetricsSink& sink) {
  const char* const outcomes = "Guesses whose layer came, by whether it needed the expert.";
  for (std::size_t ahead = 0; ahead < num_distances_; ++ahead) {
    const std::string name = absl::StrCat(ahead);
    Distance& distance = distances_[ahead];
    distance.on =
        &sink.AddGauge("hub_prefetch_on", "1 while prefetch that many layers ahead pays.", {{"ahead", name}});
    distance.precision = &sink.AddGauge("hub_prefetch_precision_ratio",
                                        "Of guesses of late, the share that was right.", {{"ahead", name}});
    distance.guesses =
        &sink.AddCounter("hub_guesses_total", "Experts ordered on a forecast.", {{"ahead", name}});
    distance.right =
        &sink.AddCounter("hub_guess_outcomes_total", outcomes, {{"ahead", name}, {"outcome", "right"}});
    distance.wrong =
        &sink.AddCounter("hub_guess_outcomes_total", outcomes, {{"ahead", name}, {"outcome", "wrong"}});
  }
}

void HubReporter::Update(const HubReport& report) {
  LogChanges(report);
  for (std::size_t ahead = 0; ahead < num_distances_; ++ahead) {
    const Distance& distance = distances_[ahead];
    const HubReport::Distance& before = told_.distances[ahead];
    const HubReport::Distance& now = report.distances[ahead];
    Set(distance.on, now.on);
    distance.precision->Set(now.precision);
    Move(distance.guesses, before.guesses, now.guesses);
    Move(distance.right, before.right, now.right);
    Move(distance.wrong, before.wrong, now.wrong);
  }
  Set(prefetching_, report.prefetching);
  Move(hinted_, told_.hinted, report.hinted);
  Move(kept_behind_, told_.kept_behind, report.kept_behind);
  Set(fallen_back_, report.fallen_back);
  Move(fallbacks_, told_.fallbacks, report.fallbacks);
  look_ahead_->Set(report.look_ahead);
  Move(late_, told_.late_forecasts, report.late_forecasts);
  Move(dropped_, told_.dropped_observations, report.dropped_observations);
  Set(warm_, report.warm);
  told_ = report;
}

void HubReporter::LogChanges(const HubReport& report) const {
  if (report.prefetching != told_.prefetching) {
    base::Log(base::LogLevel::kInfo, "hub",
              report.prefetching ? "prefetch goes on: a probe saved more than it cost"
                                 : "prefetch stopped: guesses cost more than they save");
  }
  if (report.fallen_back != told_.fallen_back) {
    base::Log(base::LogLevel::kInfo, "hub",
              !report.fallen_back ? "misses are split between link and host again"
              : report.copies_all
                  ? "fell back: all misses are copied, since splitting them measured worse"
                  : "fell back: the host computes all misses, since splitting them measured worse");
  }
  if (report.look_ahead != told_.look_ahead) {
    base::Logf(base::LogLevel::kInfo, "hub", "look-ahead: %d layers from now on, of %d", report.look_ahead,
               report.most_look_ahead);
  }
}

std::unique_ptr<api::ExpertDirector> MakeReportingDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                           const HubDirector& hub, base::MetricsSink& sink) {
  return std::make_unique<ReportingDirector>(std::move(inner), hub, sink);
}

}  // namespace comoe::routing
