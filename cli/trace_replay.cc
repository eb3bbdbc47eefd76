// `comoe trace replay`: policies and predictors over recorded routing, beside what the future would allow.
#include "cli/trace_replay.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "cli/trace.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/expert_classifier.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/trace_predictors.h"

namespace comoe::cli {
namespace {

constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40;
constexpr std::int64_t kStudyStepsAtBatch1 = 3000;
// Decays tried per layer and in one pool: the best of each is what an eviction score has to reach.
constexpr double kDecays[] = {0.9, 0.95, 0.97, 0.98, 0.99};

struct ReplayFlags {
  std::string trace;
  std::string model;
  std::string policies;  // "": all, and the oracle
  std::string capacities = "0.25";
  std::string batches = "1";
  std::string predictors = "all";
  std::string classifier;
  std::string protocol = "halves";
  std::string mode = "latency";
  std::int64_t steps = 3000;
  std::int32_t distance = 3;
  RateFlags rates;
  std::string plot;
  bool json = false;
  bool quiet = false;
};

std::string DefaultPolicies() {
  std::vector<std::string> names;
  for (const char* name : routing::kPolicyNames) {
    if (std::string(name) != "resident") {
      names.emplace_back(name);
    }
  }
  names.emplace_back("oracle");
  return absl::StrJoin(names, ",");
}

class Replay {
 public:
  Replay(const ReplayFlags& flags, const routing::Trace& trace, TraceSplit split, routing::ReplayRates rates)
      : flags_(flags), trace_(trace), split_(std::move(split)), rates_(rates) {}

  absl::StatusOr<ReplayReport> Run() {
    COMOE_ASSIGN_OR_RETURN(const std::vector<double> shares, ParseShareList("--capacity", flags_.capacities));
    COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> batches,
                           ParseList("--batch", flags_.batches, 1, 1024));
    const std::vector<std::string> policies =
        absl::StrSplit(flags_.policies.empty() ? DefaultPolicies() : flags_.policies, ',', absl::SkipEmpty());
    ReplayReport report;
    for (const std::int64_t batch : batches) {
      const std::vector<std::vector<routing::ReplayRow>> steps = Steps(split_.judged, batch);
      if (steps.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("--batch ", batch, " needs as many sequences; ",
                                                       split_.judged.size(), " are judged"));
      }
      const auto log = std::make_shared<routing::AccessLog>(trace_, steps);
      for (const double share : shares) {
        report.bounds.push_back(BoundOf(*log, share, static_cast<std::int32_t>(batch)));
        for (const std::string& policy : policies) {
          ReplayPoint point{policy, share, static_cast<std::int32_t>(batch), {}};
          COMOE_ASSIGN_OR_RETURN(point.totals, policy == "oracle" ? RunOracle(share, steps, log)
                                                                  : RunPolicy(policy, share, steps));
          report.points.push_back(std::move(point));
        }
      }
    }
    COMOE_RETURN_IF_ERROR(JudgePredictors(&report));
    return report;
  }

 private:
  std::vector<std::vector<routing::ReplayRow>> Steps(const std::vector<std::int32_t>& sequences,
                                                     std::int64_t batch) const {
    std::int64_t most = flags_.steps > 0 ? flags_.steps : kMaxSteps;
    if (flags_.protocol == "study") {
      most = batch == 1 ? kStudyStepsAtBatch1 : kMaxSteps;
    }
    return routing::LockstepRows(trace_, sequences, static_cast<std::int32_t>(batch), most);
  }

  routing::TierShape Shape(double share) const {
    const double slots = share * trace_.header.num_moe_layers() * trace_.header.num_experts;
    return trace_.Shape(std::max(static_cast<std::int32_t>(slots + 1e-9), 1));
  }

  // Of the sequences that are learnt from, if there are any.
  std::vector<double> HotCounts(const routing::TierShape& shape) const {
    std::vector<double> counts;
    if (split_.history.empty()) {
      return counts;
    }
    counts.resize(shape.num_keys());
    for (const std::int32_t sequence : split_.history) {
      const auto s = static_cast<std::size_t>(sequence);
      for (std::int32_t t = 0; t < trace_.sequences[s].num_tokens(); ++t) {
        for (std::int32_t i = 0; i < trace_.header.num_moe_layers(); ++i) {
          for (const std::uint16_t expert : trace_.Experts(s, t, i)) {
            counts[shape.Index({shape.moe_layers[static_cast<std::size_t>(i)], expert})] += 1.0;
          }
        }
      }
    }
    return counts;
  }

