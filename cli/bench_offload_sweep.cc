// `comoe bench offload --sweep NAME=V1,V2,...`: which settings of the hub suit a model and a machine.
#include <algorithm>
#include <cstdio>
#include <limits>
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

struct SweepPoint {
  std::string value;
  OffloadPoint point;
};

double P99(const OffloadPoint& point) { return Quantile(point.run.step_seconds, 0.99); }

// Of one parameter, the value with the lowest p99 between tokens at the smallest batch, and that with the
// most tokens a second at the largest. Among equals the first.
struct BestValues {
  std::string latency;
  std::string throughput;
};
BestValues FindBest(const std::vector<SweepPoint>& points, std::int64_t smallest, std::int64_t largest) {
  BestValues best;
  double lowest = std::numeric_limits<double>::infinity();
  double highest = 0.0;
  for (const SweepPoint& p : points) {
    if (p.point.batch == smallest && P99(p.point) < lowest) {
      lowest = P99(p.point);
      best.latency = p.value;
    }
    if (p.point.batch == largest && p.point.run.tokens_per_second() > highest) {
      highest = p.point.run.tokens_per_second();
      best.throughput = p.value;
    }
  }
  return best;
}

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

// A mode with and without the settings that were found, since settings that are best alone need not be so
// together.
struct Verdict {
  std::string mode;
  std::string settings;
  OffloadPoint plain;
  OffloadPoint tuned;
};

absl::StatusOr<Verdict> Judge(const BenchOffloadOptions& options, const OffloadStudy& study,
                              const std::string& mode, const std::string& settings, std::int64_t batch) {
  Verdict verdict{mode, settings, {}, {}};
  BenchOffloadOptions moved = options;
  moved.engine.hub_mode = mode;
  moved.engine.hub_set.clear();
  COMOE_ASSIGN_OR_RETURN(verdict.plain,
                         MeasureOffload(moved, study.texts, "hub", study.shares.front(), batch));
  moved.engine.hub_set = settings;
  COMOE_ASSIGN_OR_RETURN(verdict.tuned,
                         MeasureOffload(moved, study.texts, "hub", study.shares.front(), batch));
  return verdict;
}

void PrintVerdict(const Verdict& v) {
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
      BenchOffloadOptions moved = options;
      moved.engine.hub_mode = "conservative";
      moved.engine.hub_set = absl::StrCat(sweep.name, "=", value);
      SweepPoint& p = points.emplace_back(SweepPoint{value, {}});
      COMOE_ASSIGN_OR_RETURN(p.point, MeasureOffload(moved, study.texts, "hub", study.shares.front(), batch));
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
    double value = 0.0;
    if (absl::SimpleAtod(p.value, &value)) {
      plot.series.back().points.emplace_back(value, Ratio(p.point.run.tokens_per_second(), first));
    }
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
  std::string latency, throughput;
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
    const BestValues best = FindBest(points, *smallest, *largest);
    absl::StrAppend(&latency, latency.empty() ? "" : ",", sweep.name, "=", best.latency);
    absl::StrAppend(&throughput, throughput.empty() ? "" : ",", sweep.name, "=", best.throughput);
    plots.push_back(PlotOf(sweep, points));
  }
  COMOE_ASSIGN_OR_RETURN(const Verdict for_latency, Judge(options, study, "latency", latency, *smallest));
  COMOE_ASSIGN_OR_RETURN(const Verdict for_throughput,
                         Judge(options, study, "throughput", throughput, *largest));
  if (options.json) {
    out["latency"] = ToJson(for_latency);
    out["throughput"] = ToJson(for_throughput);
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("\n");
    PrintVerdict(for_latency);
    PrintVerdict(for_throughput);
  }
  return options.plot.empty() ? absl::OkStatus() : WritePlots(options.plot, plots);
}

}  // namespace comoe::cli
