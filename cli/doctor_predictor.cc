// Probe: what the director costs the engine thread in a step.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "cli/offload_options.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::cli {
namespace {

constexpr double kMostSeconds = 0.010;  // in a step
constexpr double kBudget = 0.01;        // of a step
// Where there is no model: one of 48 layers with 128 experts, 8 of them for a token.
constexpr std::int32_t kLayers = 48;
constexpr std::int32_t kExperts = 128;
constexpr std::int32_t kChosen = 8;
constexpr std::int32_t kTokens = 40;
constexpr double kSlotShare = 0.25;
constexpr double kSlowPredictorSeconds = 0.012;  // the fault

// Texts whose rows use experts of a falling popularity, each text with its own favourites.
routing::Trace SyntheticTrace(std::int32_t sequences) {
  routing::Trace trace;
  trace.header.num_layers = kLayers;
  trace.header.num_experts = kExperts;
  trace.header.experts_per_token = kChosen;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    trace.header.moe_layers.push_back(layer);
  }
  std::uint64_t draw = 0;
  for (std::int32_t s = 0; s < sequences; ++s) {
    routing::TraceSequence& sequence = trace.sequences.emplace_back();
    sequence.id = static_cast<std::uint64_t>(s) + 1;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      sequence.tokens.push_back(t);
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<std::uint16_t> chosen;
        while (chosen.size() < kChosen) {
          const double u = base::RandomUnit(1, draw++);
          const auto rank = static_cast<std::int32_t>(u * u * kExperts);
          const auto expert = static_cast<std::uint16_t>((rank + 7 * s + 13 * layer) % kExperts);
          if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) {
            chosen.push_back(expert);
          }
        }
        sequence.experts.insert(sequence.experts.end(), chosen.begin(), chosen.end());
      }
    }
  }
  return trace;
}

// Routers applied early, as far as noise goes.
bool RandomLookahead(absl::Span<const routing::ReplayRow> /*rows*/, std::int32_t target,
                     std::int32_t distance, absl::Span<float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(base::RandomUnit(static_cast<std::uint64_t>(target * 8 + distance), i));
  }
  return true;
}

absl::Status TimeSynthetic(const std::string& policy_name, DoctorContext& context) {
  const auto batch = static_cast<std::int32_t>(context.options.batch);
  const routing::Trace trace = SyntheticTrace(batch);
  const routing::TierShape shape =
      trace.Shape(static_cast<std::int32_t>(kSlotShare * kLayers * static_cast<double>(kExperts)));
  EngineOptions engine = context.engine();
  engine.policy = policy_name;
  api::ModelInfo info;
  info.expert_bytes = context.blob.bytes;
  COMOE_ASSIGN_OR_RETURN(routing::Policy policy, MakeOffloadPolicy(engine, info, shape));
  const double delay = context.options.fault == "slow-predictor" ? kSlowPredictorSeconds : 0.0;
  const std::unique_ptr<api::ExpertDirector> director =
      MakeTimedDirector(std::move(policy.director), &context.director, delay);
  std::vector<std::int32_t> sequences;
  for (std::int32_t s = 0; s < batch; ++s) {
    sequences.push_back(s);
  }
  return routing::RunTimed(trace, shape, routing::ReplayRates(), RandomLookahead,
                           routing::LockstepRows(trace, sequences, batch, kTokens), director.get())
      .status();
}

}  // namespace

absl::Status ProbePredictor(DoctorContext& context) {
  std::string policy = context.engine().policy;
  std::string what;
  Severity worst = Severity::kFailure;
  if (context.run.has_value()) {
    what = "in the run";
  } else {
    if (policy == "resident") {
      policy = "hub";  // what would decide on a device with tiers
      worst = Severity::kNote;
    }
    what = absl::StrFormat("on synthetic routing of %d layers, %d of %d experts", kLayers, kChosen, kExperts);
    COMOE_RETURN_IF_ERROR(TimeSynthetic(policy, context));
  }
  const double typical = context.director.Quantile(0.5);
  const double step =
      context.run.has_value() ? context.run->seconds() / static_cast<double>(context.options.steps) : 0.0;
  const bool over_budget = step > 0.0 && typical > kBudget * step;
  Finding& found = context.Add(
      "predictor.cost", typical > kMostSeconds ? worst : (over_budget ? Severity::kNote : Severity::kOk),
      absl::StrFormat("policy %s takes %.3f ms a step of %d rows (p99 %.3f)%s %s", policy, 1e3 * typical,
                      context.options.batch, 1e3 * context.director.Quantile(0.99),
                      over_budget ? absl::StrFormat(", %.0f %% of the step,", 100.0 * typical / step) : "",
                      what),
      absl::StrFormat("below %.0f ms, and 1 %% of a step", 1e3 * kMostSeconds),
      "--hub predictor_thread=1, a longer prediction_interval, a shorter look_ahead (docs/TUNING.md), or "
      "another "
      "--policy");
  found.values = {
      {"p50_seconds", typical}, {"p99_seconds", context.director.Quantile(0.99)}, {"step_seconds", step}};
  return absl::OkStatus();
}

}  // namespace comoe::cli