  absl::StatusOr<routing::TimedTotals> RunPolicy(
      const std::string& policy, double share,
      const std::vector<std::vector<routing::ReplayRow>>& steps) const {
    const routing::TierShape shape = Shape(policy == "resident" ? 1.0 : share);
    routing::PolicyOptions options;
    options.host_lane = flags_.rates.host_lane;
    options.expert_bytes = trace_.header.expert_bytes;
    COMOE_ASSIGN_OR_RETURN(const routing::HubMode mode, routing::ParseHubMode(flags_.mode));
    options.hub = routing::ModeParameters(mode);
    if (policy == "static") {
      options.hot_counts = HotCounts(shape);
    }
    COMOE_ASSIGN_OR_RETURN(const routing::Policy made, routing::MakePolicy(policy, shape, options));
    return RunDirector(policy, shape, steps, made.director.get());
  }

  // The faster of the two that know the future.
  absl::StatusOr<routing::TimedTotals> RunOracle(double share,
                                                 const std::vector<std::vector<routing::ReplayRow>>& steps,
                                                 const std::shared_ptr<const routing::AccessLog>& log) const {
    const routing::TierShape shape = Shape(share);
    const auto run = [&](routing::OracleKind kind) {
      const std::unique_ptr<api::ExpertDirector> director =
          routing::MakeOracleDirector(shape, log, kind, flags_.rates.host_lane);
      return RunDirector("oracle", shape, steps, director.get());
    };
    COMOE_ASSIGN_OR_RETURN(const routing::TimedTotals frugal, run(routing::OracleKind::kFrugal));
    COMOE_ASSIGN_OR_RETURN(const routing::TimedTotals eager, run(routing::OracleKind::kEager));
    return frugal.seconds < eager.seconds ? frugal : eager;
  }

  absl::StatusOr<routing::TimedTotals> RunDirector(const std::string& name, const routing::TierShape& shape,
                                                   const std::vector<std::vector<routing::ReplayRow>>& steps,
                                                   api::ExpertDirector* director) const {
    routing::TimedReplayer replayer(trace_, shape, rates_, routing::RecordedLookahead(trace_), director);
    Progress progress(
        absl::StrFormat("%s, %d slots, batch %d", name, shape.device_slots, steps.front().size()),
        flags_.quiet);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      COMOE_RETURN_IF_ERROR(base::Annotate(replayer.Step(steps[i]), name));
      if (i % 64 == 0) {
        progress.Update(i, steps.size(), "steps");
      }
    }
    return replayer.totals();
  }

  EvictionBound BoundOf(const routing::AccessLog& log, double share, std::int32_t batch) const {
    const std::int32_t slots = Shape(share).device_slots;
    EvictionBound bound{share, batch, routing::OptimalHitRates(log, slots), 0.0, 0.0, 0.0, true};
    for (const double decay : kDecays) {
      for (const bool per_layer : {true, false}) {
        const double rate = routing::DecayedHitRate(log, slots, decay, per_layer);
        if (per_layer && decay == 0.97) {
          bound.decayed_97 = rate;
        }
        if (rate > bound.best_decayed) {
          bound.best_decayed = rate;
          bound.best_decay = decay;
          bound.best_per_layer = per_layer;
        }
      }
    }
    return bound;
  }

  absl::Status JudgePredictors(ReplayReport* report) const {
    if (flags_.predictors == "none") {
      return absl::OkStatus();
    }
    const std::vector<std::vector<routing::ReplayRow>> judged = Steps(split_.judged, 1);
    const std::vector<std::vector<routing::ReplayRow>> history =
        routing::LockstepRows(trace_, split_.history, 1, kMaxSteps);
    routing::JudgeOptions options;
    const std::int32_t k = trace_.header.experts_per_token;
    options.widths = {k, 2 * k, 4 * k};
    options.max_distance = flags_.distance;
    options.lookahead = routing::RecordedLookahead(trace_);
    const routing::TierShape shape = trace_.Shape(0);
    std::vector<std::string> names = absl::StrSplit(flags_.predictors, ',');
    if (flags_.predictors == "all") {
      names.clear();
      for (const absl::string_view name : routing::TracePredictorNames()) {
        names.emplace_back(name);
      }
    }
    for (const std::string& name : names) {
      if (name == "lookahead" && trace_.header.lookahead == 0 && flags_.predictors == "all") {
        continue;
      }
      COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::RowPredictor> predictor,
                             routing::MakeTracePredictor(name, shape));
      Append(routing::JudgePredictor(trace_, history, judged, options, predictor.get()), report);
    }
    if (!flags_.classifier.empty()) {
      COMOE_ASSIGN_OR_RETURN(
          const std::string bytes,
          base::ReadFile(flags_.classifier, 2 * routing::ExpertClassifier::kMaxTableBytes));
      COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::ExpertClassifier> classifier,
                             routing::ExpertClassifier::Parse(bytes, flags_.classifier, shape));
      Append(routing::JudgePredictor(trace_, history, judged, options, classifier.get()), report);
    }
    Append(routing::JudgeRecordedLookahead(trace_, judged, options.widths), report);
    return absl::OkStatus();
  }

  static void Append(std::vector<routing::ForecastQuality> more, ReplayReport* report) {
    report->forecasts.insert(report->forecasts.end(), more.begin(), more.end());
  }

  const ReplayFlags& flags_;
  const routing::Trace& trace_;
  const TraceSplit split_;
  const routing::ReplayRates rates_;
};

