// `comoe bench offload --sweep NAME=V1,V2,...`: which settings of the hub suit a model and a machine.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/bench_offload.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/parameters.h"

namespace comoe::cli {
namespace {

struct Sweep {
  std::string name;
  std::vector<std::string> values;
};

absl::StatusOr<Sweep> ParseSweep(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  Sweep sweep{parts.first, absl::StrSplit(parts.second, ',')};
  for (const std::string& value : sweep.values) {
    double number = 0.0;
    if (!absl::SimpleAtod(value, &number)) {
      return absl::InvalidArgumentError(absl::StrCat("--sweep ", text, ": '", value, "' is no number"));
    }
    routing::HubParameters parameters = routing::ConservativeParameters();
    COMOE_RETURN_IF_ERROR(routing::SetHubParameter(sweep.name, number, &parameters));
  }
  return sweep;
}

double Number(const std::string& text) {
  double number = 0.0;
  return absl::SimpleAtod(text, &number) ? number : 0.0;  // ParseSweep has seen to that
}

struct SweepPoint {
  std::string value;
  OffloadPoint point;
};

double P99(const OffloadPoint& point) { return Quantile(point.run.step_seconds, 0.99); }

double SecondsPerToken(const OffloadPoint& point) { return Ratio(1.0, point.run.tokens_per_second()); }

// What a mode is for: a cost that is to be low, at one batch.
struct Goal {
  routing::HubMode mode;
  std::int64_t batch;
  double (*cost)(const OffloadPoint& point);

