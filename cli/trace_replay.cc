// `comoe trace replay`: policies and predictors over recorded routing, beside what the future would allow.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/bench.h"
#include "cli/offload_plot.h"
#include "cli/progress.h"
#include "cli/trace.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/expert_classifier.h"
#include "scheduler/routing/oracle.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/trace_predictors.h"
#include "scheduler/routing/trace_stats.h"

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

struct Point {
  std::string policy;
  double capacity = 0.0;
  std::int32_t batch = 0;
  routing::TimedTotals totals;
};

// What eviction alone can reach at a capacity and batch.
struct Bound {
  double capacity = 0.0;
  std::int32_t batch = 0;
  routing::OfflineRates optimal;
  double decayed_97 = 0.0;  // per layer, as published
  double best_decayed = 0.0;
  double best_decay = 0.0;
  bool best_per_layer = true;
};

struct Report {
  std::vector<Point> points;
  std::vector<Bound> bounds;
  std::vector<routing::ForecastQuality> forecasts;
};

double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

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

  absl::StatusOr<Report> Run() {
    COMOE_ASSIGN_OR_RETURN(const std::vector<double> shares, ParseShareList("--capacity", flags_.capacities));
    COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> batches,
                           ParseList("--batch", flags_.batches, 1, 1024));
    const std::vector<std::string> policies =
        absl::StrSplit(flags_.policies.empty() ? DefaultPolicies() : flags_.policies, ',', absl::SkipEmpty());
    Report report;
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
          Point point{policy, share, static_cast<std::int32_t>(batch), {}};
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

  Bound BoundOf(const routing::AccessLog& log, double share, std::int32_t batch) const {
    const std::int32_t slots = Shape(share).device_slots;
    Bound bound{share, batch, routing::OptimalHitRates(log, slots), 0.0, 0.0, 0.0, true};
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

  absl::Status JudgePredictors(Report* report) const {
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

  static void Append(std::vector<routing::ForecastQuality> more, Report* report) {
    report->forecasts.insert(report->forecasts.end(), more.begin(), more.end());
  }

  const ReplayFlags& flags_;
  const routing::Trace& trace_;
  const TraceSplit split_;
  const routing::ReplayRates rates_;
};

// The point of the same capacity and batch of the first policy.
const Point& Baseline(const std::vector<Point>& points, const Point& point) {
  return *std::find_if(points.begin(), points.end(), [&point](const Point& other) {
    return other.capacity == point.capacity && other.batch == point.batch;
  });
}

void PrintPoints(const Report& report, bool seconds, std::uint64_t expert_bytes) {
  std::printf("%-8s %6s %5s %6s %6s %6s %9s %9s %7s %7s %7s %10s %6s %6s\n", "policy", "share", "batch",
              "hits", "late", "host", "copies/t", "MB/token", "wasted", "dropped", "stall",
              seconds ? "ms/token" : "computes/t", "link", "x");
  for (const Point& p : report.points) {
    const routing::TimedTotals& t = p.totals;
    const auto rows = static_cast<double>(t.rows);
    const double per_token = static_cast<double>(t.copied()) / rows;
    const std::string megabytes =
        expert_bytes == 0 ? "-"
                          : absl::StrFormat("%.2f", per_token * static_cast<double>(expert_bytes) * 1e-6);
    std::printf(
        "%-8s %5.4g%% %5d %6.3f %5.1f%% %5.1f%% %9.2f %9s %6.1f%% %7lld %6.1f%% %10.3f %5.0f%% %6.2f\n",
        p.policy.c_str(), 100.0 * p.capacity, p.batch, t.hit_rate(),
        100.0 * Ratio(static_cast<double>(t.late_hits), static_cast<double>(t.lookups)),
        100.0 * Ratio(static_cast<double>(t.host), static_cast<double>(t.lookups)), per_token,
        megabytes.c_str(),
        100.0 * Ratio(static_cast<double>(t.guesses_wasted), static_cast<double>(t.copied())),
        static_cast<long long>(t.guesses_dropped), 100.0 * Ratio(t.stall_seconds, t.seconds),
        t.seconds / rows * (seconds ? 1e3 : 1.0), 100.0 * Ratio(t.link_seconds, t.seconds),
        Ratio(t.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second()));
  }
}

void PrintBounds(const Report& report) {
  std::printf("\nhit rates of eviction alone: decayed counts (online), optimal (Belady with bypass)\n");
  std::printf("%6s %5s %12s %6s %-18s %9s %9s %6s\n", "share", "batch", ".97 a layer", "best", "", "a layer",
              "pooled", "ratio");
  for (const Bound& b : report.bounds) {
    const std::string which =
        absl::StrFormat("(%.2f, %s)", b.best_decay, b.best_per_layer ? "a layer" : "pooled");
    std::printf("%5.4g%% %5d %12.3f %6.3f %-18s %9.3f %9.3f %6.2f\n", 100.0 * b.capacity, b.batch,
                b.decayed_97, b.best_decayed, which.c_str(), b.optimal.optimal_per_layer,
                b.optimal.optimal_pooled, Ratio(b.best_decayed, b.optimal.optimal_pooled));
  }
}

nlohmann::json ToJson(const Report& report, bool seconds) {
  nlohmann::json out = {{"unit", seconds ? "seconds" : "device computes"}};
  for (const Point& p : report.points) {
    const routing::TimedTotals& t = p.totals;
    out["points"].push_back(
        {{"policy", p.policy},
         {"capacity", p.capacity},
         {"batch", p.batch},
         {"steps", t.steps},
         {"rows", t.rows},
         {"lookups", t.lookups},
         {"hits", t.hits},
         {"hit_rate", t.hit_rate()},
         {"late_hits", t.late_hits},
         {"fetched", t.fetched},
         {"host", t.host},
         {"copied", t.copied()},
         {"guesses",
          {{"ordered", t.guesses},
           {"copied", t.guesses_copied},
           {"used", t.guesses_used},
           {"wasted", t.guesses_wasted},
           {"dropped", t.guesses_dropped}}},
         {"time", t.seconds},
         {"stall", t.stall_seconds},
         {"link_busy", t.link_seconds},
         {"speed_of_first_policy",
          Ratio(t.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second())}});
  }
  for (const Bound& b : report.bounds) {
    out["oracle"].push_back({{"capacity", b.capacity},
                             {"batch", b.batch},
                             {"optimal_per_layer", b.optimal.optimal_per_layer},
                             {"optimal_pooled", b.optimal.optimal_pooled},
                             {"decayed_97_per_layer", b.decayed_97},
                             {"best_decayed", b.best_decayed},
                             {"best_decay", b.best_decay},
                             {"best_decayed_per_layer", b.best_per_layer}});
  }
  for (const routing::ForecastQuality& q : report.forecasts) {
    out["forecasts"].push_back({{"predictor", q.name},
                                {"ahead", q.distance},
                                {"widths", q.widths},
                                {"recall", q.recall},
                                {"precision", q.precision},
                                {"rows", q.rows}});
  }
  return out;
}

std::vector<Plot> MakePlots(const Report& report) {
  const bool by_batch = std::all_of(report.points.begin(), report.points.end(), [&](const Point& p) {
    return p.capacity == report.points.front().capacity;
  });
  const std::string x = by_batch ? "batch" : "share of experts on the device, %";
  Plot hits{"hit rate", x, "share of lookups", by_batch, {}};
  Plot speed{"speed", x, "x first policy", by_batch, {}};
  for (const Point& p : report.points) {
    const std::string name = by_batch ? p.policy : absl::StrCat(p.policy, ", batch ", p.batch);
    const auto add = [&](Plot& plot, double y) {
      auto found = std::find_if(plot.series.begin(), plot.series.end(),
                                [&name](const PlotSeries& series) { return series.name == name; });
      if (found == plot.series.end()) {
        found = plot.series.insert(found, {name, {}});
      }
      found->points.emplace_back(by_batch ? p.batch : 100.0 * p.capacity, y);
    };
    add(hits, p.totals.hit_rate());
    add(speed, Ratio(p.totals.tokens_per_second(), Baseline(report.points, p).totals.tokens_per_second()));
  }
  return {std::move(hits), std::move(speed)};
}

absl::Status RunReplay(const ReplayFlags& flags) {
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  COMOE_ASSIGN_OR_RETURN(const routing::ReplayRates rates, MakeRates(flags.rates, trace));
  TraceSplit split = SplitInHalves(trace);
  if (flags.protocol == "study") {
    COMOE_ASSIGN_OR_RETURN(split, SplitAsStudy(trace));
  }
  const bool seconds = !flags.rates.link.empty();
  Replay replay(flags, trace, split, rates);
  COMOE_ASSIGN_OR_RETURN(const Report report, replay.Run());
  if (flags.json) {
    nlohmann::json out = ToJson(report, seconds);
    out["model"] = trace.header.model;
    out["trace"] = flags.trace;
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("%s: %d MoE layers of %d experts, top-%d; %zu sequences, %zu judged after %zu\n",
                trace.header.model.empty() ? flags.trace.c_str() : trace.header.model.c_str(),
                trace.header.num_moe_layers(), trace.header.num_experts, trace.header.experts_per_token,
                trace.sequences.size(), split.judged.size(), split.history.size());
    PrintPoints(report, seconds,
                flags.rates.expert_bytes > 0 ? flags.rates.expert_bytes : trace.header.expert_bytes);
    PrintBounds(report);
    if (!report.forecasts.empty()) {
      std::printf("\n");
      PrintForecasts("forecasts for a row, batch 1: recall / precision", report.forecasts);
    }
  }
  if (!flags.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(flags.plot, MakePlots(report)));
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