absl::Status RunReplay(const ReplayFlags& flags) {
  COMOE_RETURN_IF_ERROR(CheckPlotPath(flags.plot));
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  COMOE_ASSIGN_OR_RETURN(const routing::ReplayRates rates, MakeRates(flags.rates, trace));
  TraceSplit split = SplitInHalves(trace);
  if (flags.protocol == "study") {
    COMOE_ASSIGN_OR_RETURN(split, SplitAsStudy(trace));
  }
  const bool seconds = !flags.rates.link.empty();
  Replay replay(flags, trace, split, rates);
  COMOE_ASSIGN_OR_RETURN(const ReplayReport report, replay.Run());
  if (flags.json) {
    nlohmann::json out = ReplayJson(report, seconds);
    out["model"] = trace.header.model;
    out["trace"] = flags.trace;
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("%s: %d MoE layers of %d experts, top-%d; %zu sequences, %zu judged after %zu\n",
                trace.header.model.empty() ? flags.trace.c_str() : trace.header.model.c_str(),
                trace.header.num_moe_layers(), trace.header.num_experts, trace.header.experts_per_token,
                trace.sequences.size(), split.judged.size(), split.history.size());
    PrintReplay(report, seconds,
                flags.rates.expert_bytes > 0 ? flags.rates.expert_bytes : trace.header.expert_bytes);
  }
  if (!flags.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(flags.plot, ReplayPlots(report)));
    std::fprintf(stderr, "plot: %s\n", flags.plot.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceReplayCommand(CLI::App& trace, absl::Status& result) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = trace.add_subcommand(
      "replay", "policies and predictors over a trace, beside what the future would allow");
  command->add_option("--trace", flags->trace, "a trace, or a routing_trace.npz");
  command->add_option("--model", flags->model, "the model's folder, for a .npz that lies elsewhere");
  command->add_option("--policy", flags->policies,
                      absl::StrCat("compared with the first of them (default: ", DefaultPolicies(), ")"));
  command->add_option("--capacity", flags->capacities, "shares of the experts in device slots")
      ->capture_default_str();
  command->add_option("--batch", flags->batches, "sequences of a step")->capture_default_str();
  command
      ->add_option("--predictors", flags->predictors,
                   absl::StrCat("all, none, or of ", absl::StrJoin(routing::TracePredictorNames(), ",")))
      ->capture_default_str();
  command->add_option("--classifier", flags->classifier,
                      "a file of `comoe trace fit`, beside the predictors");
  command->add_option("--distance", flags->distance, "forecasts up to so many MoE layers ahead")
      ->check(CLI::Range(1, routing::kMaxTraceLookahead))
      ->capture_default_str();
  command
      ->add_option(
          "--protocol", flags->protocol,
          "halves: the second half is judged after the first was seen; study: the same in a fixed random "
          "order of 96 sequences, 3000 steps at batch 1 and all at others")
      ->check(CLI::IsMember({"halves", "study"}))
      ->capture_default_str();
  command->add_option("--mode", flags->mode, "of the hub: latency or throughput")->capture_default_str();
  command->add_option("--steps", flags->steps, "at most so many, 0 for all (halves)")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  AddRateFlags(*command, flags->rates);
  command->add_option("--plot", flags->plot, "also draw FILE.svg or FILE.png (gnuplot)");
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--quiet", flags->quiet, "no progress lines");
  command->callback([flags, &result] { result = RunReplay(*flags); });
}

}  // namespace comoe::cli