  std::string name() const { return std::string(routing::HubModeName(mode)); }
  // By so much that a flag for it is worth writing down.
  bool Better(const OffloadPoint& a, const OffloadPoint& b) const {
    constexpr double kWorth = 1.001;
    return cost(a) * kWorth < cost(b);
  }
};

void PrintSweep(const std::string& name, const std::vector<SweepPoint>& points) {
  std::printf("%-22s %12s %5s %10s %10s %10s %8s %8s\n", "parameter", "value", "batch", "tokens/s", "p50 ms",
              "p99 ms", "MB/token", "wasted");
  for (const SweepPoint& p : points) {
    const OffloadRun& run = p.point.run;
    std::printf("%-22s %12s %5d %10.1f %10.3f %10.3f %8.2f %7.1f%%\n", name.c_str(), p.value.c_str(),
                static_cast<int>(p.point.batch), run.tokens_per_second(),
                1e3 * Quantile(run.step_seconds, 0.5), 1e3 * P99(p.point), MegabytesPerToken(run),
                100.0 * WastedShare(run));
  }
}

nlohmann::json ToJson(const std::string& name, const SweepPoint& p) {
  return {{"parameter", name},
          {"value", p.value},
          {"batch", p.point.batch},
          {"tokens_per_second", p.point.run.tokens_per_second()},
          {"inter_token_p99_seconds", P99(p.point)},
          {"wasted_share", WastedShare(p.point.run)}};
}

absl::StatusOr<OffloadPoint> Measure(const BenchOffloadOptions& options, const OffloadStudy& study,
                                     const std::string& mode, const std::string& settings,
                                     std::int64_t batch) {
  BenchOffloadOptions moved = options;
  moved.engine.hub_mode = mode;
  moved.engine.hub_set = settings;
  return MeasureOffload(moved, study.texts, "hub", study.shares.front(), batch);
}

constexpr const char* kSweptFrom = "conservative";

// The value of the parameter that serves `goal` best, the first among equals; "" where the mode's own value,
// which is measured unless it is among `points`, is as good.
absl::StatusOr<std::string> FindBest(const BenchOffloadOptions& options, const OffloadStudy& study,
                                     const Sweep& sweep, const std::vector<SweepPoint>& points,
                                     const Goal& goal) {
  COMOE_ASSIGN_OR_RETURN(const double own,
                         routing::GetHubParameter(sweep.name, routing::ModeParameters(goal.mode)));
  const SweepPoint* best = nullptr;
  const SweepPoint* at_own = nullptr;
  for (const SweepPoint& p : points) {
    if (p.point.batch != goal.batch) {
      continue;
    }
    if (best == nullptr || goal.cost(p.point) < goal.cost(best->point)) {
      best = &p;
    }
    if (Number(p.value) == own) {
      at_own = &p;
    }
  }
  SweepPoint measured;
  if (at_own == nullptr) {
    COMOE_ASSIGN_OR_RETURN(measured.point, Measure(options, study, kSweptFrom,
                                                   absl::StrFormat("%s=%.17g", sweep.name, own), goal.batch));
    at_own = &measured;
  }
  return goal.Better(best->point, at_own->point) ? best->value : "";
}

// A mode with and without the settings that were found, since settings that are best alone need not be so
// together.
struct Verdict {
  std::string mode;
  std::string settings;  // "": none is better than the mode's own values, and `tuned` is `plain`
  OffloadPoint plain;
  OffloadPoint tuned;
};

absl::StatusOr<Verdict> Judge(const BenchOffloadOptions& options, const OffloadStudy& study, const Goal& goal,
                              const std::string& settings) {
  Verdict verdict{goal.name(), settings, {}, {}};
  COMOE_ASSIGN_OR_RETURN(verdict.plain, Measure(options, study, goal.name(), "", goal.batch));
  verdict.tuned = verdict.plain;
  if (settings.empty()) {
    return verdict;
  }
  COMOE_ASSIGN_OR_RETURN(OffloadPoint tuned, Measure(options, study, goal.name(), settings, goal.batch));
  if (goal.Better(tuned, verdict.plain)) {
    verdict.tuned = std::move(tuned);
  } else {
    verdict.settings.clear();
  }
  return verdict;
}

void PrintVerdict(const Verdict& v) {
  if (v.settings.empty()) {
    std::printf(
        "best here for %s: --policy hub --hub-mode %s; the mode's own values are as good: no flags needed\n"
        "  batch %d: %.1f tokens/s, p99 %.3f ms\n",
        v.mode.c_str(), v.mode.c_str(), static_cast<int>(v.plain.batch), v.plain.run.tokens_per_second(),
        1e3 * P99(v.plain));
    return;
  }
  std::printf(
      "best here for %s: --policy hub --hub-mode %s --hub %s\n"
      "  batch %d: %.1f tokens/s, p99 %.3f ms; the mode's own values: %.1f tokens/s, p99 %.3f ms\n",
      v.mode.c_str(), v.mode.c_str(), v.settings.c_str(), static_cast<int>(v.tuned.batch),
      v.tuned.run.tokens_per_second(), 1e3 * P99(v.tuned), v.plain.run.tokens_per_second(),
      1e3 * P99(v.plain));
}

nlohmann::json ToJson(const Verdict& v) {
  const auto numbers = [](const OffloadPoint& point) {
    return nlohmann::json(
        {{"tokens_per_second", point.run.tokens_per_second()}, {"inter_token_p99_seconds", P99(point)}});
  };
  return {{"hub", v.settings},
          {"batch", v.tuned.batch},
          {"tuned", numbers(v.tuned)},
          {"mode_alone", numbers(v.plain)}};
}

absl::StatusOr<std::vector<SweepPoint>> Run(const BenchOffloadOptions& options, const OffloadStudy& study,
                                            const Sweep& sweep) {
  std::vector<SweepPoint> points;
  for (const std::int64_t batch : study.batches) {
    for (const std::string& value : sweep.values) {
      SweepPoint& p = points.emplace_back(SweepPoint{value, {}});
      COMOE_ASSIGN_OR_RETURN(
          p.point, Measure(options, study, kSweptFrom, absl::StrCat(sweep.name, "=", value), batch));
    }
  }
  return points;
}

// Speeds over that of the parameter's first value, so that batches can share an axis.
Plot PlotOf(const Sweep& sweep, const std::vector<SweepPoint>& points) {
  Plot plot;
  plot.title = sweep.name;
  plot.x_label = sweep.name;
  plot.y_label = absl::StrCat("tokens/s over those of ", sweep.values.front());
  plot.y_from_0 = false;
  plot.level = 1.0;
  double first = 0.0;
  for (const SweepPoint& p : points) {
    if (p.value == sweep.values.front()) {
      first = p.point.run.tokens_per_second();
      plot.series.push_back({absl::StrCat("batch ", p.point.batch), {}});
    }
    plot.series.back().points.emplace_back(Number(p.value), Ratio(p.point.run.tokens_per_second(), first));
  }
  return plot;
}

}  // namespace

absl::Status SweepOffload(const BenchOffloadOptions& options, const OffloadStudy& study) {
  const auto [smallest, largest] = std::minmax_element(study.batches.begin(), study.batches.end());
  std::vector<Sweep> sweeps;
  for (const std::string& text : options.sweeps) {
    COMOE_ASSIGN_OR_RETURN(sweeps.emplace_back(), ParseSweep(text));
  }
  const Goal goals[] = {{routing::HubMode::kLatency, *smallest, P99},
                        {routing::HubMode::kThroughput, *largest, SecondsPerToken}};
  std::string settings[std::size(goals)];
  std::vector<Plot> plots;
  nlohmann::json out = {{"points", nlohmann::json::array()}};
  for (const Sweep& sweep : sweeps) {
    COMOE_ASSIGN_OR_RETURN(const std::vector<SweepPoint> points, Run(options, study, sweep));
    if (!options.json) {
      PrintSweep(sweep.name, points);
    }
    for (const SweepPoint& p : points) {
      out["points"].push_back(ToJson(sweep.name, p));
    }
    for (std::size_t i = 0; i < std::size(goals); ++i) {
      COMOE_ASSIGN_OR_RETURN(const std::string value, FindBest(options, study, sweep, points, goals[i]));
      if (!value.empty()) {
        absl::StrAppend(&settings[i], settings[i].empty() ? "" : ",", sweep.name, "=", value);
      }
    }
    plots.push_back(PlotOf(sweep, points));
  }
  std::vector<Verdict> verdicts;
  for (std::size_t i = 0; i < std::size(goals); ++i) {
    COMOE_ASSIGN_OR_RETURN(verdicts.emplace_back(), Judge(options, study, goals[i], settings[i]));
  }
  if (!options.json) {
    std::printf("\n");
  }
  for (const Verdict& verdict : verdicts) {
    out[verdict.mode] = ToJson(verdict);
    if (!options.json) {
      PrintVerdict(verdict);
    }
  }
  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
  }
  return options.plot.empty() ? absl::OkStatus() : WritePlots(options.plot, plots);
}

}  // namespace comoe::cli
